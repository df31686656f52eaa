"""WebServer in a thread with a small application, for slow or numerous clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from aiohttp import web

from wattline_exporter.config.settings import Settings
from wattline_exporter.web.access import access_middleware
from wattline_exporter.web.listener import ConnectionLimits
from wattline_exporter.web.server import WebServer


class ServerThread:
    def __init__(self, server: WebServer, loop: asyncio.AbstractEventLoop, url: str) -> None:
        self.server = server
        self.loop = loop
        self.url = url
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        self.address = (parts.hostname, parts.port)

    @property
    def open(self) -> int:
        return sum(listener.open for listener in self.server._listeners)


@contextmanager
def run_server(
    settings: Settings, bounds: ConnectionLimits | None = None
) -> Iterator[ServerThread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    async def make() -> WebServer:
        return WebServer(settings, bounds)

    server = call(make())
    try:
        yield ServerThread(server, loop, call(server.start(_application(server))))
    finally:
        call(server.close())
        call(loop.shutdown_default_executor())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _application(server: WebServer) -> web.Application:
    async def small(request: web.Request) -> web.Response:
        return web.Response(text="here\n")

    async def large(request: web.Request) -> web.Response:
        return web.Response(body=bytes(64 * 1024 * 1024))

    async def runs(request: web.Request) -> web.Response:
        return web.Response(text=await request.text())

    application = web.Application(middlewares=[access_middleware(server.access)])
    application.add_routes(
        [
            web.get("/", small),
            web.get("/large", large),
            web.get("/api/v1/runs", small),
            web.post("/api/v1/runs", runs),
        ]
    )
    return application

"""Web API on loopback with selectable faults; the fakes of providers extend it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from aiohttp import web

BODIES = {
    "html": "<!DOCTYPE html><html><body>Log in</body></html>",
    "empty": "",
    "null": "null",
    "list": "[]",
    "garbage": "\x00\x01\ufffd}{",
    "error with 200": '{"error": {"code": "400 Bad Request", "message": "no"}}',
}
"""Faults with a wrong body and status 200; others are a status, or `truncated`, `cut off`, `slow`,
`huge`.
"""


@dataclass
class WebApi:
    """Web API. `requested_paths` include queries; `retry_after` is sent with each fault that is a
    status.
    """

    now: datetime
    fault: str = ""
    retry_after: str = ""
    bodies: dict[str, str] = field(default_factory=lambda: dict(BODIES))
    url: str = ""
    requested_paths: list[str] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    async def answer(
        self, request: web.Request, document: Any, status: int = 200
    ) -> web.StreamResponse:
        self.requested_paths.append(str(request.rel_url))
        text = json.dumps(document)
        if self.fault == "cut off":
            return await self._cut_off(request, text)
        if self.fault == "slow":
            await self.released.wait()
        if self.fault in self.bodies:
            return web.Response(text=self.bodies[self.fault])
        if self.fault == "huge":
            return web.Response(text="[" + " " * (5 << 20) + "]")
        if self.fault.isdigit():
            error = {"error": {"code": f"{self.fault} Error", "message": "Please try again later."}}
            headers = {"Retry-After": self.retry_after} if self.retry_after else {}
            return web.json_response(error, status=int(self.fault), headers=headers)
        assert self.fault in ("", "truncated", "slow"), f"no such fault: {self.fault}"
        text = text[: len(text) // 2] if self.fault == "truncated" else text
        return web.json_response(text=text, status=status)

    async def _cut_off(self, request: web.Request, text: str) -> web.StreamResponse:
        """Break the connection halfway through the announced body."""
        response = web.StreamResponse(headers={"Content-Length": str(len(text))})
        await response.prepare(request)
        await response.write(text[: len(text) // 2].encode())
        assert request.transport is not None
        request.transport.close()
        raise asyncio.CancelledError


Api = TypeVar("Api", bound=WebApi)


@asynccontextmanager
async def serve(api: Api) -> AsyncIterator[Api]:
    app = web.Application()
    app.router.add_routes(api.routes())
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    api.url = f"http://{host}:{port}"
    try:
        yield api
    finally:
        api.released.set()
        await runner.cleanup()


@contextmanager
def serve_in_thread(api: Api) -> Iterator[Api]:
    """Run in a separate thread, for programs without an event loop."""
    up, loop = threading.Event(), asyncio.new_event_loop()
    down = asyncio.Event()

    async def run() -> None:
        async with serve(api):
            up.set()
            await down.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), name="fake API")
    thread.start()
    try:
        assert up.wait(10), "the fake API does not start"
        yield api
    finally:
        loop.call_soon_threadsafe(down.set)
        thread.join(10)
        loop.close()


@asynccontextmanager
async def unresponsive_server() -> AsyncIterator[str]:
    """Yield an address where connections are accepted and never answered."""
    gone = asyncio.Event()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}"
    finally:
        gone.set()
        server.close()
        await server.wait_closed()

"""The route of traces behind a real HTTP server, with a receiver of the test."""

import asyncio
import threading
from contextlib import contextmanager

from aiohttp import web

from wattline_exporter.web.access import TRACES
from wattline_exporter.web.otlp import RECEIVER, receive_traces
from wattline_exporter.web.routes import report_problems


@contextmanager
def serve(make_receiver):
    """Yield the URL of a server in a thread; `make_receiver` is called in its event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    async def start():
        application = web.Application(middlewares=[report_problems])
        application[RECEIVER] = make_receiver()
        application.add_routes([web.post(TRACES, receive_traces)])
        runner = web.AppRunner(application, access_log=None, auto_decompress=False)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = call(start())
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        call(runner.cleanup())
        call(loop.shutdown_default_executor())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

"""aiohttp's end of a connection; what is no HTTP, or breaks off, it answers as all else that cannot be done."""

from __future__ import annotations

from aiohttp import web
from aiohttp.web_request import BaseRequest

from exporter.web.problem import problem


class Connection(web.RequestHandler):
    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # logs it, and raises where an answer has begun
        said = " ".join((message or "").split()) or "that is not HTTP"
        response = problem(status, "an error of the exporter's; its log has more" if status == 500 else said[:200])
        response.force_close()
        return response

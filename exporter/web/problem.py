"""What cannot be done, as problem+json (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from exporter.contract.run import Problem

TITLES = {
    400: "Bad request",
    401: "Who are you",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    413: "Body too large",
    415: "Unsupported media type",
    417: "Expectation failed",
    421: "Not for this host",
    422: "The request cannot be carried out",
    429: "Too many at a time",
    500: "Internal error",
    503: "Not available now",
}


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> web.Response:
    body = Problem(title=TITLES.get(status, "Error"), status=status, detail=detail)
    return web.Response(
        status=status,
        body=body.model_dump_json().encode(),
        content_type="application/problem+json",
        headers=headers,
    )

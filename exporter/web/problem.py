"""Error responses as problem+json (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import web

from exporter.contract.run import Problem

_RENAMED = {413: "Content Too Large", 422: "Unprocessable Content"}
"""Reason phrases that http.HTTPStatus spells as before RFC 9110 up to Python 3.12."""


def problem_response(status: int, detail: str, headers: Mapping[str, str] | None = None) -> web.Response:
    body = Problem(title=status_title(status), status=status, detail=detail)
    return web.Response(
        status=status,
        body=body.model_dump_json().encode(),
        content_type="application/problem+json",
        headers=headers,
    )


def status_title(status: int) -> str:
    """Return the reason phrase of RFC 9110."""
    return _RENAMED.get(status) or HTTPStatus(status).phrase

"""Routes of the requests that servers report, and the reading of JSON bodies."""

from __future__ import annotations

import asyncio
import math
import re
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from aiohttp import web
from pydantic import BaseModel

from wattline_exporter.requests.views import (
    DividedEnergyView,
    PackedRequests,
    RequestPage,
    RequestReceipt,
    RequestView,
)
from wattline_exporter.sensors.readings import RunError
from wattline_exporter.web.request_bodies import SMALLER_BATCHES, decode_requests

if TYPE_CHECKING:  # numpy is imported with the first request
    from wattline_exporter.requests.division.columns import RequestColumns

MAX_BODY_BYTES = 256 * 1024
MAX_REPORT_BYTES = 2 * 1024 * 1024
"""Largest bodies of calls, and of those that report requests."""
BODY_TIMEOUT_S = 10.0
MAX_LISTED = 10_000
DEFAULT_LISTED = 1_000
RETRY_AFTER_S = "1"
"""Seconds after which a request without energy may have one."""


class RequestApi(Protocol):
    """Requests of servers; the methods raise RunError. See `wattline_exporter.requests.service`."""

    async def report_columns(self, run_id: str, requests: RequestColumns) -> RequestReceipt: ...

    async def listed(
        self, run_id: str, start: float, end: float, limit: int, after: tuple[int, int]
    ) -> RequestPage: ...

    async def packed(self, run_id: str, start: float, end: float, after: int) -> PackedRequests: ...

    async def divided_energy(self, run_id: str, after: float) -> DividedEnergyView: ...

    async def find(self, request_id: str, run_id: str | None = None) -> RequestView: ...


REQUESTS = web.AppKey("requests", RequestApi)


def request_routes() -> list[web.RouteDef]:
    return [
        web.post("/api/v1/runs/{run_id}/requests", report_requests),
        web.get("/api/v1/runs/{run_id}/requests", list_requests),
        web.get("/api/v1/runs/{run_id}/requests/packed", packed_requests),
        web.get("/api/v1/runs/{run_id}/requests/divided", divided_energy),
        web.get("/api/v1/requests/{request_id}", show_request),
    ]


async def read_json(
    request: web.Request, most_bytes: int = MAX_BODY_BYTES, remedy: str = "send less"
) -> bytes:
    """Return the body of a request with JSON. Raises RunError, with the remedy for a body that is
    too large.
    """
    if request.content_type != "application/json":
        raise RunError(
            415, "send the body as application/json (curl: -H 'Content-Type: application/json')"
        )
    if "Content-Encoding" in request.headers:
        raise RunError(415, "send the body without Content-Encoding")
    chunks: list[bytes] = []
    left = most_bytes
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.content.iter_any():
                left -= len(chunk)
                if left < 0:
                    raise RunError(413, f"the body exceeds {most_bytes} bytes; {remedy}")
                chunks.append(chunk)
    except TimeoutError as error:
        raise RunError(
            408, f"the body was not received within {BODY_TIMEOUT_S:g} s; send it faster"
        ) from error
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def report_requests(request: web.Request) -> web.Response:
    requests = decode_requests(await read_json(request, MAX_REPORT_BYTES, SMALLER_BATCHES))
    receipt = await request.app[REQUESTS].report_columns(request.match_info["run_id"], requests)
    return _answer(receipt, 202)


async def list_requests(request: web.Request) -> web.Response:
    start = _time(request, "start", 0.0)
    end = _time(request, "end", math.inf)
    page = await request.app[REQUESTS].listed(
        request.match_info["run_id"], start, end, _limit(request), _position(request)
    )
    body = await asyncio.to_thread(page.model_dump_json)
    return web.Response(body=body.encode(), content_type="application/json")


async def packed_requests(request: web.Request) -> web.Response:
    start = _time(request, "start", 0.0)
    end = _time(request, "end", math.inf)
    page = await request.app[REQUESTS].packed(
        request.match_info["run_id"], start, end, _batch(request)
    )
    body = await asyncio.to_thread(page.model_dump_json)
    return web.Response(body=body.encode(), content_type="application/json")


async def divided_energy(request: web.Request) -> web.Response:
    after = _time(request, "after", 0.0)
    found = await request.app[REQUESTS].divided_energy(request.match_info["run_id"], after)
    body = await asyncio.to_thread(found.model_dump_json)
    return web.Response(body=body.encode(), content_type="application/json")


async def show_request(request: web.Request) -> web.Response:
    view = await request.app[REQUESTS].find(
        request.match_info["request_id"], request.query.get("run_id")
    )
    answer = _answer(view, 202 if view.state == "pending" else 200)
    if view.state != "final":
        answer.headers["Retry-After"] = RETRY_AFTER_S
    return answer


def _answer(body: BaseModel, status: int) -> web.Response:
    return web.Response(
        status=status, body=body.model_dump_json().encode(), content_type="application/json"
    )


def _time(request: web.Request, name: str, default: float) -> float:
    text = request.query.get(name)
    if text is None:
        return default
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text):
        return float(text)
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))  # as a query spells it
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise RunError(
            400,
            f"{name}: expected Unix seconds or a date such as 2026-11-20T10:00Z, not {text[:40]!r}",
        )
    return moment.timestamp()


def _limit(request: web.Request) -> int:
    text = request.query.get("limit", str(DEFAULT_LISTED))
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= MAX_LISTED:
        raise RunError(
            400, f"limit: expected a whole number from 1 to {MAX_LISTED}, not {text[:40]!r}"
        )
    return int(text)


def _batch(request: web.Request) -> int:
    text = request.query.get("after", "0")
    if not re.fullmatch("[0-9]{1,18}", text):
        raise RunError(
            400, f"after: expected the value of next of the page before, not {text[:40]!r}"
        )
    return int(text)


def _position(request: web.Request) -> tuple[int, int]:
    text = request.query.get("after", "0:0")
    if not re.fullmatch("[0-9]{1,18}:[0-9]{1,9}", text):
        raise RunError(
            400, f"after: expected the value of next of the page before, not {text[:40]!r}"
        )
    batch, _, position = text.partition(":")
    return int(batch), int(position)

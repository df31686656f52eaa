"""What the exporter serves over HTTP: metrics, landing page, health, the run API and the local history.

Who may ask for it is in `guard.py`.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast

from aiohttp import web
from pydantic import BaseModel, ValidationError

from exporter.contract.run import (
    BeginRequest,
    EndRequest,
    Gpus,
    PhaseRequest,
    ProcessesRequest,
    Run,
    WorkRequest,
)
from exporter.runs.requests import RunError
from exporter.runs.service import MAX_RUNS_LISTED, RunService
from exporter.sensors.hub import SensorHub
from exporter.web.guard import Guard, middleware
from exporter.web.landing import landing as landing_page
from exporter.web.metrics import MetricsEndpoint
from exporter.web.openapi import document
from exporter.web.problem import problem
from exporter.web.query import Queries

MAX_BODY_BYTES = 256 * 1024
BODY_WITHIN_S = 10.0
QUERIES = web.AppKey("queries", Queries)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Services behind the routes. `history` is the path of the local history."""

    runs: RunService
    sensors: SensorHub
    metrics: MetricsEndpoint
    history: Path | None
    version: str


ENDPOINTS = web.AppKey("endpoints", Endpoints)
Body = TypeVar("Body", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(endpoints: Endpoints, guard: Guard) -> web.Application:
    served = web.Application(middlewares=[middleware(guard), _problems], client_max_size=MAX_BODY_BYTES)
    served[ENDPOINTS] = endpoints
    served[QUERIES] = Queries(endpoints.history)
    served.on_cleanup.append(_close)
    served.add_routes(
        [
            web.get("/", landing),
            web.get("/metrics", metrics),
            web.get("/-/healthy", healthy),
            web.get("/-/ready", ready),
            web.get("/api/v1/runs", runs),
            web.post("/api/v1/runs", begin),
            web.get("/api/v1/runs/{run_id}", show),
            web.post("/api/v1/runs/{run_id}/processes", processes),
            web.post("/api/v1/runs/{run_id}/work", work),
            web.post("/api/v1/runs/{run_id}/phase", phase),
            web.post("/api/v1/runs/{run_id}/end", end),
            web.get("/api/v1/gpus", gpus),
            web.get("/api/v1/query", query),
            web.get("/api/v1/openapi.json", openapi),
        ]
    )
    return served


async def _close(served: web.Application) -> None:
    served[QUERIES].close()


@web.middleware
async def _problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What cannot be done, as problem+json."""
    try:
        return await handler(request)
    except RunError as error:
        wait = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s else None
        return problem(error.status, error.detail, wait)
    except web.HTTPException as error:
        return problem(error.status, _refusal(request, error))
    except sqlite3.Error as error:
        return problem(503, f"cannot read the state: {error}; is the disk of --state.path well?")
    except (web.RequestPayloadError, ConnectionError):  # or the client went away in the middle of it
        return problem(400, "the body is not what its headers say; send it whole, with its Content-Length")


def _refusal(request: web.Request, error: web.HTTPException) -> str:
    if isinstance(error, web.HTTPNotFound):
        return f"there is nothing at {request.path}; the routes are listed at /"
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"{request.path} takes {', '.join(sorted(error.allowed_methods))}, not {request.method}"
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return f"a body has at most {MAX_BODY_BYTES} bytes"
    return error.reason


async def _read(request: web.Request, model: type[Body]) -> Body:
    """The body as `model`. Raises LedgerError, naming the field and what is expected there."""
    if request.content_type != "application/json":
        raise RunError(415, "send the body as application/json (curl: -H 'Content-Type: application/json')")
    if "Content-Encoding" in request.headers:
        raise RunError(415, "send the body as it is, without Content-Encoding")
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            body = await request.read()
    except TimeoutError as error:
        raise RunError(408, f"the body did not come within {BODY_WITHIN_S:g} s; send it at once") from error
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        if first["type"] == "json_invalid":
            raise RunError(400, f"the body is not JSON: {first['msg']}") from error
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise RunError(422, f"{where}: {first['msg']} (got {str(first['input'])[:80]!r})") from error


def _runs(request: web.Request) -> RunService:
    return request.app[ENDPOINTS].runs


def _answer(run: Run, status: int = 200) -> web.Response:
    return web.Response(status=status, body=run.model_dump_json().encode(), content_type="application/json")


async def begin(request: web.Request) -> web.Response:
    run, is_new = await _runs(request).begin(await _read(request, BeginRequest))
    return _answer(run, 201 if is_new else 200)


async def processes(request: web.Request) -> web.Response:
    body = await _read(request, ProcessesRequest)
    return _answer(_runs(request).add_processes(request.match_info["run_id"], body))


async def work(request: web.Request) -> web.Response:
    body = await _read(request, WorkRequest)
    return _answer(_runs(request).work(request.match_info["run_id"], body))


async def phase(request: web.Request) -> web.Response:
    body = await _read(request, PhaseRequest)
    return _answer(_runs(request).phase(request.match_info["run_id"], body.name))


async def end(request: web.Request) -> web.Response:
    body = await _read(request, EndRequest)
    return _answer(await _runs(request).end(request.match_info["run_id"], body))


async def show(request: web.Request) -> web.Response:
    return _answer(_runs(request).get(request.match_info["run_id"]))


async def runs(request: web.Request) -> web.Response:
    state = request.query.get("state")
    if state not in (None, "running", "ended"):
        raise RunError(400, f"state: expected running or ended, not {state[:40]!r}")
    shown = await _runs(request).list_runs(cast('Literal["running", "ended"] | None', state), _limit(request))
    return web.Response(body=b"[" + b",".join(shown) + b"]", content_type="application/json", charset="utf-8")


def _limit(request: web.Request) -> int:
    text = request.query.get("limit", str(MAX_RUNS_LISTED))
    if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= MAX_RUNS_LISTED:
        raise RunError(400, f"limit: is a whole number from 1 to {MAX_RUNS_LISTED}, not {text[:40]!r}")
    return int(text)


async def gpus(request: web.Request) -> web.Response:
    sensors = request.app[ENDPOINTS].sensors
    await sensors.wait_until_ready()
    shown = Gpus(gpus=sensors.answering_gpus(), simulation=sensors.live.simulation)
    return web.Response(body=shown.model_dump_json().encode(), content_type="application/json")


async def query(request: web.Request) -> web.Response:
    return await request.app[QUERIES].answer(request)


async def openapi(request: web.Request) -> web.Response:
    return web.json_response(document(request.app[ENDPOINTS].version))


async def metrics(request: web.Request) -> web.Response:
    compress = _takes_gzip(request.headers.get("Accept-Encoding", ""))
    page = await request.app[ENDPOINTS].metrics.page(request.headers.get("Accept", ""), compress=compress)
    headers = {"Content-Type": page.content_type, "Vary": "Accept, Accept-Encoding"}
    if page.compressed:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=page.body, headers=headers)


def _takes_gzip(accept_encoding: str) -> bool:
    for coding in accept_encoding.split(","):
        name, _, weight = coding.replace(" ", "").partition(";")
        if name == "gzip":
            return weight.rstrip("0.") != "q="
    return False


async def healthy(_: web.Request) -> web.Response:
    return web.Response(text="Wattline exporter is healthy.\n")


async def ready(request: web.Request) -> web.Response:
    if not request.app[ENDPOINTS].sensors.is_ready:
        return web.Response(status=503, text="The sources have not been read yet.\n")
    return web.Response(text="Wattline exporter is ready.\n")


async def landing(request: web.Request) -> web.Response:
    endpoints = request.app[ENDPOINTS]
    return landing_page(endpoints.sensors, endpoints.version)

"""What the exporter serves over HTTP: metrics, landing page, health, the run API and the local history.

Who may ask for it is in `guard.py`.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from exporter.contract.run import (
    BeginRequest,
    EndRequest,
    Gpus,
    PhaseRequest,
    ProcessesRequest,
    RunGpu,
    WorkRequest,
)
from exporter.daemon import App
from exporter.runs.record import RunRecord
from exporter.runs.requests import LedgerError
from exporter.runs.view import view
from exporter.web.guard import Guard, middleware
from exporter.web.landing import landing as landing_page
from exporter.web.openapi import document
from exporter.web.problem import problem
from exporter.web.query import Queries

MAX_BODY_BYTES = 256 * 1024
MAX_RUNS_LISTED = 1_000
RUNS_AT_ONCE = 10
"""Between so many of a list the event loop has its turn: one takes about a millisecond."""
BODY_WITHIN_S = 10.0
APP = web.AppKey("exporter", App)
QUERIES = web.AppKey("queries", Queries)

Body = TypeVar("Body", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(app: App, guard: Guard) -> web.Application:
    served = web.Application(middlewares=[middleware(guard), _problems], client_max_size=MAX_BODY_BYTES)
    served[APP] = app
    served[QUERIES] = Queries(app.parts.history.path if app.parts.history else None)
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
    except LedgerError as error:
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
        raise LedgerError(415, "send the body as application/json (curl: -H 'Content-Type: application/json')")
    if "Content-Encoding" in request.headers:
        raise LedgerError(415, "send the body as it is, without Content-Encoding")
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            body = await request.read()
    except TimeoutError as error:
        raise LedgerError(408, f"the body did not come within {BODY_WITHIN_S:g} s; send it at once") from error
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        if first["type"] == "json_invalid":
            raise LedgerError(400, f"the body is not JSON: {first['msg']}") from error
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise LedgerError(422, f"{where}: {first['msg']} (got {str(first['input'])[:80]!r})") from error


def _run(request: web.Request, run: RunRecord, status: int = 200) -> web.Response:
    shown = request.app[APP].view(run)
    return web.Response(status=status, body=shown.model_dump_json().encode(), content_type="application/json")


async def begin(request: web.Request) -> web.Response:
    app = request.app[APP]
    body = await _read(request, BeginRequest)
    await app.wait_until_ready()  # before, it is not known which GPUs there are
    if app.finished.is_set():
        raise LedgerError(503, "the exporter is stopping; begin the run once it serves again")
    run, new = await app.ledger.begin(body)
    await app.keeper.save_soon()
    return _run(request, run, 201 if new else 200)


async def processes(request: web.Request) -> web.Response:
    body = await _read(request, ProcessesRequest)
    return _run(request, request.app[APP].ledger.add_processes(request.match_info["run_id"], body))


async def work(request: web.Request) -> web.Response:
    body = await _read(request, WorkRequest)
    return _run(request, request.app[APP].ledger.work(request.match_info["run_id"], body))


async def phase(request: web.Request) -> web.Response:
    body = await _read(request, PhaseRequest)
    return _run(request, request.app[APP].ledger.phase(request.match_info["run_id"], body.name))


async def end(request: web.Request) -> web.Response:
    app = request.app[APP]
    body = await _read(request, EndRequest)
    await app.wait_until_ready()  # before, no sensor tells what was drawn since the exporter before this one
    run = await asyncio.shield(app.ledger.end(request.match_info["run_id"], body))
    await app.keeper.save_soon()
    return _run(request, run)


async def show(request: web.Request) -> web.Response:
    return _run(request, request.app[APP].ledger.find(request.match_info["run_id"]))


async def runs(request: web.Request) -> web.Response:
    app = request.app[APP]
    state = request.query.get("state")
    if state not in (None, "running", "ended"):
        raise LedgerError(400, f"state: is running or ended, not {state[:40]!r}")
    limit = _limit(request)
    rows = await asyncio.to_thread(app.parts.state.runs, MAX_RUNS_LISTED)
    stored = {run.run_id: run for run in rows}
    known = (stored | app.ledger.runs).values()
    chosen = [run for run in known if state in (None, "running" if run.is_open else "ended")]
    chosen.sort(key=lambda run: run.started_at, reverse=True)
    shown: list[bytes] = []
    for first in range(0, min(limit, len(chosen)), RUNS_AT_ONCE):
        shown += await _shown(app, chosen[first : min(limit, first + RUNS_AT_ONCE)], stored)
    return web.Response(body=b"[" + b",".join(shown) + b"]", content_type="application/json", charset="utf-8")


def _limit(request: web.Request) -> int:
    text = request.query.get("limit", str(MAX_RUNS_LISTED))
    if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= MAX_RUNS_LISTED:
        raise LedgerError(400, f"limit: is a whole number from 1 to {MAX_RUNS_LISTED}, not {text[:40]!r}")
    return int(text)


async def _shown(app: App, runs: list[RunRecord], stored: Mapping[str, RunRecord]) -> list[bytes]:
    """Those that are open here, where they do not change meanwhile; ended ones, as they are stored, in a thread."""
    closed = {run.run_id: stored[run.run_id] for run in runs if _is_final(run, stored.get(run.run_id))}
    shown = await asyncio.to_thread(_json_of_closed, list(closed.values()), app.parts.simulation)
    shown |= {run.run_id: app.view(run).model_dump_json().encode() for run in runs if run.run_id not in closed}
    return [shown[run.run_id] for run in runs]


def _is_final(run: RunRecord, stored: RunRecord | None) -> bool:
    return not run.is_open and stored is not None and not stored.is_open


def _json_of_closed(runs: list[RunRecord], simulation: Path | None) -> dict[str, bytes]:
    """Of records that nobody changes any more, which need no devices to be shown."""
    source = str(simulation) if simulation else None
    return {run.run_id: view(run, {}, 0.0, source).model_dump_json().encode() for run in runs}


async def gpus(request: web.Request) -> web.Response:
    app = request.app[APP]
    await app.wait_until_ready()
    answering = [
        RunGpu(gpu=gpu.info.index, uuid=gpu.info.uuid, name=gpu.info.name) for gpu in app.store.gpus.values() if gpu.up
    ]
    answering.sort(key=lambda gpu: int(gpu.gpu))
    shown = Gpus(gpus=answering, simulation=app.simulation)
    return web.Response(body=shown.model_dump_json().encode(), content_type="application/json")


async def query(request: web.Request) -> web.Response:
    return await request.app[QUERIES].answer(request)


async def openapi(request: web.Request) -> web.Response:
    return web.json_response(document(request.app[APP].parts.version))


async def metrics(request: web.Request) -> web.Response:
    compress = _takes_gzip(request.headers.get("Accept-Encoding", ""))
    page = await request.app[APP].page(request.headers.get("Accept", ""), compress=compress)
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
    if not request.app[APP].ready.is_set():
        return web.Response(status=503, text="The sources have not been read yet.\n")
    return web.Response(text="Wattline exporter is ready.\n")


async def landing(request: web.Request) -> web.Response:
    return landing_page(request.app[APP])

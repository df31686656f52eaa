"""HTTP routes: metrics, landing page, health, run API and local history. Access is checked in
`access`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, Protocol, TypeVar, cast

from aiohttp import web
from pydantic import BaseModel, ValidationError

from wattline.contract.api import Gpus
from wattline.contract.json_values import json_bytes
from wattline.contract.run import Run
from wattline_exporter.polling.hub import SensorHub
from wattline_exporter.runs.admission import RunEnd, RunProcesses, RunStart
from wattline_exporter.sensors.readings import RunError
from wattline_exporter.web.access import TRACES, AccessPolicy, access_middleware
from wattline_exporter.web.bodies import (
    BeginRequest,
    EndRequest,
    PhaseRequest,
    ProcessesRequest,
    WorkRequest,
    error_reason,
)
from wattline_exporter.web.documents import landing_page, openapi_document, problem_response
from wattline_exporter.web.history_queries import HistoryQueries, query_limit, query_processes
from wattline_exporter.web.otlp import RECEIVER, TraceApi, receive_traces
from wattline_exporter.web.request_routes import (
    MAX_BODY_BYTES,
    REQUESTS,
    RequestApi,
    read_json,
    request_routes,
)

QUERIES = web.AppKey("queries", HistoryQueries)


class RunApi(Protocol):
    """Requests of the run API; they raise RunError. See `wattline_exporter.runs.service`."""

    async def begin(self, request: RunStart) -> tuple[Run, bool]: ...

    async def add_processes(self, run_id: str, request: RunProcesses) -> Run: ...

    async def work(self, run_id: str, contributor: str, totals: Mapping[str, float]) -> Run: ...

    async def phase(self, run_id: str, name: str) -> Run: ...

    async def end(self, run_id: str, request: RunEnd) -> Run: ...

    def get(self, run_id: str) -> Run: ...

    async def list_runs(
        self,
        state: Literal["running", "ended"] | None,
        limit: int,
        processes: RunProcesses | None,
        before: str | None,
    ) -> list[bytes]: ...


class EncodedPage(Protocol):
    """Page of metrics in one of the formats that Prometheus scrapes."""

    @property
    def body(self) -> bytes: ...

    @property
    def content_type(self) -> str: ...

    @property
    def compressed(self) -> bool: ...


class MetricsApi(Protocol):
    """Pages of metrics. See `wattline_exporter.web.metrics_page`."""

    async def page(self, accept: str, *, compress: bool) -> EncodedPage: ...


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Services behind the routes. `requests` accepts the requests of model servers.

    `history` is the path of the local history. `carbon` returns all intensities; `traces` receives
    OTLP traces, and is None if that is disabled.
    """

    runs: RunApi
    requests: RequestApi
    sensors: SensorHub
    metrics: MetricsApi
    history: Path | None
    version: str
    carbon: Callable[[], BaseModel]
    traces: TraceApi | None = None


ENDPOINTS = web.AppKey("endpoints", Endpoints)
Body = TypeVar("Body", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def web_application(endpoints: Endpoints, access: AccessPolicy) -> web.Application:
    app = web.Application(
        middlewares=[access_middleware(access), report_problems], client_max_size=MAX_BODY_BYTES
    )
    app[ENDPOINTS] = endpoints
    app[QUERIES] = HistoryQueries(endpoints.history)
    app[REQUESTS] = endpoints.requests
    app.on_cleanup.append(_close)
    app.add_routes(
        [
            web.get("/", show_landing),
            web.get("/metrics", show_metrics),
            web.get("/-/healthy", show_health),
            web.get("/-/ready", show_readiness),
            web.get("/api/v1/runs", show_runs),
            web.post("/api/v1/runs", begin_run),
            web.get("/api/v1/runs/{run_id}", show_run),
            web.post("/api/v1/runs/{run_id}/processes", add_run_processes),
            web.post("/api/v1/runs/{run_id}/work", report_run_work),
            web.post("/api/v1/runs/{run_id}/phase", start_run_phase),
            web.post("/api/v1/runs/{run_id}/end", end_run),
            *request_routes(),
            web.get("/api/v1/gpus", show_gpus),
            web.get("/api/v1/carbon", show_carbon),
            web.get("/api/v1/query", query_history),
            web.get("/api/v1/openapi.json", show_openapi),
        ]
    )
    if endpoints.traces:
        app[RECEIVER] = endpoints.traces
        app.add_routes([web.post(TRACES, receive_traces)])
    return app


async def _close(app: web.Application) -> None:
    app[QUERIES].close()


@web.middleware
async def report_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return errors as problem+json."""
    try:
        return await handler(request)
    except RunError as error:
        wait = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s else None
        return problem_response(error.status, error.detail, wait)
    except web.HTTPException as error:
        return problem_response(error.status, _describe_http_error(request, error))
    except sqlite3.Error as error:
        return problem_response(
            503, f"cannot read the state: {error}; check the disk that holds --state.path"
        )
    except (web.RequestPayloadError, ConnectionError):  # or a disconnected client
        return problem_response(
            400, "the body does not match its headers; send it completely, with its Content-Length"
        )


def _describe_http_error(request: web.Request, error: web.HTTPException) -> str:
    if isinstance(error, web.HTTPNotFound):
        if request.path == TRACES:
            return "OTLP traces are disabled; start the exporter with --otlp.traces"
        return f"no route {request.path}; see / for a list"
    if isinstance(error, web.HTTPMethodNotAllowed):
        return (
            f"{request.path} accepts {', '.join(sorted(error.allowed_methods))}, not "
            f"{request.method}"
        )
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return f"the body exceeds {MAX_BODY_BYTES} bytes"
    return error.reason


async def _read(request: web.Request, model: type[Body]) -> Body:
    """Return the body as `model`. Raises RunError, which names the invalid field and the expected
    value.
    """
    body = await read_json(request)
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise RunError(400, f"the body is not JSON: {first['msg']}") from error
        field = ".".join(str(part) for part in first["loc"]) or "body"
        if first["type"] == "extra_forbidden":
            raise RunError(
                422, f"{field}: unknown field; {_similar_field(field, model)}"
            ) from error
        reason = error_reason(first["type"], first["msg"], first.get("ctx", {}))
        raise RunError(422, f"{field}: {reason} (got {str(first['input'])[:80]!r})") from error


def _similar_field(field: str, model: type[BaseModel]) -> str:
    similar = get_close_matches(field, model.model_fields, 1)
    return (
        f"did you mean {similar[0]}?"
        if similar
        else f"the fields are {', '.join(model.model_fields)}"
    )


def _runs(request: web.Request) -> RunApi:
    return request.app[ENDPOINTS].runs


def _answer(run: Run, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=json_bytes(run.to_json()), content_type="application/json"
    )


async def begin_run(request: web.Request) -> web.Response:
    body = await _read(request, BeginRequest)
    run, is_new = await _runs(request).begin(body.start)
    return _answer(run, 201 if is_new else 200)


async def add_run_processes(request: web.Request) -> web.Response:
    body = await _read(request, ProcessesRequest)
    return _answer(await _runs(request).add_processes(request.match_info["run_id"], body.processes))


async def report_run_work(request: web.Request) -> web.Response:
    body = await _read(request, WorkRequest)
    run_id = request.match_info["run_id"]
    return _answer(await _runs(request).work(run_id, body.contributor, body.amounts))


async def start_run_phase(request: web.Request) -> web.Response:
    body = await _read(request, PhaseRequest)
    return _answer(await _runs(request).phase(request.match_info["run_id"], body.name))


async def end_run(request: web.Request) -> web.Response:
    body = await _read(request, EndRequest)
    return _answer(await _runs(request).end(request.match_info["run_id"], body.end))


async def show_run(request: web.Request) -> web.Response:
    return _answer(_runs(request).get(request.match_info["run_id"]))


async def show_runs(request: web.Request) -> web.Response:
    state = request.query.get("state")
    if state not in (None, "running", "ended"):
        raise RunError(400, f"state: expected running or ended, not {state[:40]!r}")
    chosen = cast('Literal["running", "ended"] | None', state)
    before = request.query.get("before")
    bodies = await _runs(request).list_runs(
        chosen, query_limit(request), query_processes(request), before
    )
    return web.Response(
        body=b"[" + b",".join(bodies) + b"]", content_type="application/json", charset="utf-8"
    )


async def show_carbon(request: web.Request) -> web.Response:
    document = request.app[ENDPOINTS].carbon()
    return web.Response(
        body=document.model_dump_json(by_alias=True).encode(), content_type="application/json"
    )


async def show_gpus(request: web.Request) -> web.Response:
    sensors = request.app[ENDPOINTS].sensors
    await sensors.wait_until_ready()
    gpus = Gpus(tuple(sensors.answering_gpus()), sensors.live.simulation)
    return web.Response(body=json_bytes(gpus.to_json()), content_type="application/json")


async def query_history(request: web.Request) -> web.Response:
    return await request.app[QUERIES].answer(request)


async def show_openapi(request: web.Request) -> web.Response:
    return web.json_response(openapi_document(request.app[ENDPOINTS].version))


async def show_metrics(request: web.Request) -> web.Response:
    compress = _accepts_gzip(request.headers.get("Accept-Encoding", ""))
    page = await request.app[ENDPOINTS].metrics.page(
        request.headers.get("Accept", ""), compress=compress
    )
    headers = {"Content-Type": page.content_type, "Vary": "Accept, Accept-Encoding"}
    if page.compressed:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=page.body, headers=headers)


def _accepts_gzip(accept_encoding: str) -> bool:
    for coding in accept_encoding.split(","):
        name, _, weight = coding.replace(" ", "").partition(";")
        if name == "gzip":
            return weight.rstrip("0.") != "q="
    return False


async def show_health(_: web.Request) -> web.Response:
    return web.Response(text="Wattline exporter is healthy.\n")


async def show_readiness(request: web.Request) -> web.Response:
    if not request.app[ENDPOINTS].sensors.is_ready:
        return web.Response(status=503, text="The sources have not been read yet.\n")
    return web.Response(text="Wattline exporter is ready.\n")


async def show_landing(request: web.Request) -> web.Response:
    endpoints = request.app[ENDPOINTS]
    return landing_page(endpoints.sensors, endpoints.version)

"""Landing page, problem documents (RFC 9457) and the OpenAPI document."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from aiohttp import web
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from wattline.contract.api import RUN_ID_PATTERN, GpusJson
from wattline.contract.run import RunJson
from wattline_exporter.polling.hub import SensorHub
from wattline_exporter.requests.views import (
    DividedEnergyView,
    PackedRequests,
    RequestPage,
    RequestReceipt,
    RequestView,
)
from wattline_exporter.web.bodies import (
    BeginRequest,
    EndRequest,
    PhaseRequest,
    ProcessesRequest,
    RequestReport,
    WorkRequest,
)
from wattline_exporter.web.json_schema import schema_name, typed_dict_schemas


class Problem(BaseModel):
    """Error body by RFC 9457, sent as `application/problem+json`."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


def landing_page(sensors: SensorHub, version: str) -> web.Response:
    sources = "".join(
        f"<tr><td>{html.escape(name)}<td>{'up' if source.up else 'down'}"
        f"<td>{html.escape(source.failure)}"
        for name, source in sensors.live.sources.items()
    )
    gpus = "".join(
        f"<tr><td>{html.escape(gpu.info.index)}<td>{html.escape(gpu.info.name)}<td>{html.escape(gpu.info.uuid)}"
        for gpu in sensors.live.gpus.values()
    )
    page = _LANDING.format(version=html.escape(version), sources=sources, gpus=gpus)
    return web.Response(text=page, content_type="text/html")


_LANDING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Wattline exporter</title>
<style>
:root {{ color-scheme: light dark; }}
body {{
  font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem;
}}
td {{ padding: .1rem 1rem .1rem 0; }}
</style>
<h1>Wattline exporter</h1>
<p>Version {version}. Energy, carbon and joules per token of GPU work.</p>
<ul>
<li><a href="/metrics">/metrics</a>
<li><a href="/api/v1/runs">/api/v1/runs</a>, runs; POST starts one
<li><a href="/api/v1/gpus">/api/v1/gpus</a>, responding GPUs
<li>/api/v1/runs/RUN_ID/requests, requests of a server; POST reports them
<li>/api/v1/requests/REQUEST_ID, energy of a request
<li>/v1/traces, OTLP traces of servers (POST, with --otlp.traces)
<li>/api/v1/query?query=metric[300s], local history
<li><a href="/api/v1/openapi.json">/api/v1/openapi.json</a>, OpenAPI document
<li><a href="/-/healthy">/-/healthy</a>, <a href="/-/ready">/-/ready</a>
</ul>
<h2>Sources</h2>
<table>{sources}</table>
<h2>GPUs</h2>
<table>{gpus}</table>
</html>
"""


_RENAMED = {413: "Content Too Large", 422: "Unprocessable Content"}
"""Reason phrases that http.HTTPStatus spells as before RFC 9110 up to Python 3.12."""


def problem_response(
    status: int, detail: str, headers: Mapping[str, str] | None = None
) -> web.Response:
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


_REF = "#/components/schemas/"
_STEPS: tuple[tuple[str, type[BaseModel], str], ...] = (
    ("processes", ProcessesRequest, "Add processes to a run, at any time."),
    (
        "work",
        WorkRequest,
        "Report a contributor's cumulative totals; an empty body only renews the lease.",
    ),
    ("phase", PhaseRequest, "Start a phase of a run."),
    ("end", EndRequest, "End a run; repeated calls return the same response."),
)
_RUN_ID = {
    "name": "run_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": RUN_ID_PATTERN},
}
_STATE = {
    "name": "state",
    "in": "query",
    "schema": {"type": "string", "enum": ["running", "ended"]},
}
_PID = {
    "name": "pid",
    "in": "query",
    "schema": {"type": "array", "items": {"type": "integer", "minimum": 1}},
}
_PID_NAMESPACE = {
    "name": "pid_namespace",
    "in": "query",
    "schema": {"type": "integer", "minimum": 0},
}
_LIMIT = {
    "name": "limit",
    "in": "query",
    "schema": {"type": "integer", "minimum": 1, "maximum": 1_000, "default": 1_000},
}
_BEFORE = {
    "name": "before",
    "in": "query",
    "description": "Id of the last run of the page before.",
    "schema": {"type": "string"},
}
_QUERY = {
    "name": "query",
    "in": "query",
    "required": True,
    "schema": {"type": "string"},
    "example": 'wattline_gpu_power_watts{gpu="0"}[300s]',
}
_REQUEST_ID = {
    "name": "request_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": 128},
}
_PAGE = [
    {
        "name": "start",
        "in": "query",
        "description": "Earliest end, Unix seconds.",
        "schema": {"type": "number"},
    },
    {
        "name": "end",
        "in": "query",
        "description": "End before this time.",
        "schema": {"type": "number"},
    },
    {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1_000},
    },
    {
        "name": "after",
        "in": "query",
        "description": "`next` of the page before.",
        "schema": {"type": "string"},
    },
]
_OBJECT = {"type": "object"}
_TIME = {
    "name": "time",
    "in": "query",
    "description": "Unix seconds; default: now.",
    "schema": {"type": "number"},
}


def openapi_document(version: str) -> dict[str, Any]:
    bodies: list[type] = [BeginRequest, RequestReport, *(model for _, model, _ in _STEPS)]
    answers: list[type] = [
        DividedEnergyView,
        PackedRequests,
        RequestPage,
        RequestReceipt,
        RequestView,
        Problem,
    ]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Wattline exporter",
            "version": version,
            "summary": "Runs and history of this node.",
        },
        "paths": _paths(),
        "components": {
            "schemas": {
                **_schemas(bodies, "validation"),
                **_schemas(answers, "serialization"),
                **typed_dict_schemas(RunJson, _REF),
                **typed_dict_schemas(GpusJson, _REF),
            },
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{}, {"basic": []}, {"token": []}],
    }


def _paths() -> dict[str, Any]:
    run = {"$ref": _REF + schema_name(RunJson)}
    gpus = {"$ref": _REF + schema_name(GpusJson)}
    begin = _operation("Start a run.", {"200": run, "201": run}, body=BeginRequest)
    steps = {
        f"/api/v1/runs/{{run_id}}/{name}": {
            "parameters": [_RUN_ID],
            "post": _operation(what, {"200": run}, body=model),
        }
        for name, model, what in _STEPS
    }
    listed = _operation(
        "List runs, newest first.",
        {"200": {"type": "array", "items": run}},
        parameters=[_STATE, _LIMIT, _BEFORE, _PID, _PID_NAMESPACE],
    )
    report = _operation(
        "Report requests of a server.", {"202": _ref(RequestReceipt)}, body=RequestReport
    )
    requests = _operation("List requests of a run.", {"200": _ref(RequestPage)}, parameters=_PAGE)
    energy = _ref(RequestView)
    request = _operation(
        "Show the energy of a request; 202 while pending. A final one may have none.",
        {"200": energy, "202": energy},
        parameters=[
            {
                "name": "run_id",
                "in": "query",
                "description": "Its run.",
                "schema": {"type": "string"},
            }
        ],
    )
    history = _operation("Query the local history.", {"200": _OBJECT}, parameters=[_QUERY, _TIME])
    return {
        "/api/v1/runs": {"get": listed, "post": begin},
        "/api/v1/runs/{run_id}": {
            "parameters": [_RUN_ID],
            "get": _operation("Show a run.", {"200": run}),
        },
        **steps,
        "/api/v1/runs/{run_id}/requests": {
            "parameters": [_RUN_ID],
            "get": requests,
            "post": report,
        },
        "/api/v1/runs/{run_id}/requests/packed": {
            "parameters": [_RUN_ID],
            "get": _operation(
                "Read stored requests of a run with their energies, for the analyzer.",
                {"200": _ref(PackedRequests)},
            ),
        },
        "/api/v1/runs/{run_id}/requests/divided": {
            "parameters": [_RUN_ID],
            "get": _operation(
                "Read the divided energy of a run, for the analyzer.",
                {"200": _ref(DividedEnergyView)},
            ),
        },
        "/api/v1/requests/{request_id}": {"parameters": [_REQUEST_ID], "get": request},
        "/api/v1/gpus": {"get": _operation("List responding GPUs.", {"200": gpus})},
        "/api/v1/carbon": {
            "get": _operation("List carbon intensities, for other exporters.", {"200": _OBJECT})
        },
        "/api/v1/query": {"get": history},
    }


def _operation(
    summary: str,
    schemas: dict[str, dict[str, Any]],
    *,
    body: type | None = None,
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    problem = {"description": "Cause and remedy.", "content": {"application/problem+json": {}}}
    responses: dict[str, Any] = {
        status: {"description": summary, "content": {"application/json": {"schema": schema}}}
        for status, schema in schemas.items()
    }
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {**responses, "4XX": problem, "503": problem},
    }
    if body:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _ref(body)}},
        }
    if parameters:
        operation["parameters"] = parameters
    return operation


def _schemas(models: Iterable[type], mode: JsonSchemaMode) -> dict[str, Any]:
    """Return the JSON schemas of the models and of their parts, by name."""
    inputs: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = [
        (model.__name__, mode, TypeAdapter(model)) for model in models
    ]
    _, schemas = TypeAdapter.json_schemas(inputs, ref_template=_REF + "{model}")
    return dict(schemas["$defs"])


def _ref(model: type) -> dict[str, Any]:
    return {"$ref": _REF + model.__name__}

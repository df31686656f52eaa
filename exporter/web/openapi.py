"""OpenAPI document of the API, generated from its models."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from exporter.contract.run import (
    RUN_ID_PATTERN,
    BeginRequest,
    EndRequest,
    Gpus,
    PhaseRequest,
    Problem,
    ProcessesRequest,
    Run,
    WorkRequest,
)

_REF = "#/components/schemas/"
_STEPS: tuple[tuple[str, type[BaseModel], str], ...] = (
    ("processes", ProcessesRequest, "Add processes to a run, at any time."),
    ("work", WorkRequest, "Report a contributor's cumulative totals; an empty body only renews the lease."),
    ("phase", PhaseRequest, "Start a phase of a run."),
    ("end", EndRequest, "End a run; repeated calls return the same response."),
)
_RUN_ID = {"name": "run_id", "in": "path", "required": True, "schema": {"type": "string", "pattern": RUN_ID_PATTERN}}
_STATE = {"name": "state", "in": "query", "schema": {"type": "string", "enum": ["running", "ended"]}}
_LIMIT = {
    "name": "limit",
    "in": "query",
    "schema": {"type": "integer", "minimum": 1, "maximum": 1_000, "default": 1_000},
}
_QUERY = {
    "name": "query",
    "in": "query",
    "required": True,
    "schema": {"type": "string"},
    "example": 'wattline_gpu_power_watts{gpu="0"}[300s]',
}
_TIME = {"name": "time", "in": "query", "description": "Unix seconds; default: now.", "schema": {"type": "number"}}


def openapi_document(version: str) -> dict[str, Any]:
    from pydantic.json_schema import models_json_schema

    models: list[type[BaseModel]] = [BeginRequest, *(model for _, model, _ in _STEPS)]
    _, bodies = models_json_schema([(model, "validation") for model in models], ref_template=_REF + "{model}")
    _, answers = models_json_schema(
        [(model, "serialization") for model in (Run, Gpus, Problem)], ref_template=_REF + "{model}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Wattline exporter", "version": version, "summary": "Runs and history of this node."},
        "paths": _paths(),
        "components": {
            "schemas": {**bodies["$defs"], **answers["$defs"]},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{}, {"basic": []}, {"token": []}],
    }


def _paths() -> dict[str, Any]:
    run = _ref(Run)
    begin = _operation("Start a run.", {"200": run, "201": run}, body=BeginRequest)
    steps = {
        f"/api/v1/runs/{{run_id}}/{name}": {"parameters": [_RUN_ID], "post": _operation(what, {"200": run}, body=model)}
        for name, model, what in _STEPS
    }
    listed = _operation(
        "List runs, newest first.", {"200": {"type": "array", "items": run}}, parameters=[_STATE, _LIMIT]
    )
    history = _operation("Query the local history.", {"200": {"type": "object"}}, parameters=[_QUERY, _TIME])
    return {
        "/api/v1/runs": {"get": listed, "post": begin},
        "/api/v1/runs/{run_id}": {"parameters": [_RUN_ID], "get": _operation("Show a run.", {"200": run})},
        **steps,
        "/api/v1/gpus": {"get": _operation("List responding GPUs.", {"200": _ref(Gpus)})},
        "/api/v1/query": {"get": history},
    }


def _operation(
    summary: str,
    answers: dict[str, dict[str, Any]],
    *,
    body: type[BaseModel] | None = None,
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    problem = {"description": "Cause and remedy.", "content": {"application/problem+json": {}}}
    responses: dict[str, Any] = {
        status: {"description": summary, "content": {"application/json": {"schema": schema}}}
        for status, schema in answers.items()
    }
    operation: dict[str, Any] = {"summary": summary, "responses": {**responses, "4XX": problem, "503": problem}}
    if body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(body)}}}
    if parameters:
        operation["parameters"] = parameters
    return operation


def _ref(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": _REF + model.__name__}

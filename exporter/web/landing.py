"""Landing page at /."""

from __future__ import annotations

import html
from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import web

from exporter.contract.run import Problem
from exporter.sensors.hub import SensorHub


def landing_page(sensors: SensorHub, version: str) -> web.Response:
    sources = "".join(
        f"<tr><td>{html.escape(name)}<td>{'up' if source.up else 'down'}<td>{html.escape(source.trouble)}"
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
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }}
td {{ padding: .1rem 1rem .1rem 0; }}
</style>
<h1>Wattline exporter</h1>
<p>Version {version}. Energy, carbon and joules per token of GPU work.</p>
<ul>
<li><a href="/metrics">/metrics</a>
<li><a href="/api/v1/runs">/api/v1/runs</a>, runs; POST starts one
<li><a href="/api/v1/gpus">/api/v1/gpus</a>, responding GPUs
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

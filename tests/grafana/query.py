"""Queries of panels as Grafana sends them, with variables filled in."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.grafana.cluster import END_S, SERVE

DASHBOARDS = Path(__file__).parents[2] / "grafana" / "dashboards"
BUILT_IN = {
    "__range": "3600s",
    "__rate_interval": "60s",
    "__interval_ms": "300000",
    "__interval": "300s",
}
CHOSEN = {
    "cluster": ".*",
    "node": ".*",
    "gpu": ".*",
    "model": ".*",
    "experiment": ".*",
    "price": "0.25",
}
STEP_S = 15
AT_S = END_S + 30
"""Time of the queries: the last scrapes are half a minute old."""


@dataclass(frozen=True)
class LastValue:
    """Labels and last value of a series."""

    labels: Mapping[str, str]
    value: float


def boards() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def panels(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the panels that have queries."""
    yield from (panel for panel in board["panels"] if panel["type"] != "row")


def panel(board: str, title: str) -> dict[str, Any]:
    return next(each for each in panels(boards()[board]) if each["title"] == title)


def fill_variables(query: str, **chosen: str) -> str:
    """Fill in variables as Grafana does; an unknown variable stays, and the server rejects it."""
    for name, value in (BUILT_IN | CHOSEN | chosen).items():
        query = query.replace(f"${name}", value)
    return query


def fetch(server: str, path: str, **parameters: object) -> Any:
    url = f"{server}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)["data"]


def ask(server: str, target: Mapping[str, Any], end_s: float, **chosen: str) -> list[LastValue]:
    query = fill_variables(target["expr"], **chosen)
    if target.get("instant"):
        result = fetch(server, "query", query=query, time=end_s)["result"]
        return [LastValue(one["metric"], float(one["value"][1])) for one in result]
    result = fetch(server, "query_range", query=query, start=end_s - 3_600, end=end_s, step=STEP_S)[
        "result"
    ]
    return [LastValue(one["metric"], float(one["values"][-1][1])) for one in result]


def values(
    server: str, board: str, title: str, ref: str = "A", key: str | None = None, **chosen: str
) -> dict[Any, Any]:
    """Return values of a panel's query by the label `key`, or by all labels."""
    target = next(each for each in panel(board, title)["targets"] if each["refId"] == ref)
    result = ask(server, target, AT_S, run=SERVE.run_id, **chosen)
    return {
        one.labels.get(key, "") if key else tuple(sorted(one.labels.items())): one.value
        for one in result
    }

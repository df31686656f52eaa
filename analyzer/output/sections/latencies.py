"""Latencies that a job measured itself, as one table of milliseconds instead of a line each."""

from __future__ import annotations

import re
from collections.abc import Mapping

from analyzer.model.report import Report
from analyzer.output import units
from analyzer.output.sections.base import Section

_NAMED = re.compile(r"(?P<what>\w+)_seconds_(?P<statistic>mean|min|max|std|p\d{1,2}(?:_\d+)?)")
_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "end to end"}
_ORDER = ("mean", "std", "min", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99_9", "max")


def by_latency(results: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Seconds by statistic, by what they are of; a value that stands alone is none."""
    found: dict[str, dict[str, float]] = {}
    for name, value_s in results.items():
        if match := _NAMED.fullmatch(name):
            found.setdefault(match["what"], {})[match["statistic"]] = value_s
    named = sorted(found, key=lambda what: [*_NAMES, what].index(what))
    return {what: found[what] for what in named if len(found[what]) > 1}


def others(results: Mapping[str, float]) -> dict[str, float]:
    """The results that are not in the table of latencies."""
    tabled = {f"{what}_seconds_{statistic}" for what, of in by_latency(results).items() for statistic in of}
    return {name: value for name, value in results.items() if name not in tabled}


def latency_section(report: Report) -> Section | None:
    found = by_latency(report.results)
    if not found:
        return None
    seen = {name for statistics in found.values() for name in statistics}
    columns = [name for name in _ORDER if name in seen] + sorted(seen - set(_ORDER))
    rows = tuple(
        (_name(what), *(units.number(1_000 * of[name]) if name in of else "–" for name in columns))
        for what, of in found.items()
    )
    return Section("Latency, ms", ("", *(name.replace("_", ".") for name in columns)), rows)


def _name(what: str) -> str:
    return _NAMES.get(what, what.replace("_", " "))

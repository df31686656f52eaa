"""What to know of the figures of a range. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from analyzer.energy.checks import Finding
from analyzer.energy.states import SCRAPED
from analyzer.sources.untagged.device_energy import Figure
from analyzer.sources.untagged.schemas import WATTLINE

_NAMED = 6


def of_range(figures: Sequence[Figure]) -> list[Finding]:
    return [
        Finding("note", "untagged_range", "", _origin(figures)),
        *(found for figure in figures for say in (_scraped, _cached, _cut, _idle) if (found := say(figure))),
    ]


def tagged(run_ids: Collection[str]) -> Finding:
    names = sorted(run_ids)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    text = (
        f"tagged runs were on in the range, whose energy is in its own: {', '.join(names[:_NAMED])}{more}; see: "
        "analyzer report --run-id"
    )
    return Finding("note", "tagged_runs", "", text)


def _origin(figures: Sequence[Figure]) -> str:
    schemas = ", ".join(dict.fromkeys(figure.meter.schema.name for figure in figures))
    return (
        f"a range that no run tagged, by {schemas}: its begin and end lie between scrapes. There a counter's energy is "
        "interpolated, and the interval holds whatever the power can have been in between"
    )


def _scraped(figure: Figure) -> Finding | None:
    if figure.energy.method != SCRAPED:
        return None
    text = (
        f"it has no energy counter here: its energy is the integral of power as it was scraped, every "
        f"{figure.energy.spacing_s or 0:.3g} s; what the power was between is not known, so neither is the interval"
    )
    return Finding("warning", "scraped_power", figure.meter.name, text)


def _cached(figure: Figure) -> Finding | None:
    meter = figure.meter
    if meter.cached_s is None or meter.schema is WATTLINE:
        return None
    text = (
        f"{meter.schema.name} reads it every {meter.cached_s:.3g} s and shows the same again in between: repeated "
        f"samples are left out, and a value can be {meter.age_s:.3g} s old, which is in the interval"
    )
    return Finding("note", "cached_samples", meter.name, text)


def _cut(figure: Figure) -> Finding | None:
    if figure.whole or figure.energy.method == SCRAPED:
        return None
    text = (
        f"its samples cover {100 * (figure.energy.covered_ratio or 0):.1f} % of the range, and its energy is that of "
        "this part: no energy is made up for the rest"
    )
    return Finding("warning", "uncovered", figure.meter.name, text)


def _idle(figure: Figure) -> Finding | None:
    if figure.meter.component != "gpu" or figure.meter.has_utilization:
        return None
    text = "its utilization is not exported, so that nobody knows when it was idle: no idle power is given"
    return Finding("note", "idle_unknown", figure.meter.name, text)

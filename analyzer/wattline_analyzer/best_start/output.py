"""Output of `analyzer best-start`."""

from __future__ import annotations

from typing import Any

from wattline.figures import Figure, energy_text
from wattline_analyzer.carbon.best_start import CLEAR_RATIO, Start, Starts
from wattline_analyzer.core import units
from wattline_analyzer.core.tables import (
    Cell,
    Column,
    CommandOutput,
    Table,
    grams_cell,
    text_cell,
    time_cell,
)

_COLUMNS = (
    Column("Start", text=True),
    Column("Time", "start_unix_seconds", text=True, whole=True),
    Column("Emissions", "emissions_grams"),
    Column("Change from now"),
)


def best_start_output(starts: Starts) -> CommandOutput:
    first = [("now", starts.now)] if starts.now else []
    shown = _table(starts, [*first, ("best", starts.best), ("worst", starts.worst)])
    every = _table(starts, [("", start) for start in starts.every]).records()
    parts: list[str | Table] = [best_start_verdict(starts), shown, _basis(starts)]
    if starts.cut_short:
        parts.append(_cut_short(starts))
    return CommandOutput(parts, _document(starts), every)


def best_start_verdict(starts: Starts) -> str:
    if starts.saved_ratio is None:
        return (
            f"lowest emissions: start at {_when(starts.best, starts)}; a start now is outside "
            "the forecast"
        )
    if starts.best is starts.now:
        return "start now: no later start is better"
    if not starts.clear:
        return (
            f"no clear difference: the best start saves less than {100 * CLEAR_RATIO:.0f} % "
            "compared with now"
        )
    return (
        f"start at {_when(starts.best, starts)}: saves {100 * starts.saved_ratio:.0f} % "
        "compared with now"
    )


def _when(start: Start, starts: Starts) -> str:
    wait_h = (start.at_s - starts.asked_s) / 3_600
    return (
        f"{units.moment(start.at_s)}, in {wait_h:.1f} h"
        if wait_h > 0
        else f"{units.moment(start.at_s)}, now"
    )


def _table(found: Starts, starts: list[tuple[str, Start]]) -> Table:
    largest_g = units.largest(start.mass_g for _, start in starts)
    rows = [
        [
            text_cell(name),
            time_cell(start.at_s),
            grams_cell(start.mass_g, largest_g),
            _change(start, found),
        ]
        for name, start in starts
    ]
    return Table("", _COLUMNS, rows)


def _change(start: Start, starts: Starts) -> Cell:
    if starts.now is None or starts.now.mass_g <= 0 or start is starts.now:
        return Cell("")
    ratio = start.mass_g / starts.now.mass_g - 1
    return Cell(f"{100 * ratio:+.1f} %", ratio)


def _basis(starts: Starts) -> str:
    forecast = starts.forecast
    profile = starts.profile
    who = f"{forecast.provider} {forecast.region}".strip()
    age = (
        "age unknown"
        if forecast.issued_s is None
        else f"{max(starts.asked_s - forecast.issued_s, 0) / 3_600:.1f} h old"
    )
    return (
        f"{energy_text(Figure(profile.energy_j))} ({profile.boundary}) over "
        f"{units.duration(profile.duration_s)}; "
        f"{forecast.basis} intensity, forecast by {who}, {age}; without interval"
    )


def _cut_short(starts: Starts) -> str:
    return (
        f"the forecast ends at {units.moment(starts.forecast.end_s)}: starts after "
        f"{units.moment(starts.every[-1].at_s)} are not included"
    )


def _record(start: Start) -> dict[str, float]:
    return {"start_unix_seconds": start.at_s, "emissions_grams": start.mass_g}


def _document(starts: Starts) -> dict[str, Any]:
    forecast = starts.forecast
    return {
        "version": 1,
        "verdict": best_start_verdict(starts),
        "clear": starts.clear,
        "saved_ratio": starts.saved_ratio,
        "now": _record(starts.now) if starts.now else None,
        "best": _record(starts.best),
        "worst": _record(starts.worst),
        "energy_joules": starts.profile.energy_j,
        "boundary": starts.profile.boundary,
        "duration_seconds": starts.profile.duration_s,
        "forecast": {
            "provider": forecast.provider,
            "region": forecast.region or None,
            "basis": forecast.basis,
            "made_at_unix_seconds": forecast.issued_s,
            "ends_at_unix_seconds": forecast.end_s,
            "age_seconds": None
            if forecast.issued_s is None
            else max(starts.asked_s - forecast.issued_s, 0.0),
        },
        "starts_beyond_forecast": starts.cut_short,
        "starts": [_record(start) for start in starts.every],
    }

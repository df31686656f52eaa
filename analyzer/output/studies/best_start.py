"""Output of `analyzer best-start`."""

from __future__ import annotations

from typing import Any

from analyzer.carbon.best_start import CLEAR_RATIO, Start, Starts
from analyzer.model.interval import JOULES_PER_KWH
from analyzer.output import units
from analyzer.output.table import Cell, Column, CommandOutput, Table, grams_cell, text_cell, time_cell

_COLUMNS = (
    Column("Start", text=True),
    Column("Time", "start_unix_seconds", text=True, whole=True),
    Column("Emissions", "emissions_grams"),
    Column("Change from now"),
)


def best_start_output(found: Starts) -> CommandOutput:
    first = [("now", found.now)] if found.now else []
    shown = _table(found, [*first, ("best", found.best), ("worst", found.worst)])
    every = _table(found, [("", start) for start in found.every]).records()
    parts: list[str | Table] = [best_start_verdict(found), shown, _basis(found)]
    if found.cut_short:
        parts.append(_cut_short(found))
    return CommandOutput(parts, _document(found), every)


def best_start_verdict(found: Starts) -> str:
    if found.saved_ratio is None:
        return f"lowest emissions: start at {_when(found.best, found)}; a start now is outside the forecast"
    if not found.clear:
        return f"no clear difference: the best start saves less than {100 * CLEAR_RATIO:.0f} % compared with now"
    return f"start at {_when(found.best, found)}: saves {100 * found.saved_ratio:.0f} % compared with now"


def _when(start: Start, found: Starts) -> str:
    wait_h = (start.at_s - found.asked_s) / 3_600
    return f"{units.moment(start.at_s)}, in {wait_h:.1f} h" if wait_h > 0 else f"{units.moment(start.at_s)}, now"


def _table(found: Starts, starts: list[tuple[str, Start]]) -> Table:
    largest_g = units.largest(start.mass_g for _, start in starts)
    rows = [
        [text_cell(name), time_cell(start.at_s), grams_cell(start.mass_g, largest_g), _change(start, found)]
        for name, start in starts
    ]
    return Table("", _COLUMNS, rows)


def _change(start: Start, found: Starts) -> Cell:
    if found.now is None or found.now.mass_g <= 0 or start is found.now:
        return Cell("")
    ratio = start.mass_g / found.now.mass_g - 1
    return Cell(f"{100 * ratio:+.1f} %", ratio)


def _basis(found: Starts) -> str:
    forecast, profile = found.forecast, found.profile
    who = f"{forecast.provider} {forecast.region}".strip()
    age = (
        "age unknown" if forecast.issued_s is None else f"{max(found.asked_s - forecast.issued_s, 0) / 3_600:.1f} h old"
    )
    return (
        f"{profile.energy_j / JOULES_PER_KWH:.4g} kWh ({profile.boundary}) over {units.duration(profile.duration_s)}; "
        f"{forecast.basis} intensity, forecast by {who}, {age}"
    )


def _cut_short(found: Starts) -> str:
    return (
        f"the forecast ends at {units.moment(found.forecast.end_s)}: starts after "
        f"{units.moment(found.every[-1].at_s)} are not included"
    )


def _record(start: Start) -> dict[str, float]:
    return {"start_unix_seconds": start.at_s, "emissions_grams": start.mass_g}


def _document(found: Starts) -> dict[str, Any]:
    forecast = found.forecast
    return {
        "version": 1,
        "verdict": best_start_verdict(found),
        "clear": found.clear,
        "saved_ratio": found.saved_ratio,
        "now": _record(found.now) if found.now else None,
        "best": _record(found.best),
        "worst": _record(found.worst),
        "energy_joules": found.profile.energy_j,
        "boundary": found.profile.boundary,
        "duration_seconds": found.profile.duration_s,
        "forecast": {
            "provider": forecast.provider,
            "region": forecast.region or None,
            "basis": forecast.basis,
            "made_at_unix_seconds": forecast.issued_s,
            "ends_at_unix_seconds": forecast.end_s,
            "age_seconds": None if forecast.issued_s is None else max(found.asked_s - forecast.issued_s, 0.0),
        },
        "starts_beyond_forecast": found.cut_short,
        "starts": [_record(start) for start in found.every],
    }

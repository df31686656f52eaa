"""The best start of a run, as `analyzer best-start` shows it."""

from __future__ import annotations

from typing import Any

from analyzer.carbon.best_start import CLEAR_RATIO, Start, Starts
from analyzer.model.interval import JOULES_PER_KWH
from analyzer.output import units
from analyzer.output.view import Table, View


def view(found: Starts) -> View:
    named = _named(found)
    of = units.largest(start.mass_g for _, start in named)
    rows = [_row(name, start, found, of) for name, start in named]
    parts: list[str | Table] = [verdict(found), Table(["start", "at", "emissions", "against now"], rows), _basis(found)]
    if found.cut_short:
        parts.append(_cut_short(found))
    return View(parts, _document(found), [_start(start) for start in found.every])


def _named(found: Starts) -> list[tuple[str, Start]]:
    first = [("now", found.now)] if found.now else []
    return [*first, ("best", found.best), ("worst", found.worst)]


def verdict(found: Starts) -> str:
    if found.saved_ratio is None:
        return f"the least emissions are those of a start at {_when(found.best, found)}; one now is not forecast"
    if not found.clear:
        return f"no clear difference: the best start saves less than {100 * CLEAR_RATIO:.0f} % against now"
    return f"start at {_when(found.best, found)}: {100 * found.saved_ratio:.0f} % less than now"


def _when(start: Start, found: Starts) -> str:
    wait_h = (start.at_s - found.asked_s) / 3_600
    return f"{units.moment(start.at_s)}, in {wait_h:.1f} h" if wait_h > 0 else f"{units.moment(start.at_s)}, now"


def _row(name: str, start: Start, found: Starts, of: float) -> list[str]:
    now_g = found.now.mass_g if found.now else 0.0
    against = f"{100 * (start.mass_g / now_g - 1):+.1f} %" if now_g > 0 and start is not found.now else ""
    return [name, units.moment(start.at_s), units.plain_mass(start.mass_g, of), against]


def _basis(found: Starts) -> str:
    forecast, profile = found.forecast, found.profile
    who = f"{forecast.provider} {forecast.region}".strip()
    age = (
        "of unknown age" if forecast.made_s is None else f"{max(found.asked_s - forecast.made_s, 0) / 3_600:.1f} h old"
    )
    return (
        f"{profile.energy_j / JOULES_PER_KWH:.4g} kWh ({profile.boundary}) over {units.duration(profile.duration_s)}; "
        f"{forecast.basis} intensity, forecast by {who}, {age}"
    )


def _cut_short(found: Starts) -> str:
    return (
        f"the forecast ends at {units.moment(found.forecast.end_s)}: starts later than "
        f"{units.moment(found.every[-1].at_s)} would run beyond it and are not looked at"
    )


def _start(start: Start) -> dict[str, float]:
    return {"start_unix_seconds": start.at_s, "emissions_grams": start.mass_g}


def _document(found: Starts) -> dict[str, Any]:
    forecast = found.forecast
    return {
        "version": 1,
        "verdict": verdict(found),
        "clear": found.clear,
        "saved_ratio": found.saved_ratio,
        "now": _start(found.now) if found.now else None,
        "best": _start(found.best),
        "worst": _start(found.worst),
        "energy_joules": found.profile.energy_j,
        "boundary": found.profile.boundary,
        "duration_seconds": found.profile.duration_s,
        "forecast": {
            "provider": forecast.provider,
            "region": forecast.region or None,
            "basis": forecast.basis,
            "made_at_unix_seconds": forecast.made_s,
            "ends_at_unix_seconds": forecast.end_s,
            "age_seconds": None if forecast.made_s is None else max(found.asked_s - forecast.made_s, 0.0),
        },
        "starts_beyond_forecast": found.cut_short,
        "starts": [_start(start) for start in found.every],
    }

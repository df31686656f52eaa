"""Restated emissions and the SCI, as parts of the report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analyzer.carbon.restate import RestatedSlot, Restatement
from analyzer.carbon.sci import Sci
from analyzer.model.interval import Interval
from analyzer.model.report import Report
from analyzer.output import units
from analyzer.output.sections.base import Section
from analyzer.output.sections.boundaries import unit_name

_MOST_ROWS = 48


def restated_section(report: Report) -> Section | None:
    """None where nothing was restated."""
    if not report.restated:
        return None
    columns = ("from", "basis", "by", "energy", "g/kWh then", "g/kWh now", "grams")
    slots = [(one, slot) for one in report.restated for slot in one.slots]
    of = units.largest(slot.energy_j for _, slot in slots), units.largest(slot.mass_g for _, slot in slots)
    rows = [tuple(_slot_row(one, slot, *of)) for one, slot in slots]
    notes = [_summary(one) for one in report.restated]
    if len(rows) > _MOST_ROWS:
        notes.append(f"{len(rows) - _MOST_ROWS} more slots are in --format json")
    return Section("Emissions restated", columns, tuple(rows[:_MOST_ROWS]), "; ".join(notes), words=3)


def _slot_row(one: Restatement, slot: RestatedSlot, of_j: float, of_g: float) -> Iterator[str]:
    yield units.moment(slot.start_s)
    yield one.past.basis
    yield f"{slot.provider}, {slot.quality}" if slot.provider else "not known"
    yield units.plain_energy(slot.energy_j, of_j)
    yield units.number(slot.before_g_per_kwh) if slot.before_g_per_kwh is not None else "–"
    yield units.number(slot.grams_per_kwh) if slot.grams_per_kwh is not None else "–"
    yield units.plain_mass(slot.mass_g, of_g).removesuffix(" CO₂eq") if slot.mass_g is not None else "–"


def _summary(one: Restatement) -> str:
    text = f"{one.past.basis}, restated: {units.plain_mass(one.mass_g)}"
    if one.ledger_g is None:
        return f"{text}; the ledger has none to compare with"
    text += f", by the ledger {units.plain_mass(one.ledger_g)}"
    return text if one.difference_ratio is None else f"{text}: {100 * one.difference_ratio:+.1f} %"


def restated_data(report: Report) -> list[dict[str, Any]]:
    """For the JSON document."""
    return [
        {
            "basis": one.past.basis,
            "provider": one.past.provider,
            "region": one.past.region or None,
            "emissions_grams": one.mass_g,
            "ledger_emissions_grams": one.ledger_g,
            "difference_ratio": one.difference_ratio,
            "actual_energy_ratio": one.share_of("actual"),
            "unknown_energy_ratio": one.share_of(""),
            "slots": [_slot_data(slot) for slot in one.slots],
        }
        for one in report.restated
    ]


def _slot_data(slot: RestatedSlot) -> dict[str, Any]:
    return {
        "start_unix_seconds": slot.start_s,
        "end_unix_seconds": slot.end_s,
        "provider": slot.provider or None,
        "quality": slot.quality or None,
        "intensity_grams_per_kilowatt_hour": slot.grams_per_kwh,
        "intensity_then_grams_per_kilowatt_hour": slot.before_g_per_kwh,
        "energy_joules": {component: energy.value for component, energy in slot.energy.items()},
        "emissions_grams": slot.mass_g,
    }


def sci_section(report: Report) -> Section | None:
    """None where nobody asked for it."""
    if not report.sci:
        return None
    rows = [row for one in report.sci for row in _sci_rows(one)]
    note = (
        "(O + M) per R, ISO/IEC 21031:2024; O the energy's grams, M the hardware's share, over the whole run; "
        "M is given, not measured"
    )
    columns = ("per", "boundary", "intensity", "O", "M", "SCI")
    return Section("Software carbon intensity (SCI)", columns, tuple(rows), note, words=3)


def _sci_rows(one: Sci) -> Iterator[tuple[str, ...]]:
    where = (one.boundary, f"{one.basis}, {one.origin}")
    yield (
        "run",
        *where,
        *(_mass(part) for part in (Interval(one.operational.value), Interval(one.embodied_g), one.whole)),
    )
    for unit, amount in one.amounts:
        parts = Interval(one.operational.value / amount), Interval(one.embodied_g / amount), one.each(one.whole, unit)
        yield (units.singular(unit_name(unit)), *where, *(_mass(part) for part in parts))


def _mass(quantity: Interval) -> str:
    """As `units.mass`, and in µg below a mg, as of a token."""
    if abs(quantity.value) < 1e-3:
        micro = quantity.scaled(1e6)
        return f"{units.plain(micro.value, micro.half or 0.0)} µg"
    return units.mass(quantity).removesuffix(" CO₂eq")


def sci_data(report: Report) -> list[dict[str, Any]]:
    """For the JSON document."""
    return [
        {
            "boundary": one.boundary,
            "basis": one.basis,
            "origin": one.origin,
            "operational_grams": one.operational.value,
            "operational_uncertainty_grams": one.operational.half,
            "embodied_grams": one.embodied_g,
            "sci_grams_per_run": one.whole.value,
            "sci_uncertainty_grams_per_run": one.whole.half,
            "sci_grams_per_unit": {unit: quantity.value for unit, quantity in one.per_unit.items()},
            "sci_uncertainty_grams_per_unit": {unit: quantity.half for unit, quantity in one.per_unit.items()},
        }
        for one in report.sci
    ]

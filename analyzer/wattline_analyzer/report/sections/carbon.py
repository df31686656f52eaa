"""Emissions, carbon intensity slots, restated emissions and the SCI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wattline.contract.work import unit_of_one
from wattline.figures import Figure, mass_text, number_text
from wattline_analyzer.core import units
from wattline_analyzer.core.emissions import Emission, RestatedSlot, Restatement, Sci, origin_text
from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.tables import (
    Cell,
    Column,
    Table,
    figure_columns,
    grams_cell,
    joules_cell,
    mass_cell,
    number_cell,
    text_cell,
    text_cells,
    text_columns,
    time_cell,
)
from wattline_analyzer.report.sections.boundaries import energy_basis, unit_name

_MOST_ROWS = 48


def emission_table(report: Report) -> Table:
    columns = [
        *(Column("Component", text=True), Column("CO₂eq")),
        *text_columns("Basis", "Intensity", "Origin"),
    ]
    largest_g = units.largest(one.mass_g for one in report.emissions)
    rows = [
        [
            text_cell(one.component.upper()),
            mass_cell(one.mass_g, largest_g, estimated=one.estimated),
            *text_cells((one.basis, _intensity_text(one), origin_text(one.origin))),
        ]
        for one in report.emissions
    ]
    notes = [
        (
            "Emissions by average and by marginal intensity answer different questions and are "
            "never "
            "added."
        )
    ]
    if any(total.energy_only for total in report.emission_totals):
        notes.append("± covers the energy only, not the carbon intensity.")
    return Table("Emissions", columns, rows, notes=[*notes, *_year_notes(report)])


def _year_notes(report: Report) -> Iterator[str]:
    """Yield a note with regions and year of the intensities that are yearly means."""
    years = {slot.region: slot.year for slot in report.carbon_slots if slot.year is not None}
    for year in sorted(set(years.values())):
        regions = ", ".join(sorted(region for region, own in years.items() if own == year))
        yield (
            f"static: the mean intensity of {regions} in {year} (Ember), not of the time of the "
            "run."
        )


def _intensity_text(one: Emission) -> str:
    return one.quality if one.grams_per_kwh is None else f"{one.grams_per_kwh:g} g/kWh"


def slot_table(report: Report) -> Table:
    columns = [
        Column("Start", text=True, whole=True),
        Column("Region", text=True),
        *figure_columns("Intensity", "GPU energy", "GPU emissions"),
        Column("Kind", text=True),
    ]
    largest_j = units.largest(slot.gpu_energy_j for slot in report.carbon_slots)
    largest_g = units.largest(slot.mass_g for slot in report.carbon_slots)
    rows = [
        [
            time_cell(slot.start_s),
            text_cell(slot.region),
            number_cell(slot.grams_per_kwh, "g/kWh"),
            joules_cell(slot.gpu_energy_j, largest_j),
            grams_cell(slot.mass_g, largest_g),
            text_cell(f"{slot.basis}, {slot.quality}"),
        ]
        for slot in report.carbon_slots
    ]
    note = (
        "The run's energy is distributed over the provider's slots in proportion to the raw "
        "samples."
    )
    return Table("Carbon intensity by slot", columns, rows, notes=(note, *_year_notes(report)))


def restated_table(report: Report) -> Table | None:
    if not report.restated:
        return None
    columns = [
        Column("Start", text=True, whole=True),
        *text_columns("Basis", "Provider"),
        *figure_columns("Energy", "Recorded, g/kWh", "Restated, g/kWh", "Emissions"),
    ]
    slots = [(one, slot) for one in report.restated for slot in one.slots]
    largest = (
        units.largest(slot.energy_j for _, slot in slots),
        units.largest(slot.mass_g for _, slot in slots),
    )
    rows = [_slot_row(one, slot, *largest) for one, slot in slots]
    notes = [_restated_note(one) for one in report.restated]
    if len(rows) > _MOST_ROWS:
        notes.append(f"{len(rows) - _MOST_ROWS} more slots: use --format json.")
    return Table("Restated emissions", columns, rows[:_MOST_ROWS], notes=notes)


def _slot_row(
    one: Restatement, slot: RestatedSlot, largest_j: float, largest_g: float
) -> list[Cell]:
    return [
        time_cell(slot.start_s),
        text_cell(one.past.basis),
        text_cell(f"{slot.provider}, {slot.quality}" if slot.provider else "unknown"),
        joules_cell(slot.energy_j, largest_j),
        number_cell(slot.before_g_per_kwh),
        number_cell(slot.grams_per_kwh),
        grams_cell(slot.mass_g, largest_g),
    ]


def _restated_note(one: Restatement) -> str:
    text = f"{one.past.basis}: restated {mass_text(Figure(one.mass_g))}"
    if one.ledger_g is None:
        return f"{text}; the ledger has no emissions to compare with"
    text += f", recorded {mass_text(Figure(one.ledger_g))}"
    return text if one.difference_ratio is None else f"{text} ({100 * one.difference_ratio:+.1f} %)"


def restated_records(report: Report) -> list[dict[str, Any]]:
    """Return the restated emissions for the JSON document."""
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
            "slots": [_slot_record(slot) for slot in one.slots],
        }
        for one in report.restated
    ]


def _slot_record(slot: RestatedSlot) -> dict[str, Any]:
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


def sci_table(report: Report) -> Table | None:
    if not report.sci:
        return None
    columns = [*text_columns("Per", "Boundary", "Intensity"), *figure_columns("O", "M", "SCI")]
    rows = [list(row) for one in report.sci for row in _sci_rows(one)]
    note = (
        "SCI = (O + M) per R, ISO/IEC 21031:2024. O: operational emissions. M: embodied emissions "
        "of the hardware for "
        "the time of the run, from user-supplied values."
    )
    apart = dict.fromkeys(
        unit_name(each.unit) for one in report.sci for each in one.units if each.apart
    )
    part = (
        f"O of {' and '.join(apart)} is of their energy per unit (work by boundary), not of the "
        "whole run's emissions; "
        "M is of the whole run."
    )
    notes = [note, *([part] if apart else [])]
    if any(one.attributed for one in report.sci):
        notes.append(
            "O of an attributed boundary is of the energy attributed to the run, since others used "
            "its devices as well."
        )
    return Table("Software carbon intensity (SCI)", columns, rows, notes=notes)


def _sci_rows(one: Sci) -> Iterator[list[Cell]]:
    boundary = f"{one.boundary}, attributed" if one.attributed else one.boundary
    where = text_cells((boundary, f"{one.basis}, {origin_text(one.origin)}"))
    whole = (Figure(one.operational.value), Figure(one.embodied_g), one.whole)
    yield [text_cell("run"), *where, *map(_sci_cell, whole)]
    for each in one.units:
        parts = (
            Figure(each.operational.value),
            Figure(one.embodied_g / each.amount),
            one.each(each),
        )
        yield [text_cell(unit_of_one(unit_name(each.unit))), *where, *map(_sci_cell, parts)]


def _sci_cell(mass: Figure) -> Cell:
    """Return a mass; below 1 mg in µg, as emissions per token are."""
    text = mass_text(mass).removesuffix(" CO₂eq")
    if abs(mass.number) < 1e-3:
        text = f"{number_text(mass.scaled(1e6))} µg"
    return Cell(text, mass.value, "g", mass.half_width)


def sci_records(report: Report) -> list[dict[str, Any]]:
    """Return the SCI for the JSON document."""
    return [
        {
            "boundary": one.boundary,
            "energy_basis": energy_basis(one.attributed),
            "basis": one.basis,
            "origin": one.origin,
            "operational_grams": one.operational.value,
            "operational_uncertainty_grams": one.operational.half_width,
            "embodied_grams": one.embodied_g,
            "sci_grams_per_run": one.whole.value,
            "sci_uncertainty_grams_per_run": one.whole.half_width,
            "operational_grams_per_unit": {each.unit: each.operational.value for each in one.units},
            "sci_grams_per_unit": {unit: quantity.value for unit, quantity in one.per_unit.items()},
            "sci_uncertainty_grams_per_unit": {
                unit: quantity.half_width for unit, quantity in one.per_unit.items()
            },
        }
        for one in report.sci
    ]

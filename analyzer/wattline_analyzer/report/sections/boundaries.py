"""Energy, work and cost within each system boundary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from wattline.contract.work import GFLOP
from wattline.figures import (
    JOULES_PER_KWH,
    JOULES_PER_WH,
    Figure,
    energy_text,
    number_text,
    significant_text,
)
from wattline_analyzer.core import units
from wattline_analyzer.core.run_report import Boundary, BoundaryUnitEnergy, Price, Report
from wattline_analyzer.core.tables import (
    Cell,
    Column,
    Table,
    energy_per_unit_cell,
    number_cell,
    text_cell,
)

_MILLION = 1e6


def boundary_table(report: Report) -> Table | None:
    if not report.boundaries:
        return None
    columns = [Column("Boundary", text=True), *(Column(unit) for unit in ("J", "Wh", "kWh"))]
    if report.price:
        columns.append(
            Column(f"{report.price.currency or 'Cost'}, {report.price.per_kwh:g} per kWh")
        )
    rows = [list(_energy_row(report, boundary)) for boundary in report.boundaries]
    return Table("Energy by boundary", columns, rows, notes=_notes(report))


def _energy_row(report: Report, boundary: Boundary) -> Iterator[Cell]:
    energy = boundary.energy
    yield text_cell(units.marked(boundary.name, _estimated(report, boundary)))
    for joules in (1.0, JOULES_PER_WH, JOULES_PER_KWH):
        # without the accuracy of the sensors, as the other columns of boundaries
        scaled = replace(energy.scaled(1 / joules), bias=None)
        yield Cell(number_text(scaled), energy.value, "J", energy.half_width)
    if report.price:
        yield number_cell(report.price.of(energy).value)


def _notes(report: Report) -> list[str]:
    """Return the components that are included or missing, and user-supplied factors."""
    notes = []
    missing = [
        name.upper()
        for name in ("cpu", "dram")
        if not any(name in one.components for one in report.boundaries)
    ]
    if missing:
        shared = {device.component.upper() for device in report.devices if device.shared}
        reasons = {
            "not measured": [name for name in missing if name.lower() not in report.energy],
            "shared with other runs": [
                name for name in missing if name.lower() in report.energy and name in shared
            ],
            "not measured on every node": [
                name for name in missing if name.lower() in report.energy and name not in shared
            ],
        }
        parts = [f"{' and '.join(names)} ({reason})" for reason, names in reasons.items() if names]
        notes.append(f"Not included: {', '.join(parts)}.")
    if any(device.shared for device in report.gpus):
        notes.append("GPUs that other runs used at the same time are included as a whole.")
    notes += [
        f"Of {boundary.name}, {energy_text(Figure(boundary.attributed_j))} are attributed to the "
        "run."
        for boundary in report.boundaries
        if boundary.attributed_j is not None
    ]
    pues = [boundary.pue for boundary in report.boundaries if boundary.pue is not None]
    if pues:
        notes.append(f"PUE {pues[0]:g} is user-supplied; the intervals cover the sensors only.")
    return notes


def boundary_work_table(report: Report) -> Table | None:
    every = list(_by_unit(report))
    if not every:
        return None
    largest_j = {
        name: units.largest(work.energy_per_unit for _, work in every if work.unit == name)
        for name in {work.unit for _, work in every}
    }
    columns = [
        *(Column("Work", text=True), Column("Boundary", text=True), Column("Energy per unit")),
        *(Column("Units per joule"), Column("Units per second of the run")),
    ]
    if report.price:
        columns.append(Column(f"{report.price.currency or 'Cost'} per million"))
    rows = [
        list(_work_row(report, boundary, work, largest_j[work.unit])) for boundary, work in every
    ]
    phases = dict.fromkeys(
        name for boundary in report.boundaries for work in boundary.work for name in work.phases
    )
    notes = []
    if phases:
        notes.append(
            f"Energy per unit covers the phase {' and '.join(phases)}, in which the work was done. "
            "The rate over the "
            "whole run is lower than the rate in that phase."
        )
    if any(work.whole_devices for work in report.work):
        notes.append(
            "Energy per unit is that attributed to the run, since others used its devices as well."
        )
    if len({work.unit for _, work in every}) > 1:
        notes.append(
            "Each row divides the same energy by another unit of work; do not add the rows."
        )
    return Table("Work by boundary", columns, rows, notes=notes)


def _by_unit(report: Report) -> Iterator[tuple[Boundary, BoundaryUnitEnergy]]:
    every = [(boundary, work) for boundary in report.boundaries for work in boundary.work]
    for unit in dict.fromkeys(work.unit for _, work in every):
        yield from ((boundary, work) for boundary, work in every if work.unit == unit)


def _work_row(
    report: Report, boundary: Boundary, work: BoundaryUnitEnergy, largest_j: float
) -> Iterator[Cell]:
    inverse = work.units_per_joule
    yield text_cell(unit_name(work.unit))
    name = f"{boundary.name}, attributed" if work.attributed else boundary.name
    yield text_cell(units.marked(name, _estimated(report, boundary)))
    yield energy_per_unit_cell(work.energy_per_unit, largest_j)
    yield number_cell(inverse.value if inverse else None)
    yield (
        Cell()
        if work.per_second is None
        else Cell(f"{significant_text(work.per_second)}/s", work.per_second, "/s")
    )
    if report.price:
        yield number_cell(report.price.of(work.energy_per_unit.scaled(_MILLION)).value)


def _estimated(report: Report, boundary: Boundary) -> bool:
    return bool(report.estimated & set(boundary.components))


def unit_name(unit: str) -> str:
    return "GFLOP" if unit == GFLOP else unit.replace("_", " ")


def energy_basis(attributed: bool) -> str:
    """Return the name of an energy in documents: attributed to the run, or of the whole devices."""
    return "attributed" if attributed else "devices"


def boundary_records(report: Report) -> list[dict[str, Any]]:
    """Return the boundaries for the JSON document."""
    return [_record(report.price, boundary) for boundary in report.boundaries]


def _record(price: Price | None, boundary: Boundary) -> dict[str, Any]:
    energy = boundary.energy
    return {
        "name": boundary.name,
        "components": list(boundary.components),
        "power_usage_effectiveness": boundary.pue,
        "energy_joules": energy.value,
        "energy_uncertainty_joules": energy.half_width,
        "energy_kilowatt_hours": energy.number / JOULES_PER_KWH,
        "attributed_energy_joules": boundary.attributed_j,
        "cost": price.of(energy).value if price else None,
        "cost_uncertainty": price.of(energy).half_width if price else None,
        "currency": (price.currency or None) if price else None,
        "price_per_kilowatt_hour": price.per_kwh if price else None,
        "work": {work.unit: _work_record(price, work) for work in boundary.work},
    }


def _work_record(price: Price | None, work: BoundaryUnitEnergy) -> dict[str, Any]:
    inverse = work.units_per_joule
    return {
        "amount": work.amount,
        "energy_basis": energy_basis(work.attributed),
        "phases": list(work.phases),
        "per_second_wall_clock": work.per_second,
        "energy_per_unit_joules": work.energy_per_unit.value,
        "energy_per_unit_uncertainty_joules": work.energy_per_unit.half_width,
        "energy_per_unit_watt_hours": work.energy_per_unit.number / JOULES_PER_WH,
        "units_per_joule": inverse.value if inverse else None,
        "units_per_joule_uncertainty": inverse.half_width if inverse else None,
        "cost_per_million_units": price.of(work.energy_per_unit.scaled(_MILLION)).value
        if price
        else None,
    }

"""Energy, work and money at each boundary, as parts of the report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analyzer.assess.boundaries import GFLOP, Boundary, UnitEnergy
from analyzer.model.cost import Price
from analyzer.model.interval import JOULES_PER_KWH, Interval
from analyzer.model.report import Report
from analyzer.output import units
from analyzer.output.sections.base import Section

_JOULES_PER_WH = 3.6e3
_MILLION = 1e6


def energy_section(report: Report) -> Section | None:
    if not report.boundaries:
        return None
    costs = [f"{report.price.currency or 'cost'}, {report.price.per_kwh:g} a kWh"] if report.price else []
    columns = ("boundary", "J", "Wh", "kWh", *costs)
    rows = tuple(tuple(_energy_row(report, boundary)) for boundary in report.boundaries)
    return Section("Energy by boundary", columns, rows, note(report))


def _energy_row(report: Report, boundary: Boundary) -> Iterator[str]:
    energy = boundary.energy
    yield units.marked(boundary.name, _estimated(report, boundary))
    for joules in (1.0, _JOULES_PER_WH, JOULES_PER_KWH):
        yield _plain(energy.scaled(1 / joules))
    if report.price:
        yield units.number(report.price.of(energy).value)


def note(report: Report) -> str:
    """What the boundaries hold, and what is in none of them."""
    said = []
    left_out = [name.upper() for name in ("cpu", "dram") if not any(name in b.components for b in report.boundaries)]
    if left_out and report.boundaries:
        is_ = "is" if len(left_out) == 1 else "are"
        said.append(
            f"{' and '.join(left_out)} {is_} in no boundary: not measured on every node, or in use by other runs"
        )
    if any(device.shared for device in report.gpus):
        said.append("GPUs that other runs used at the same time count as a whole")
    pues = [boundary.pue for boundary in report.boundaries if boundary.pue is not None]
    if pues:
        said.append(f"PUE {pues[0]:g} is given, not measured: a facility's figure, with the sensors' interval alone")
    return "; ".join(said)


def work_section(report: Report) -> Section | None:
    every = list(_by_unit(report))
    names = {work.unit for _, work in every}
    of = {name: units.largest(work.energy_per_unit for _, work in every if work.unit == name) for name in names}
    rows = tuple(tuple(_work_row(report, boundary, work, of[work.unit])) for boundary, work in every)
    if not rows:
        return None
    columns = ("work", "boundary", "energy per unit", "units per joule", "by the whole run's time")
    costs = [f"{report.price.currency or 'cost'} per million"] if report.price else []
    phases = dict.fromkeys(name for boundary in report.boundaries for work in boundary.work for name in work.phases)
    where = " and ".join(phases)
    told = (
        f"energy is that of {where}, where the work was done; a rate by the whole run's time is lower than while in it"
    )
    return Section("Work by boundary", (*columns, *costs), rows, told if phases else "", words=2)


def _by_unit(report: Report) -> Iterator[tuple[Boundary, UnitEnergy]]:
    every = [(boundary, work) for boundary in report.boundaries for work in boundary.work]
    for unit in dict.fromkeys(work.unit for _, work in every):
        yield from ((boundary, work) for boundary, work in every if work.unit == unit)


def _work_row(report: Report, boundary: Boundary, work: UnitEnergy, of: float) -> Iterator[str]:
    unit = unit_name(work.unit)
    inverse = work.units_per_joule
    yield unit
    yield units.marked(boundary.name, _estimated(report, boundary))
    yield units.energy_per_unit(work.energy_per_unit, unit, of).partition(" per ")[0]
    yield units.number(inverse.value) if inverse else "–"
    yield f"{units.number(work.per_second)}/s" if work.per_second is not None else "–"
    if report.price:
        yield units.number(report.price.of(work.energy_per_unit.scaled(_MILLION)).value)


def _estimated(report: Report, boundary: Boundary) -> bool:
    return bool(report.estimated & set(boundary.components))


def unit_name(unit: str) -> str:
    return "GFLOP" if unit == GFLOP else unit.replace("_", " ")


def _plain(quantity: Interval) -> str:
    return units.plain(quantity.value, quantity.half or 0.0)


def as_data(report: Report) -> list[dict[str, Any]]:
    """For the JSON document."""
    return [_data(report.price, boundary) for boundary in report.boundaries]


def _data(price: Price | None, boundary: Boundary) -> dict[str, Any]:
    energy = boundary.energy
    return {
        "name": boundary.name,
        "components": list(boundary.components),
        "power_usage_effectiveness": boundary.pue,
        "energy_joules": energy.value,
        "energy_uncertainty_joules": energy.half,
        "energy_kilowatt_hours": energy.value / JOULES_PER_KWH,
        "cost": price.of(energy).value if price else None,
        "cost_uncertainty": price.of(energy).half if price else None,
        "currency": (price.currency or None) if price else None,
        "price_per_kilowatt_hour": price.per_kwh if price else None,
        "work": {work.unit: _work_data(price, work) for work in boundary.work},
    }


def _work_data(price: Price | None, work: UnitEnergy) -> dict[str, Any]:
    inverse = work.units_per_joule
    return {
        "amount": work.amount,
        "phases": list(work.phases),
        "per_second_wall_clock": work.per_second,
        "energy_per_unit_joules": work.energy_per_unit.value,
        "energy_per_unit_uncertainty_joules": work.energy_per_unit.half,
        "energy_per_unit_watt_hours": work.energy_per_unit.value / _JOULES_PER_WH,
        "units_per_joule": inverse.value if inverse else None,
        "units_per_joule_uncertainty": inverse.half if inverse else None,
        "cost_per_million_units": price.of(work.energy_per_unit.scaled(_MILLION)).value if price else None,
    }

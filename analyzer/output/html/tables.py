"""The page's tables: each as rows of texts with what they are sorted by. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analyzer.energy.attribution import POLICIES
from analyzer.model.interval import Interval
from analyzer.model.report import Device, Report
from analyzer.output import units
from analyzer.output.html import order as page_order
from analyzer.output.html.parts import Chart
from analyzer.output.sections import latencies
from analyzer.output.sections.base import sections

ABSENT = "–"


@dataclass(frozen=True, slots=True)
class Cell:
    """`note` stands below the text, small."""

    text: str
    note: str = ""

    @property
    def absent(self) -> bool:
        return self.text in (ABSENT, "")

    @property
    def order(self) -> float | None:
        return page_order.number(self.text)


@dataclass(frozen=True, slots=True)
class Table:
    """`words` are the positions of columns with text, which stand left; `totals` stay below when rows are sorted."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    words: frozenset[int] = frozenset({0})
    totals: tuple[tuple[Cell, ...], ...] = ()


def tables(report: Report) -> list[Table]:
    """In the order of the page; what nothing is known of is left out."""
    parts = [_energies(report), _shares(report), _powers(report), _phases(report), _emissions(report), _slots(report)]
    results = _results(report)
    return [table for table in (*parts, results, *_sections(report)) if table.rows]


def of_chart(chart: Chart) -> Table:
    columns = ("Device", f"Least, {chart.unit}", f"Median, {chart.unit}", f"Most, {chart.unit}")
    rows = ((one.name, one.least, one.median, one.most) for one in chart.ranges)
    return Table(f"{chart.title} while the run was on", columns, _cells(rows))


def _cells(rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(tuple(Cell(text or ABSENT) for text in row) for row in rows)


def _sections(report: Report) -> Iterator[Table]:
    for part in sections(report):
        notes = (_capital(part.note),) if part.note else ()
        columns = tuple(_capital(column) for column in part.columns)
        yield Table(part.title, columns, _cells(part.rows), notes, frozenset(range(part.words)))


def _capital(text: str) -> str:
    """A word begins like those of the page's own tables; a unit or a symbol stays."""
    word = text.partition(" ")[0].rstrip(",:;")
    return f"{text[0].upper()}{text[1:]}" if len(word) > 2 and word.isalpha() and word.islower() else text


def _energy(quantity: Interval | None, of: float, *, estimated: bool = False) -> str:
    return units.marked(units.energy(quantity, of), estimated) if quantity else ABSENT


def _bound(bound: Interval | None, of: float) -> str:
    return units.energy_bound(bound, of) if bound else ABSENT


def _joules(value_j: float | None, of: float) -> str:
    return ABSENT if value_j is None else units.plain_energy(value_j, of)


def _watts(value_w: float | None) -> str:
    return ABSENT if value_w is None else f"{units.number(value_w)} W"


def _energies(report: Report) -> Table:
    columns = ("Device", "Energy", "From raw samples", "Integral of power", "Net of idle", "Covered", "By")
    counts = {component: len([d for d in report.devices if d.component == component]) for component in report.energy}
    summed = {component: quantity for component, quantity in report.energy.items() if counts[component] > 1}
    of = units.largest([*summed.values(), *(each for device in report.devices for each in _energies_of(device))])
    totals = [
        (
            Cell(f"{component.upper()}, total"),
            Cell(_energy(quantity, of, estimated=component in report.estimated)),
            Cell(_bound(report.own, of) if component == "gpu" else ABSENT),
            Cell(_joules(report.integral_j, of) if component == "gpu" else ABSENT),
            Cell(_energy(report.net, of) if component == "gpu" else ABSENT),
            Cell(ABSENT),
            Cell(ABSENT),
        )
        for component, quantity in summed.items()
    ]
    note = (
        "Energy is the ledger's figure, ± half of its 95 % interval. The figure from raw samples stands with its "
        "limits, which hold where the counter is updated every 0.1 s."
    )
    if report.untagged:
        note = "No run was tagged: energy is that of raw samples, and the limits hold for values as old as they can be."
    rows = tuple(_energy_row(device, of) for device in report.devices)
    return Table("Energy by device", columns, rows, (note,), frozenset({0, 6}), tuple(totals))


def _energies_of(device: Device) -> tuple[Interval | float | None, ...]:
    return device.energy, device.own, device.integral_j, device.net


def _energy_row(device: Device, of: float) -> tuple[Cell, ...]:
    whose = ("shared" if device.component == "gpu" else "whole node") if device.shared else ""
    return (
        Cell(device.label),
        Cell(_energy(device.energy, of, estimated=device.estimated), whose),
        Cell(_bound(device.own, of)),
        Cell(_joules(device.integral_j, of)),
        Cell(_energy(device.net, of)),
        Cell(ABSENT if device.covered_ratio is None else units.percent(device.covered_ratio)),
        Cell(", ".join(device.methods) or ABSENT),
    )


def _shares(report: Report) -> Table:
    rows = []
    of = units.largest(device.energy for device in report.devices if device.divided)
    for device in report.devices:
        if device.divided:
            known = (device.energy.value, *(device.attributed_j.get(policy) for policy in POLICIES))
            parts = [ABSENT if value is None else units.marked(_joules(value, of), device.estimated) for value in known]
            rows.append((device.label, *parts))
    notes = tuple(f"{policy}: {meaning}." for policy, meaning in POLICIES.items())
    title = "The run's share of what others used as well"
    return Table(title, ("Device", "Whole device", *POLICIES), _cells(rows), notes)


def _powers(report: Report) -> Table:
    rows = [
        (
            device.label,
            device.name,
            units.marked(units.power(device.mean_power_w), device.estimated) if device.mean_power_w else ABSENT,
            _watts(device.max_power_w),
            _watts(device.power_limit_w),
            _watts(device.idle_power_w.value if device.idle_power_w else None),
        )
        for device in report.devices
    ]
    columns = ("Device", "Name", "Mean", "Peak", "Limit", "Idle")
    return Table("Power by device", columns, _cells(rows), words=frozenset({0, 1}))


def _phases(report: Report) -> Table:
    columns = ("Phase", "Duration", *(f"Energy, {component.upper()}" for component in report.energy))
    of = {name: units.largest(phase.energy.get(name) for phase in report.phases) for name in report.energy}
    rows = [
        (
            phase.name,
            units.duration(phase.duration_s),
            *(_energy(phase.energy.get(name), of[name], estimated=name in report.estimated) for name in report.energy),
        )
        for phase in report.phases
    ]
    return Table("Phases", columns, _cells(rows))


def _emissions(report: Report) -> Table:
    columns = ("Component", "CO₂eq", "Basis", "Intensity", "From")
    of = units.largest(one.mass_g for one in report.emissions)
    rows = [
        (
            *(one.component.upper(), units.marked(units.mass(one.mass_g, of), one.estimated)),
            *(one.basis, one.quality, one.origin),
        )
        for one in report.emissions
    ]
    note = "Average and marginal intensities answer different questions: their grams are never added up."
    return Table("Emissions", columns, _cells(rows), (note,), frozenset({0, 2, 3, 4}))


def _slots(report: Report) -> Table:
    columns = ("From", "Region", "Intensity", "GPU energy", "GPU emissions", "Kind")
    of_j = units.largest(slot.gpu_energy_j for slot in report.carbon_slots)
    of_g = units.largest(slot.mass_g for slot in report.carbon_slots)
    rows = [
        (
            units.moment(slot.start_s),
            slot.region,
            f"{units.number(slot.grams_per_kwh)} g/kWh",
            _joules(slot.gpu_energy_j, of_j),
            units.plain_mass(slot.mass_g, of_g),
            f"{slot.basis}, {slot.quality}",
        )
        for slot in report.carbon_slots
    ]
    note = "Each slot of the provider with its own intensity; raw samples share the ledger's energy out over the slots."
    return Table("Carbon by slot", columns, _cells(rows), (note,), frozenset({0, 1, 5}))


def _results(report: Report) -> Table:
    rows = [(name, units.number(value)) for name, value in latencies.others(report.results).items()]
    return Table("What the job measured", ("Result", "Value"), _cells(rows))

"""Output of `analyzer fleet`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wattline.contract.work import unit_of_one
from wattline.figures import Figure, energy_text, mass_text
from wattline_analyzer.core import units
from wattline_analyzer.core.tables import (
    Cell,
    Column,
    CommandOutput,
    Table,
    count_cell,
    energy_per_unit_cell,
    figure_columns,
    grams_cell,
    joules_cell,
    text_cells,
)
from wattline_analyzer.usage.fleet import GIVEN, REPORTED_EXCESS, Fleet, FleetGroup, Keys

_MOST_UNITS = 3
COMPLETE_EMISSIONS = 0.95
"""Share of the energy from which on its emissions count as complete: they follow the energy some
seconds later.
"""
RUN_EMISSIONS = (
    "emissions of a group are the attributed part of its runs' emissions, which lack the last 6 s "
    "of runs that go on "
    "at the end of the window"
)
"""Note on the emissions of groups from the series of runs."""
ENERGY_PER_UNIT = (
    "per unit, as in analyzer report: energy of the GPUs during the phases in which the work was "
    "done, else over the "
    "whole run; on shared GPUs that attributed to the whole run; in runs without GPUs that of the "
    "CPUs"
)
"""Note on the energy per unit of groups."""


def fleet_output(fleet: Fleet, top: int | None) -> CommandOutput:
    """Return the `top` groups by energy, or all; the others are one row."""
    shown, rest = _cut(fleet.groups, top)
    unit_names = fleet.units[:_MOST_UNITS]
    kinds = list(dict.fromkeys(kind for group in fleet.groups for kind in group.grams))
    titles = ["Runs", "Energy", "Share", *(_kind(kind) for kind in kinds)]
    titles += [
        text for unit in unit_names for text in (unit.replace("_", " "), f"per {unit_of_one(unit)}")
    ]
    columns = [*(Column(key, text=True, whole=True) for key in fleet.by), *figure_columns(*titles)]
    listed = [*shown, *([_rest(rest, fleet.by)] if rest else []), *_unattributed(fleet, top)]
    rows = list(zip(*_cells_by_column(fleet, listed, kinds, unit_names), strict=True))
    parts: list[str | Table] = [_headline(fleet), Table("", columns, rows), *_notes(fleet)]
    return CommandOutput(
        parts,
        _document(fleet, top),
        [_flat(fleet, group) for group in (*shown, *fleet.unattributed)],
    )


def _headline(fleet: Fleet) -> str:
    parts = ", ".join(
        f"{name.upper()} {energy_text(Figure(joules))}" for name, joules in fleet.whole.items()
    )
    span = units.span(fleet.means.start_s, fleet.means.end_s)
    if (fleet.excess_ratio or 0.0) <= REPORTED_EXCESS:
        return f"{span}\nall devices: {energy_text(Figure(fleet.whole_j))} ({parts})"
    return (
        f"{span}\nall runs and unattributed: {energy_text(Figure(fleet.whole_j))} ({parts})\n"
        f"all devices, by their counters: {energy_text(Figure(fleet.device_j))}, as in analyzer "
        "usage; see the warning"
    )


def _cells_by_column(
    fleet: Fleet,
    groups: Sequence[FleetGroup],
    kinds: Sequence[tuple[str, str]],
    unit_names: Sequence[str],
) -> Iterator[Sequence[Cell]]:
    """Yield the cells of each column, with one unit per column."""
    yield from (text_cells(keys) for keys in zip(*(group.keys for group in groups), strict=True))
    yield [count_cell(group.runs) for group in groups]
    energies_j = [group.energy_j if group.joules else None for group in groups]
    largest_j = units.largest(energies_j)
    yield [joules_cell(joules, largest_j) for joules in energies_j]
    yield [_share_cell(group, fleet) for group in groups]
    for kind in kinds:
        masses_g = [group.grams.get(kind) for group in groups]
        largest_g = units.largest(masses_g)
        yield [grams_cell(mass_g, largest_g) for mass_g in masses_g]
    for unit in unit_names:
        works = [group.work.get(unit) for group in groups]
        yield [_amount_cell(work.amount if work else None) for work in works]
        each_j = [work.joules_per_unit if work else None for work in works]
        largest_j = units.largest(each_j)
        yield [energy_per_unit_cell(None if j is None else Figure(j), largest_j) for j in each_j]


def _share_cell(group: FleetGroup, fleet: Fleet) -> Cell:
    ratio = fleet.share(group) if group.joules else None
    return Cell() if ratio is None else Cell(f"{100 * ratio:.1f} %", ratio)


def _amount_cell(amount: float | None) -> Cell:
    return Cell() if amount is None else Cell(units.amount(amount, "").strip(), amount)


def _notes(fleet: Fleet) -> list[str]:
    notes = []
    if fleet.device_j:
        idle = f"energy of GPUs without a run: {energy_text(Figure(fleet.idle_j))}"
        gpu_j = fleet.whole.get("gpu", 0.0)
        notes.append(
            f"{idle}, {100 * fleet.idle_j / gpu_j:.1f} % of the energy of all GPUs"
            if gpu_j
            else idle
        )
    if fleet.device_grams:
        total = ", ".join(
            f"{_kind(kind)} {mass_text(Figure(grams))}"
            for kind, grams in fleet.device_grams.items()
        )
        notes.append(f"all devices: {total}; {RUN_EMISSIONS}")
    notes += emission_share_notes(fleet)
    if fleet.excess_ratio is not None:
        claimed = (
            f"runs: {energy_text(Figure(fleet.claimed_j))} ({fleet.policy}), "
            f"unattributed: {energy_text(Figure(fleet.unattributed_j))}"
        )
        notes.append(
            f"{claimed}; the sum differs from the devices' counters by "
            f"{_percent(fleet.excess_ratio)}"
        )
        if fleet.excess_ratio > REPORTED_EXCESS:
            notes.append(
                "warning: the runs used more energy than the devices' counters show: counters "
                "begin with the first "
                "scrape of their exporter, runs that started earlier count as a whole; shares are "
                "of the sum of all "
                "parts, and are upper limits"
            )
        elif fleet.excess_ratio < -REPORTED_EXCESS:
            notes.append(
                "warning: the parts are less than the devices' counters: an exporter's state "
                "folder was replaced, or "
                "the scrape configuration drops some of its series"
            )
    if any(group.work for group in fleet.groups):
        notes.append(ENERGY_PER_UNIT)
    notes += unmeasured_notes(fleet)
    why = f"; {fleet.means.why_not_rules}" if fleet.means.why_not_rules else ""
    transfer = (
        f" ({fleet.means.asked} queries, {fleet.means.moved_bytes / 1e3:.1f} kB)"
        if fleet.means.asked
        else ""
    )
    notes.append(f"source: {fleet.means.by} at {fleet.means.server}{transfer}{why}")
    return notes


def unmeasured_notes(fleet: Fleet) -> Iterator[str]:
    """Yield a note for each unit of work in runs without energy."""
    for unit in fleet.units:
        amount = sum(group.work[unit].unmeasured for group in fleet.groups if unit in group.work)
        if amount > 0:
            text = f"{units.amount(amount, '').strip()} {unit.replace('_', ' ')}"
            yield f"energy per unit leaves out {text} of runs whose energy was not measured"


def emission_share_notes(fleet: Fleet) -> Iterator[str]:
    """Yield a note for each basis whose intensity was known for a part of the energy only."""
    for basis, share in fleet.emission_shares.items():
        if share < COMPLETE_EMISSIONS:
            yield (
                f"warning: emissions ({basis}) are of {100 * share:.0f} % of the devices' energy: "
                f"no {basis} carbon "
                "intensity was known for the rest; give --carbon G/KWH for all of it"
            )


def _percent(ratio: float) -> str:
    """Return a difference in percent, without a sign if it rounds to zero."""
    text = f"{100 * ratio:+.2f} %"
    return "0.00 %" if text[1:] == "0.00 %" else text


def _cut(
    groups: Sequence[FleetGroup], top: int | None
) -> tuple[Sequence[FleetGroup], Sequence[FleetGroup]]:
    return (groups, ()) if top is None else (groups[:top], groups[top:])


def _rest(groups: Sequence[FleetGroup], by: Keys) -> FleetGroup:
    joules: dict[str, float] = {}
    for group in groups:
        for component, value in group.joules.items():
            joules[component] = joules.get(component, 0.0) + value
    runs = [group.runs for group in groups]
    known = None if None in runs else sum(number or 0 for number in runs)
    return FleetGroup((f"({len(groups)} more)", *("" for _ in by[1:])), joules, known)


def _unattributed(fleet: Fleet, top: int | None) -> list[FleetGroup]:
    shown, rest = _cut(fleet.unattributed, top)
    return [*shown, _rest(rest, fleet.by)] if rest else list(shown)


def _kind(kind: tuple[str, str]) -> str:
    return f"CO₂eq ({kind[0]})" if kind == GIVEN else f"CO₂eq ({kind[0]}, {kind[1]})"


def _document(fleet: Fleet, top: int | None) -> dict[str, Any]:
    return {
        "version": 1,
        "start_unix_seconds": fleet.means.start_s,
        "end_unix_seconds": fleet.means.end_s,
        "by": list(fleet.by),
        "policy": fleet.policy,
        "devices": {f"{name}_energy_joules": joules for name, joules in fleet.devices.items()},
        "devices_energy_joules": fleet.device_j,
        "shares_of_energy_joules": fleet.whole_j,
        "devices_emissions": _emissions(fleet.device_grams),
        "emissions_energy_ratio": fleet.emission_shares,
        "runs_energy_joules": fleet.claimed_j,
        "no_run_energy_joules": fleet.unattributed_j,
        "idle_gpu_energy_joules": fleet.idle_j,
        "parts_beside_devices_ratio": fleet.excess_ratio,
        "groups": [_group(fleet, group) for group in fleet.groups[:top]],
        "groups_left_out": len(_cut(fleet.groups, top)[1]),
        "no_run": [_group(fleet, group) for group in fleet.unattributed],
        "from": fleet.means.by,
        "why_not_rules": fleet.means.why_not_rules or None,
        "source": fleet.means.server,
        "parts_of_the_window": fleet.means.spans,
        "queries": fleet.means.asked,
        "moved_bytes": fleet.means.moved_bytes,
        "notes": _notes(fleet),
    }


def _group(fleet: Fleet, group: FleetGroup) -> dict[str, Any]:
    return {
        **dict(zip(fleet.by, group.keys, strict=True)),
        "runs": group.runs,
        "energy_joules": group.energy_j if group.joules else None,
        **{f"{name}_energy_joules": joules for name, joules in group.joules.items()},
        "share_of_devices_ratio": fleet.share(group) if group.joules else None,
        "work": {
            unit: {
                "amount": work.amount,
                "amount_without_energy": work.unmeasured,
                "energy_of_its_runs_joules": work.joules,
                "energy_per_unit_joules": work.joules_per_unit,
            }
            for unit, work in group.work.items()
        },
        "emissions": _emissions(group.grams),
    }


def _emissions(grams: Mapping[tuple[str, str], float]) -> list[dict[str, Any]]:
    return [
        {"basis": basis, "quality": quality, "emissions_grams": value}
        for (basis, quality), value in grams.items()
    ]


def _flat(fleet: Fleet, group: FleetGroup) -> dict[str, Any]:
    """Return one row of the CSV, with the same columns for every group."""
    kinds = dict.fromkeys(kind for one in fleet.groups for kind in one.grams)
    unit_names = dict.fromkeys(unit for one in fleet.groups for unit in one.work)
    components = dict.fromkeys(
        (*fleet.devices, *(name for one in fleet.groups for name in one.joules))
    )
    row: dict[str, Any] = {
        **dict(zip(fleet.by, group.keys, strict=True)),
        "runs": group.runs,
        "energy_joules": group.energy_j if group.joules else None,
        **{f"{name}_energy_joules": group.joules.get(name) for name in components},
    }
    row |= {
        f"emissions_{basis}_{quality}_grams": group.grams.get((basis, quality))
        for basis, quality in kinds
    }
    for unit in unit_names:
        work = group.work.get(unit)
        row[unit] = work.amount if work else None
        row[f"energy_per_{unit_of_one(unit).replace(' ', '_')}_joules"] = (
            work.joules_per_unit if work else None
        )
    return row

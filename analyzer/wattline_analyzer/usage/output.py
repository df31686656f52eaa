"""Output of `analyzer usage`: a row per group, unattributed energy, and a total of the devices'
counters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from wattline.contract.work import unit_of_one
from wattline.figures import (
    JOULES_PER_KWH,
    Figure,
    half_text,
    joules_text,
    kilowatt_hours_text,
    number_text,
    signed_joules_text,
)
from wattline_analyzer.core import units
from wattline_analyzer.core.run_report import Price
from wattline_analyzer.core.tables import (
    Cell,
    Column,
    CommandOutput,
    Table,
    count_cell,
    energy_per_unit_cell,
    figure_columns,
    text_cells,
)
from wattline_analyzer.usage.fleet import GIVEN, REPORTED_EXCESS, Fleet, FleetGroup
from wattline_analyzer.usage.fleet_output import (
    ENERGY_PER_UNIT,
    RUN_EMISSIONS,
    emission_share_notes,
    unmeasured_notes,
)
from wattline_analyzer.usage.rows import UsageRow, rest_row, total_rows

_MOST_UNITS = 3
_SHOWN_REMAINDER = 1e-6
"""Ratio to the devices' energy from which on the remainder has a row in the table."""
_NAMED_NODES = 3
_SECONDS_PER_HOUR = 3_600.0
_REMAINDER = {
    True: "energy in no counter of an owner: new owners are counted 65 s later, and at the first "
    "scrape of a node",
    False: "energy in no series of a run, and not unattributed: short and small runs have no "
    "series",
}
"""Explanation of the remainder, by the use of the counters by owner."""


def usage_output(fleet: Fleet, price: Price | None, top: int | None) -> CommandOutput:
    """Return the `top` groups by energy, or all; the others are one row."""
    groups = [UsageRow("group", group) for group in fleet.groups]
    shown = groups if top is None or len(groups) <= top else [*groups[:top], rest_row(fleet, top)]
    totals = list(total_rows(fleet))
    table = _table(
        fleet,
        price,
        shown,
        [row for row in totals if row.kind != "remainder" or _is_shown(fleet, row)],
    )
    kept = groups if top is None else groups[:top]
    records = [_record(fleet, price, row) for row in (*kept, *totals)]
    parts: list[str | Table] = [_headline(fleet), table, *_notes(fleet, price)]
    return CommandOutput(parts, _document(fleet, price, kept, totals), records)


def _is_shown(fleet: Fleet, row: UsageRow) -> bool:
    parts = [*row.group.joules.values()]
    return max(map(abs, parts), default=0.0) > _SHOWN_REMAINDER * fleet.device_j


def _table(
    fleet: Fleet, price: Price | None, shown: Sequence[UsageRow], totals: Sequence[UsageRow]
) -> Table:
    rows = [*shown, *totals]
    bases = list(dict.fromkeys(basis for basis, _ in (*fleet.device_grams, *_kinds(fleet))))
    unit_names = fleet.units[:_MOST_UNITS]
    titles = [
        "Runs",
        "kWh",
        "± (95 %)",
        "GPU hours",
        *([price.currency or "Cost"] if price else []),
    ]
    titles += ["g CO₂eq" if len(bases) == 1 else f"g CO₂eq ({basis})" for basis in bases]
    titles += [
        text for unit in unit_names for text in (unit.replace("_", " "), f"per {unit_of_one(unit)}")
    ]
    columns = [*(Column(key, text=True, whole=True) for key in fleet.by), *figure_columns(*titles)]
    cells = list(zip(*_cells(price, rows, bases, unit_names), strict=True))
    return Table("", columns, cells[: len(shown)], cells[len(shown) :]).without_empty_columns()


def _cells(
    price: Price | None, rows: Sequence[UsageRow], bases: Sequence[str], unit_names: Sequence[str]
) -> Iterator[Sequence[Cell]]:
    """Yield the cells of each column; figures of a column have the same decimals, so that they add
    up, except energies with a half-width, which decides their digits.
    """
    groups = [row.group for row in rows]
    yield from (text_cells(texts) for texts in zip(*(group.keys for group in groups), strict=True))
    yield [count_cell(group.runs) for group in groups]
    yield _energy_cells(groups)
    yield [_half_cell(group) for group in groups]
    seconds = [group.gpu_seconds for group in groups]
    yield _decimals([None if one is None else one / _SECONDS_PER_HOUR for one in seconds], 5, 1)
    if price:
        yield _decimals([_cost(group, price) for group in groups], 5, 2)
    for basis in bases:
        yield _decimals([_grams(group, basis) for group in groups], 5, 0)
    for unit in unit_names:
        works = [group.work.get(unit) for group in groups]
        yield [
            Cell() if one is None else Cell(units.amount(one.amount, "").strip(), one.amount)
            for one in works
        ]
        each_j = [one.joules_per_unit if one else None for one in works]
        largest_j = units.largest(each_j)
        yield [energy_per_unit_cell(None if j is None else Figure(j), largest_j) for j in each_j]


def _decimals(values: Sequence[float | None], digits: int, least: int) -> list[Cell]:
    """Return cells with as many decimals as give the largest value this many digits, but at least
    `least`.
    """
    largest = max((abs(value) for value in values if value), default=1.0)
    decimals = max(least, digits - 1 - math.floor(math.log10(largest)))
    texts = (
        None if value is None else f"{round(value, decimals) + 0.0:,.{decimals}f}"
        for value in values
    )
    return [
        Cell() if text is None else Cell(text, value)
        for text, value in zip(texts, values, strict=True)
    ]


def _energy_cells(groups: Sequence[FleetGroup]) -> list[Cell]:
    """Return energies in kWh."""
    plain = _decimals(
        [group.energy_j / JOULES_PER_KWH if group.joules else None for group in groups], 6, 3
    )
    return [
        Cell(
            number_text(
                Figure(group.energy_j, group.half_j).scaled(1 / JOULES_PER_KWH), half=False
            ),
            cell.value,
        )
        if group.half_j and group.joules
        else cell
        for group, cell in zip(groups, plain, strict=True)
    ]


def _half_cell(group: FleetGroup) -> Cell:
    if group.half_j is None or group.energy_j <= 0:
        return Cell()
    return Cell(f"{half_text(100 * group.half_j / group.energy_j)} %", group.half_j)


def _cost(group: FleetGroup, price: Price) -> float | None:
    return group.energy_j / JOULES_PER_KWH * price.per_kwh if group.joules else None


def _grams(group: FleetGroup, basis: str) -> float | None:
    known = [value for (own, _), value in group.grams.items() if own == basis]
    return math.fsum(known) if known else None


def _kinds(fleet: Fleet) -> dict[tuple[str, str], None]:
    return dict.fromkeys(
        [*fleet.device_grams, *(kind for group in fleet.groups for kind in group.grams)]
    )


def _headline(fleet: Fleet) -> str:
    parts = ", ".join(
        f"{name.upper()} {kilowatt_hours_text(joules)}" for name, joules in fleet.devices.items()
    )
    nodes = len(fleet.nodes.names)
    of_nodes = f" of {nodes:,} node{'s' if nodes > 1 else ''}" if nodes else ""
    return f"{units.span(fleet.means.start_s, fleet.means.end_s)}\nall devices{of_nodes}: {parts}"


def _notes(fleet: Fleet, price: Price | None) -> Iterator[str]:
    yield from _missing(fleet)
    remainder_j = fleet.device_j - fleet.claimed_j - fleet.unattributed_j
    if abs(remainder_j) > _SHOWN_REMAINDER * fleet.device_j:
        cause = _REMAINDER[fleet.by_owners]
        if fleet.nodes.without_start:
            cause = (
                "the counters of a node that is new in the window do not start with the same sample"
            )
        elif remainder_j < 0:
            cause = "the parts have energy of the time before the first scrape of a node"
        warning = "warning: " if abs(remainder_j) > REPORTED_EXCESS * fleet.device_j else ""
        size = (
            f"{100 * remainder_j / fleet.device_j:+.2g} %"
            if fleet.device_j
            else f"{signed_joules_text(remainder_j)} of {joules_text(Figure(fleet.device_j))}"
        )
        yield f"{warning}remainder {size} of the devices' energy: {cause}"
    if price:
        yield (
            f"cost: {price.per_kwh:g} {price.currency} per kWh of the devices, without PUE"
        ).replace("  ", " ")
    if any(group.half_j is not None for group in fleet.groups):
        yield (
            "±: starts and ends of the runs, and energy of their devices that was not attributed "
            "to them; runs that "
            "shared devices have none; without the systematic error of the sensors; the window "
            "starts and ends with "
            "the last sample before each of its edges"
        )
    if fleet.emissions_left_out:
        yield (
            f"emissions are left out: the counters by owner have none for {fleet.policy}; give "
            "--carbon G/KWH, or "
            "--policy idle_shared"
        )
    yield from emission_share_notes(fleet)
    if not fleet.by_owners and any(kind != GIVEN for group in fleet.groups for kind in group.grams):
        yield RUN_EMISSIONS
    if any(group.work for group in fleet.groups):
        yield ENERGY_PER_UNIT
    yield from unmeasured_notes(fleet)
    origin = "counters by owner" if fleet.by_owners else f"series of runs ({fleet.means.by})"
    shared = "divided among its runs" if fleet.by_owners else "counted for each of its runs"
    yield (
        f"energy from the {origin} at {fleet.means.server}; GPU hours of a shared GPU are {shared}"
    )


def _missing(fleet: Fleet) -> Iterator[str]:
    for names, side, what in (
        (fleet.nodes.without_start, "start", "before the first sample"),
        (fleet.nodes.without_end, "end", "after the last sample"),
    ):
        if names:
            more = f" and {len(names) - _NAMED_NODES} more" if len(names) > _NAMED_NODES else ""
            yield (
                f"no samples at the {side} of the window from "
                f"{', '.join(names[:_NAMED_NODES])}{more}: energy {what} "
                "is missing"
            )
    if fleet.nodes.without_start and any(group.work for group in fleet.groups):
        yield (
            "work and energy per unit are those of runs as far as their own counters show, also "
            "before the first "
            "sample of a node: work × energy per unit can be more than the energy of the row"
        )


def _document(
    fleet: Fleet, price: Price | None, groups: Sequence[UsageRow], totals: Sequence[UsageRow]
) -> dict[str, Any]:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in totals:
        by_kind.setdefault(row.kind, []).append(_entry(fleet, price, row.group))
    return {
        "version": 1,
        "start_unix_seconds": fleet.means.start_s,
        "end_unix_seconds": fleet.means.end_s,
        "by": list(fleet.by),
        "policy": fleet.policy,
        "price_per_kilowatt_hour": price.per_kwh if price else None,
        "currency": (price.currency or None) if price else None,
        "groups": [_entry(fleet, price, row.group) for row in groups],
        "groups_left_out": len(fleet.groups) - len(groups),
        "runs": by_kind["runs"][0],
        "unattributed": by_kind.get("unattributed", []),
        "remainder": by_kind["remainder"][0],
        "total": by_kind["total"][0],
        "emissions_energy_ratio": fleet.emission_shares,
        "nodes": list(fleet.nodes.names),
        "nodes_without_samples_at_start": list(fleet.nodes.without_start),
        "nodes_without_samples_at_end": list(fleet.nodes.without_end),
        "from": "owner counters" if fleet.by_owners else "run series",
        "source": fleet.means.server,
        "notes": list(_notes(fleet, price)),
    }


def _entry(fleet: Fleet, price: Price | None, group: FleetGroup) -> dict[str, Any]:
    return {
        **dict(zip(fleet.by, group.keys, strict=True)),
        **_figures(price, group),
        **{f"{name}_energy_joules": joules for name, joules in group.joules.items()},
        "emissions": [
            {"basis": basis, "quality": quality, "emissions_grams": value}
            for (basis, quality), value in group.grams.items()
        ],
        "work": {
            unit: {
                "amount": work.amount,
                "amount_without_energy": work.unmeasured,
                "energy_of_its_runs_joules": work.joules,
                "energy_per_unit_joules": work.joules_per_unit,
            }
            for unit, work in group.work.items()
        },
    }


def _figures(price: Price | None, group: FleetGroup) -> dict[str, Any]:
    hours = None if group.gpu_seconds is None else group.gpu_seconds / _SECONDS_PER_HOUR
    return {
        "runs": group.runs,
        "energy_joules": group.energy_j if group.joules else None,
        "energy_uncertainty_joules": group.half_j,
        "energy_kilowatt_hours": group.energy_j / JOULES_PER_KWH if group.joules else None,
        "gpu_hours": hours,
        "cost": _cost(group, price) if price else None,
        "emissions_grams": {basis: _grams(group, basis) for basis, _ in group.grams},
    }


def _record(fleet: Fleet, price: Price | None, row: UsageRow) -> dict[str, Any]:
    """Return one row of the CSV, with the same columns for every row; `row` is its role."""
    group = row.group
    components = dict.fromkeys(
        (*fleet.devices, *(name for one in fleet.groups for name in one.joules))
    )
    unit_names = dict.fromkeys(unit for one in fleet.groups for unit in one.work)
    figures = _figures(price, group)
    record: dict[str, Any] = {
        "row": row.kind,
        **dict(zip(fleet.by, group.keys, strict=True)),
        **figures,
    }
    del record["emissions_grams"]
    record["currency"] = price.currency if price else None
    record |= {f"{name}_energy_joules": group.joules.get(name) for name in components}
    record |= {
        f"emissions_{basis}_{quality}_grams": group.grams.get((basis, quality))
        for basis, quality in _kinds(fleet)
    }
    record |= {
        f"emissions_{basis}_energy_ratio": share if row.kind == "total" else None
        for basis, share in fleet.emission_shares.items()
    }
    for unit in unit_names:
        work = group.work.get(unit)
        record[unit] = work.amount if work else None
        record[f"energy_per_{unit_of_one(unit).replace(' ', '_')}_joules"] = (
            work.joules_per_unit if work else None
        )
    return record

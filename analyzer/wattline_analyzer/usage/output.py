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
    energy_text,
    half_text,
    joules_text,
    kilowatt_hours_text,
    number_text,
    signed_joules_text,
    to_json,
    unknown,
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
from wattline_analyzer.usage.facts import begin_text, end_tolerance_s
from wattline_analyzer.usage.sums import GIVEN, Basis, Usage, UsageRow, sum_of_rows

COMPLETE_EMISSIONS = 0.95
"""Share of the energy from which on its emissions count as complete: they follow the energy some
seconds later.
"""
_MOST_UNITS = 3
_SHOWN_REMAINDER = 1e-6
"""Ratio to the devices' energy from which on the remainder has a row in the table."""
_REPORTED = 0.01
"""Ratio of the remainder to the energy of the devices from which on it is a warning."""
_NAMED = 3
_SECONDS_PER_HOUR = 3_600.0
_REMAINDER = {
    True: "energy in no counter of an owner: new owners are counted 65 s later",
    False: "energy in no series of a run, and not unattributed: short and small runs have no "
    "series",
}
"""Explanation of the remainder, by the use of the counters by owner."""


def usage_output(usage: Usage, price: Price | None, top: int | None) -> CommandOutput:
    """Return the `top` groups by energy, or all; the others are one row."""
    kept = list(usage.groups if top is None else usage.groups[:top])
    rest = usage.groups[len(kept) :]
    shown = list(kept)
    if rest:
        keys = f"({len(rest)} more)", *("" for _ in usage.request.by[1:])
        shown.append(sum_of_rows(keys, rest, "group"))
    totals = [usage.runs, *usage.unattributed, usage.remainder, usage.total]
    table = _table(usage, price, shown, [row for row in totals if _is_shown(usage, row)])
    records = [_record(usage, price, row) for row in (*kept, *totals)]
    parts: list[str | Table] = [_headline(usage), table, *_notes(usage, price)]
    return CommandOutput(parts, _document(usage, price, kept), records)


def _is_shown(usage: Usage, row: UsageRow) -> bool:
    largest_j = max(map(abs, row.joules.values()), default=0.0)
    return row.kind != "remainder" or largest_j > _SHOWN_REMAINDER * usage.total.energy_j


def _table(
    usage: Usage, price: Price | None, shown: Sequence[UsageRow], totals: Sequence[UsageRow]
) -> Table:
    bases = list(dict.fromkeys(basis for basis, _ in _kinds(usage)))
    unit_names = usage.units[:_MOST_UNITS]
    titles = ["Runs", "kWh", "± (95 %)", "Share", "GPU hours"]
    titles += [price.currency or "Cost"] if price else []
    titles += ["g CO₂eq" if len(bases) == 1 else f"g CO₂eq ({basis})" for basis in bases]
    for unit in unit_names:
        titles += [unit.replace("_", " "), f"per {unit_of_one(unit)}"]
    keys = [Column(key, text=True, whole=True) for key in usage.request.by]
    columns = [*keys, *figure_columns(*titles)]
    rows = [*shown, *totals]
    cells = list(zip(*_cells(usage, price, rows, bases, unit_names), strict=True))
    return Table("", columns, cells[: len(shown)], cells[len(shown) :]).without_empty_columns()


def _cells(
    usage: Usage,
    price: Price | None,
    rows: Sequence[UsageRow],
    bases: Sequence[str],
    unit_names: Sequence[str],
) -> Iterator[Sequence[Cell]]:
    """Yield the cells of each column; figures of a column have the same decimals, so that they add
    up, except energies with a half-width, which decides their digits.
    """
    yield from (text_cells(texts) for texts in zip(*(row.keys for row in rows), strict=True))
    yield [count_cell(row.runs) for row in rows]
    yield _energy_cells(rows)
    yield [_half_cell(row) for row in rows]
    shares = [usage.share(row) for row in rows]
    yield [Cell() if one is None else Cell(f"{100 * one:.1f} %", one) for one in shares]
    seconds = [row.gpu_seconds for row in rows]
    yield _decimals([None if one is None else one / _SECONDS_PER_HOUR for one in seconds], 5, 1)
    if price:
        yield _decimals([_cost(row, price) for row in rows], 5, 2)
    for basis in bases:
        yield _decimals([_grams(row, basis) for row in rows], 5, 0)
    for unit in unit_names:
        uses = [row.work.get(unit) for row in rows]
        yield [
            Cell() if one is None else Cell(units.amount(one.amount, "").strip(), one.amount)
            for one in uses
        ]
        each_j = [one.joules_per_unit if one else None for one in uses]
        largest_j = units.largest(each_j)
        yield [energy_per_unit_cell(None if j is None else Figure(j), largest_j) for j in each_j]


def _decimals(values: Sequence[float | None], digits: int, least: int) -> list[Cell]:
    """Return cells with as many decimals as give the largest value this many digits, without
    those that are 0 in all cells, but at least `least`.
    """
    largest = max((abs(value) for value in values if value), default=1.0)
    decimals = max(least, digits - 1 - math.floor(math.log10(largest)))
    rounded = [None if value is None else round(value, decimals) + 0.0 for value in values]
    texts = ["" if value is None else f"{value:.{decimals}f}" for value in rounded]
    zeros = min((len(text) - len(text.rstrip("0")) for text in texts if text), default=0)
    decimals = max(least, decimals - zeros)
    return [
        Cell() if shown is None else Cell(f"{shown:,.{decimals}f}", value)
        for shown, value in zip(rounded, values, strict=True)
    ]


def _energy_cells(rows: Sequence[UsageRow]) -> list[Cell]:
    """Return energies in kWh; those of nodes that are not measured for the whole window are at
    least so much.
    """
    energies = [row.energy for row in rows]
    plain = _decimals(
        [None if one is None else one.number / JOULES_PER_KWH for one in energies], 6, 3
    )
    cells = []
    for energy, cell in zip(energies, plain, strict=True):
        text = cell.text
        if energy is not None and energy.half_width:
            value = Figure(energy.number, energy.half_width).scaled(1 / JOULES_PER_KWH)
            text = number_text(value, half=False)
        if energy is not None and energy.rest is not None:
            text = f"{'≥' if math.isinf(energy.rest[1]) else '≤'} {text}"
        cells.append(Cell(text, cell.value))
    return cells


def _half_cell(row: UsageRow) -> Cell:
    if row.half_j is None or row.energy_j <= 0:
        return Cell()
    return Cell(f"{half_text(100 * row.half_j / row.energy_j)} %", row.half_j)


def _cost(row: UsageRow, price: Price) -> float | None:
    return row.energy_j / JOULES_PER_KWH * price.per_kwh if row.joules else None


def _grams(row: UsageRow, basis: str) -> float | None:
    known = [value for (own, _), value in row.grams.items() if own == basis]
    return math.fsum(known) if known else None


def _kinds(usage: Usage) -> list[Basis]:
    rows = (usage.total, *usage.groups)
    return list(dict.fromkeys(kind for row in rows for kind in row.grams))


def _headline(usage: Usage) -> str:
    parts = ", ".join(
        f"{name.upper()} {kilowatt_hours_text(joules)}"
        for name, joules in usage.total.joules.items()
    )
    nodes = len(usage.facts.nodes)
    span = units.span(usage.facts.start_s, usage.facts.end_s)
    return f"{span}\nall devices of {nodes:,} node{'s' if nodes > 1 else ''}: {parts}"


def _notes(usage: Usage, price: Price | None) -> Iterator[str]:
    yield from _cut_notes(usage)
    yield from _control_notes(usage)
    if usage.total.energy_j:
        yield _idle_note(usage)
    if price:
        yield (
            f"cost: {price.per_kwh:g} {price.currency} per kWh of the devices, without PUE"
        ).replace("  ", " ")
    if any(row.half_j is not None for row in usage.groups):
        yield (
            "±: starts and ends of the runs, and energy of their devices that was not attributed "
            "to them; runs that shared devices have none; without the systematic error of the "
            "sensors; the window starts and ends with the last sample before each of its edges"
        )
    if usage.emissions_left_out:
        yield (
            "emissions are left out: the counters by owner have none for "
            f"{usage.request.policy}; give --carbon G/KWH, or --policy idle_shared"
        )
    yield from _emission_notes(usage)
    if any(row.work for row in usage.groups):
        yield (
            "per unit, as in analyzer report: energy of the GPUs during the phases in which the "
            "work was done, else over the whole run, on all nodes of the run; on shared GPUs that "
            "attributed to the whole run; in runs without GPUs that of the CPUs"
        )
    yield from _unmeasured_notes(usage)
    origin = "counters by owner" if usage.by_owners else "series of runs"
    shared = "divided among its runs" if usage.by_owners else "counted for each of its runs"
    yield f"energy from the {origin} at {usage.facts.name}; GPU hours of a shared GPU are {shared}"


def _cut_notes(usage: Usage) -> Iterator[str]:
    """Yield notes on nodes of which a part of the window is not measured."""
    facts = usage.facts
    if facts.begins:
        texts = [begin_text(node, t, facts) for node, t in sorted(facts.begins.items())]
        yield (
            f"no samples at the start of the window: {_listed(texts)}; rows with ≥ lack what was "
            "used before"
        )
    if late := _without_end(usage):
        yield (
            f"no samples at the end of the window from {_listed(late)}: energy after the last "
            "sample is missing"
        )
    if facts.fell:
        yield (
            f"counters of {_listed(facts.fell)} fell: rows with ≥ lack what was used between the "
            "last sample before a restart and the restart"
        )


def _control_notes(usage: Usage) -> Iterator[str]:
    """Yield notes on parts that do not add up: of all nodes, of each node, and of each row."""
    remainder_j = usage.remainder.energy_j
    device_j = usage.total.energy_j
    if abs(remainder_j) > _SHOWN_REMAINDER * device_j:
        warning = "warning: " if abs(remainder_j) > _REPORTED * device_j else ""
        size = f"{signed_joules_text(remainder_j)} of {joules_text(Figure(device_j))}"
        if device_j:
            size = f"{100 * remainder_j / device_j:+.2g} %"
        yield f"{warning}remainder {size} of the devices' energy: {_REMAINDER[usage.by_owners]}"
    nodes = [
        f"{node} ({100 * rest_j / node_j:+.2g} %)"
        for node, (rest_j, node_j) in sorted(usage.nodes_remainder_j.items())
        if abs(rest_j) > _REPORTED * node_j > 0
    ]
    if nodes and len(usage.facts.nodes) > 1:
        yield f"remainder by node, above 1 %: {_listed(nodes)}"
    below = [
        f"{', '.join(row.keys)} ({joules_text(Figure((row.runs_j or 0.0) - row.energy_j))})"
        for row in usage.groups
        if row.is_below_runs
    ]
    if below:
        yield (
            f"warning: the runs of these rows have more energy than their counters by owner: "
            f"{_listed(below)}; new owners are counted 65 s later"
        )


def _idle_note(usage: Usage) -> str:
    idle = f"energy of GPUs without a run: {energy_text(Figure(usage.idle_j))}"
    gpu_j = usage.total.joules.get("gpu", 0.0)
    share = f", {100 * usage.idle_j / gpu_j:.1f} % of the energy of all GPUs" if gpu_j else ""
    return f"{idle}{share}"


def _emission_notes(usage: Usage) -> Iterator[str]:
    for basis, share in usage.emission_shares.items():
        if share < COMPLETE_EMISSIONS:
            yield (
                f"warning: emissions ({basis}) are of {100 * share:.0f} % of the devices' energy: "
                f"no {basis} carbon intensity was known for the rest; give --carbon G/KWH for all "
                "of it"
            )
    has_own = any(kind != GIVEN for row in usage.groups for kind in row.grams)
    if has_own and not usage.by_owners:
        yield (
            "emissions of a group are the attributed part of its runs' emissions, which lack the "
            "last 6 s of runs that go on at the end of the window"
        )


def _unmeasured_notes(usage: Usage) -> Iterator[str]:
    for unit in usage.units:
        amount = math.fsum(row.work[unit].unmeasured for row in usage.groups if unit in row.work)
        if amount > 0:
            text = f"{units.amount(amount, '').strip()} {unit.replace('_', ' ')}"
            yield f"energy per unit leaves out {text} of runs whose energy was not measured"


def _without_end(usage: Usage) -> list[str]:
    facts = usage.facts
    late_s = facts.end_s - end_tolerance_s(facts.end_s - facts.start_s)
    return sorted(node for node, t in facts.ends.items() if t <= late_s)


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return f"{', '.join(texts[:_NAMED])}{more}"


def _document(usage: Usage, price: Price | None, groups: Sequence[UsageRow]) -> dict[str, Any]:
    facts = usage.facts
    return {
        "version": 1,
        "start_unix_seconds": facts.start_s,
        "end_unix_seconds": facts.end_s,
        "by": list(usage.request.by),
        "policy": usage.request.policy,
        "price_per_kilowatt_hour": price.per_kwh if price else None,
        "currency": (price.currency or None) if price else None,
        "groups": [_entry(usage, price, row) for row in groups],
        "groups_left_out": len(usage.groups) - len(groups),
        "runs": _entry(usage, price, usage.runs),
        "unattributed": [_entry(usage, price, row) for row in usage.unattributed],
        "remainder": _entry(usage, price, usage.remainder),
        "total": _entry(usage, price, usage.total),
        "idle_gpu_energy_joules": usage.idle_j,
        "emissions_energy_ratio": usage.emission_shares,
        "nodes": list(facts.nodes),
        "nodes_count_from_unix_seconds": dict(sorted(facts.begins.items())),
        "nodes_without_samples_at_start": sorted(facts.begins),
        "nodes_without_samples_at_end": _without_end(usage),
        "nodes_with_fallen_counters": list(facts.fell),
        "remainder_energy_joules_by_node": {
            node: rest_j for node, (rest_j, _) in sorted(usage.nodes_remainder_j.items())
        },
        "from": "owner counters" if usage.by_owners else "run series",
        "source": facts.name,
        "notes": list(_notes(usage, price)),
    }


def _entry(usage: Usage, price: Price | None, row: UsageRow) -> dict[str, Any]:
    return {
        **dict(zip(usage.request.by, row.keys, strict=True)),
        **_figures(usage, price, row),
        **{f"{name}_energy_joules": joules for name, joules in row.joules.items()},
        "emissions": [
            {"basis": basis, "quality": quality, "emissions_grams": value}
            for (basis, quality), value in row.grams.items()
        ],
        "work": {
            unit: {
                "amount": use.amount,
                "amount_without_energy": use.unmeasured,
                "energy_of_its_runs_joules": use.joules,
                "energy_per_unit_joules": use.joules_per_unit,
            }
            for unit, use in row.work.items()
        },
    }


def _figures(usage: Usage, price: Price | None, row: UsageRow) -> dict[str, Any]:
    energy = row.energy
    reason = "; ".join(sorted(row.reasons)) or "no energy of its runs in the window was measured"
    stated = to_json(energy or unknown(reason), "energy", "joules")
    stated.pop("energy_covered_ratio", None)
    return {
        "runs": row.runs,
        **stated,
        "energy_kilowatt_hours": None if energy is None else energy.number / JOULES_PER_KWH,
        "energy_share_ratio": usage.share(row),
        "energy_by_runs_joules": row.runs_j,
        "gpu_hours": None if row.gpu_seconds is None else row.gpu_seconds / _SECONDS_PER_HOUR,
        "cost": _cost(row, price) if price else None,
        "emissions_grams": {basis: _grams(row, basis) for basis, _ in row.grams},
    }


def _record(usage: Usage, price: Price | None, row: UsageRow) -> dict[str, Any]:
    """Return one row of the CSV, with the same columns for every row; `row` is its role."""
    rows = (usage.total, *usage.groups)
    components = dict.fromkeys(name for one in rows for name in one.joules)
    figures = _figures(usage, price, row)
    record: dict[str, Any] = {
        "row": row.kind,
        **dict(zip(usage.request.by, row.keys, strict=True)),
        **{name: value for name, value in figures.items() if name not in _NOT_IN_CSV},
        "energy_state": figures.get("energy_state", "known"),
        "energy_reason": figures.get("energy_reason", ""),
        "currency": price.currency if price else None,
    }
    record |= {f"{name}_energy_joules": row.joules.get(name) for name in components}
    for kind in _kinds(usage):
        record[f"emissions_{'_'.join(kind)}_grams"] = row.grams.get(kind)
    for basis, share in usage.emission_shares.items():
        record[f"emissions_{basis}_energy_ratio"] = share if row.kind == "total" else None
    for unit in dict.fromkeys(unit for one in usage.groups for unit in one.work):
        use = row.work.get(unit)
        record[unit] = use.amount if use else None
        name = f"energy_per_{unit_of_one(unit).replace(' ', '_')}_joules"
        record[name] = use.joules_per_unit if use else None
    return record


_NOT_IN_CSV = ("emissions_grams", "energy_rest_limits_joules", "energy_state", "energy_reason")

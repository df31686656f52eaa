"""Rows of `analyzer usage`: groups, and the parts that add up to the devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wattline.figures import Figure, sum_of_independent
from wattline_analyzer.usage.fleet import Fleet, FleetGroup, GroupWork


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A row of the table; `kind` is its role in documents."""

    kind: str
    group: FleetGroup


def total_rows(fleet: Fleet) -> Iterator[UsageRow]:
    """Yield the rows that add up to the devices: runs, unattributed, remainder; and the total."""
    blank = ("",) * (len(fleet.by) - 1)
    runs = _sum(("(runs)", *blank), fleet.groups)
    if {"node", "gpu_model"} & set(fleet.by):  # a run can be in several groups
        runs = replace(runs, runs=None)
    yield UsageRow("runs", runs)
    lone = fleet.unattributed[0] if len(fleet.unattributed) == 1 else None
    grams = (
        _difference(fleet.device_grams, [runs.grams])
        if lone and not lone.grams and not fleet.by_owners
        else {}
    )
    unattributed = [
        FleetGroup(
            _unattributed_keys(one),
            one.joules,
            grams=grams or one.grams,
            gpu_seconds=one.gpu_seconds,
        )
        for one in fleet.unattributed
    ]
    yield from (UsageRow("unattributed", one) for one in unattributed)
    parts = [runs, *unattributed]
    remainder = FleetGroup(
        ("(remainder)", *blank),
        _difference(fleet.devices, [one.joules for one in parts]),
        grams=_difference(fleet.device_grams, [one.grams for one in parts]),
    )
    yield UsageRow("remainder", remainder)
    seconds = [one.gpu_seconds for one in parts]
    yield UsageRow(
        "total",
        FleetGroup(
            ("(total)", *blank),
            fleet.devices,
            runs.runs,
            grams=fleet.device_grams,
            gpu_seconds=None if None in seconds[1:] else _added(seconds),
        ),
    )


def _unattributed_keys(group: FleetGroup) -> tuple[str, ...]:
    texts = ["" if text.startswith("(") and text != "(none)" else text for text in group.keys]
    first = "(unattributed)" if not texts[0] else f"{texts[0]} (unattributed)"
    return (first, *texts[1:])


def _difference(
    whole: Mapping[Any, float], parts: Sequence[Mapping[Any, float]]
) -> dict[Any, float]:
    names = dict.fromkeys((*whole, *(name for part in parts for name in part)))
    return {
        name: math.fsum([whole.get(name, 0.0), *(-part.get(name, 0.0) for part in parts)])
        for name in names
    }


def _sum(keys: tuple[str, ...], groups: Sequence[FleetGroup]) -> FleetGroup:
    joules = _added_by_name(group.joules for group in groups)
    return FleetGroup(
        keys,
        joules,
        None
        if None in (numbers := [group.runs for group in groups])
        else sum(number or 0 for number in numbers),
        _added_work(groups),
        _added_by_name(group.grams for group in groups),
        _added([group.gpu_seconds for group in groups]),
        sum_of_independent(Figure(0.0, group.half_j) for group in groups).half_width,
    )


def _added(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def _added_by_name(parts: Iterable[Mapping[Any, float]]) -> dict[Any, float]:
    found: dict[Any, float] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found.get(name, 0.0) + value
    return found


def _added_work(groups: Iterable[FleetGroup]) -> dict[str, GroupWork]:
    found: dict[str, GroupWork] = {}
    for group in groups:
        for unit, work in group.work.items():
            earlier = found.get(unit, GroupWork(0.0, 0.0))
            found[unit] = GroupWork(
                earlier.amount + work.amount,
                earlier.joules + work.joules,
                earlier.unmeasured + work.unmeasured,
            )
    return found


def rest_row(fleet: Fleet, top: int) -> UsageRow:
    rest = fleet.groups[top:]
    return UsageRow("group", _sum((f"({len(rest)} more)", *("" for _ in fleet.by[1:])), rest))

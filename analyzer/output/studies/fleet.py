"""A fleet's energy, by whose it is, as `analyzer fleet` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from analyzer.model.interval import Interval
from analyzer.output import units
from analyzer.output.view import Table, View
from analyzer.studies.fleet import GIVEN, RATHER_FAR, Fleet, Group, Keys

_MOST_UNITS = 3
T = TypeVar("T")


def view(found: Fleet, top: int) -> View:
    """The `top` dearest groups; the others are one row."""
    shown, rest = found.groups[:top], found.groups[top:]
    unit_names = _units(found.groups)
    kinds = list(dict.fromkeys(kind for group in found.groups for kind in group.grams))
    head = [*found.by, "runs", "energy", "share", *(_kind(kind) for kind in kinds)]
    head += [text for unit in unit_names for text in (unit.replace("_", " "), f"per {units.singular(unit)}")]
    listed = [*shown, *([_together(rest, found.by)] if rest else []), *_nobody(found, top)]
    rows = list(zip(*_columns(found, listed, kinds, unit_names), strict=True))
    parts: list[str | Table] = [_headline(found), Table(head, rows), *_notes(found)]
    return View(parts, _document(found, top), [_flat(found, group) for group in (*shown, *found.nobody)])


def _headline(found: Fleet) -> str:
    parts = ", ".join(f"{name.upper()} {units.plain_energy(joules)}" for name, joules in found.devices.items())
    span = units.span(found.means.start_s, found.means.end_s)
    return f"{span}\nall devices: {units.plain_energy(found.device_j)} ({parts})"


def _columns(
    found: Fleet, groups: Sequence[Group], kinds: Sequence[tuple[str, str]], unit_names: Sequence[str]
) -> Iterator[Sequence[str]]:
    """All figures of a column in one unit."""
    yield from zip(*(group.keys for group in groups), strict=True)
    yield [_known(group.runs, lambda runs: f"{runs:,}") for group in groups]
    of_j = units.largest(group.energy_j for group in groups)
    yield [units.plain_energy(group.energy_j, of_j) for group in groups]
    yield [f"{100 * group.energy_j / found.device_j:.1f} %" if found.device_j else "–" for group in groups]
    for kind in kinds:
        masses_g = [group.grams.get(kind) for group in groups]
        yield [_known(mass_g, partial(units.plain_mass, of=units.largest(masses_g))) for mass_g in masses_g]
    for unit in unit_names:
        works = [group.work.get(unit) for group in groups]
        yield [_known(work, lambda work: units.amount(work.amount, "").strip()) for work in works]
        each_j = [work.joules_per_unit if work else None for work in works]
        yield [_known(one_j, partial(_per_unit, unit=unit, of=units.largest(each_j))) for one_j in each_j]


def _known(value: T | None, text: Callable[[T], str]) -> str:
    return "–" if value is None else text(value)


def _per_unit(joules: float, unit: str, of: float) -> str:
    return units.energy_per_unit(Interval(joules), unit, of).partition(" per ")[0]


def _notes(found: Fleet) -> list[str]:
    notes = []
    if found.device_j:
        held = f"GPUs that no run held drew {units.plain_energy(found.idle_j)}"
        gpu_j = found.devices.get("gpu", 0.0)
        notes.append(f"{held}, {100 * found.idle_j / gpu_j:.1f} % of all GPUs' energy" if gpu_j else held)
    if found.device_grams:
        total = ", ".join(f"{_kind(kind)} {units.plain_mass(grams)}" for kind, grams in found.device_grams.items())
        notes.append(f"all devices: {total}; what stands with a group is its share of its runs' emissions")
    if found.apart is not None:
        claimed = (
            f"runs {units.plain_energy(found.claimed_j)} ({found.policy}), no run {units.plain_energy(found.nobody_j)}"
        )
        notes.append(f"{claimed}: together {100 * found.apart:+.2f} % beside the devices' counters")
        if abs(found.apart) > RATHER_FAR:
            notes.append(
                "warning: the parts do not add up to the devices' counters: was an exporter's state folder replaced, "
                "or are some of its series dropped by the scrape's configuration?"
            )
    why = f"; {found.means.why_not_rules}" if found.means.why_not_rules else ""
    moved = f"{found.means.asked} queries, {found.means.moved_bytes / 1e3:.1f} kB"
    notes.append(f"from {found.means.by} at {found.means.server} ({moved}){why}")
    return notes


def _units(groups: Sequence[Group]) -> list[str]:
    """Tokens first, then what most groups count."""
    number: dict[str, int] = {}
    for group in groups:
        for unit in group.work:
            number[unit] = number.get(unit, 0) + 1
    return sorted(number, key=lambda unit: ("tokens" not in unit, -number[unit], unit))[:_MOST_UNITS]


def _together(groups: Sequence[Group], by: Keys) -> Group:
    joules: dict[str, float] = {}
    for group in groups:
        for component, value in group.joules.items():
            joules[component] = joules.get(component, 0.0) + value
    runs = [group.runs for group in groups]
    known = None if None in runs else sum(number or 0 for number in runs)
    return Group((f"({len(groups)} more)", *("" for _ in by[1:])), joules, known)


def _nobody(found: Fleet, top: int) -> list[Group]:
    shown, rest = found.nobody[:top], found.nobody[top:]
    return [*shown, _together(rest, found.by)] if rest else list(shown)


def _kind(kind: tuple[str, str]) -> str:
    return f"CO₂eq ({kind[0]})" if kind == GIVEN else f"CO₂eq ({kind[0]}, {kind[1]})"


def _document(found: Fleet, top: int) -> dict[str, Any]:
    return {
        "version": 1,
        "start_unix_seconds": found.means.start_s,
        "end_unix_seconds": found.means.end_s,
        "by": list(found.by),
        "policy": found.policy,
        "devices": {f"{name}_energy_joules": joules for name, joules in found.devices.items()},
        "devices_energy_joules": found.device_j,
        "devices_emissions": _emissions(found.device_grams),
        "runs_energy_joules": found.claimed_j,
        "no_run_energy_joules": found.nobody_j,
        "idle_gpu_energy_joules": found.idle_j,
        "parts_beside_devices_ratio": found.apart,
        "groups": [_group(found, group) for group in found.groups[:top]],
        "groups_left_out": max(len(found.groups) - top, 0),
        "no_run": [_group(found, group) for group in found.nobody],
        "from": found.means.by,
        "why_not_rules": found.means.why_not_rules or None,
        "source": found.means.server,
        "parts_of_the_window": found.means.spans,
        "queries": found.means.asked,
        "moved_bytes": found.means.moved_bytes,
    }


def _group(found: Fleet, group: Group) -> dict[str, Any]:
    return {
        **dict(zip(found.by, group.keys, strict=True)),
        "runs": group.runs,
        "energy_joules": group.energy_j,
        **{f"{name}_energy_joules": joules for name, joules in group.joules.items()},
        "share_of_devices_ratio": group.energy_j / found.device_j if found.device_j else None,
        "work": {
            unit: {
                "amount": work.amount,
                "energy_of_its_runs_joules": work.joules,
                "energy_per_unit_joules": work.joules_per_unit,
            }
            for unit, work in group.work.items()
        },
        "emissions": _emissions(group.grams),
    }


def _emissions(grams: Mapping[tuple[str, str], float]) -> list[dict[str, Any]]:
    return [{"basis": basis, "quality": quality, "emissions_grams": value} for (basis, quality), value in grams.items()]


def _flat(found: Fleet, group: Group) -> dict[str, Any]:
    """A row of the CSV: the same columns for all."""
    kinds = dict.fromkeys(kind for one in found.groups for kind in one.grams)
    unit_names = dict.fromkeys(unit for one in found.groups for unit in one.work)
    components = dict.fromkeys((*found.devices, *(name for one in found.groups for name in one.joules)))
    row: dict[str, Any] = {
        **dict(zip(found.by, group.keys, strict=True)),
        "runs": group.runs,
        "energy_joules": group.energy_j,
        **{f"{name}_energy_joules": group.joules.get(name) for name in components},
    }
    row |= {f"emissions_{basis}_{quality}_grams": group.grams.get((basis, quality)) for basis, quality in kinds}
    for unit in unit_names:
        work = group.work.get(unit)
        row[unit] = work.amount if work else None
        row[f"energy_per_{units.singular(unit).replace(' ', '_')}_joules"] = work.joules_per_unit if work else None
    return row

"""Runs, or groups of runs, beside each other: what may be pooled, and what differs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from analyzer.model.interval import Interval
from analyzer.model.report import Report
from analyzer.model.samples import RunFrames, last
from analyzer.studies.contrast import Difference, Sample, differences, levels
from analyzer.studies.spread import Estimate
from exporter.contract import metrics as m

_SAVES = ("saves {}", "costs {} more")
_LASTS = ("takes {} less time", "takes {} more time")
_RATES = ("is {} slower", "is {} faster")
_EMITS = ("emits {} less", "emits {} more")


class MixedError(Exception):
    """The runs are not alike in what would have to be; the text names in what, and which run has what."""


class TwiceError(Exception):
    """One run is in two groups."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What is compared; `key` carries the unit, `kind` tells how to print it, `of` is the unit of work, if any."""

    key: str
    kind: str
    name: str
    of: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """One run: its figures, and by aspect what it must share with others to be pooled."""

    run_id: str
    repeat: str | None
    identity: Mapping[str, str]
    gpus: frozenset[str]
    figures: Mapping[Figure, Interval]


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of all groups that have it in each of their runs; differences are those against the first group."""

    figure: Figure
    levels: tuple[Estimate | None, ...]
    differences: tuple[Difference | None, ...]
    less: str
    more: str


@dataclass(frozen=True, slots=True)
class Comparison:
    groups: tuple[Group, ...]
    lines: tuple[Line, ...]
    warnings: tuple[str, ...]


def member(frames: RunFrames, report: Report) -> Member:
    """Of one run; energies of devices that others used at the same time are a boundary of their own."""
    names = sorted(f"{device.name or 'unknown GPU'}" for device in report.gpus)
    models = [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
    return Member(
        report.run_id,
        report.labels.get("repeat"),
        {
            "hosts": ", ".join(report.instances) or "local",
            "drivers": ", ".join(_drivers(frames, report)) or "unknown",
            "GPU models": " + ".join(models) or "no GPU",
            "units": ", ".join(sorted(work.unit for work in report.work)) or "no work",
            "boundaries": _boundary(report),
        },
        frozenset(device.device for device in report.gpus),
        dict(_figures(report)),
    )


def _drivers(frames: RunFrames, report: Report) -> list[str]:
    mine = {device.device for device in report.gpus}
    rows = last(frames.raw, m.GPU_INFO) if len(frames.raw) else []
    return sorted({row.labels.get("driver_version", "") for row in rows if row.labels.get("uuid") in mine} - {""})


def _boundary(report: Report) -> str:
    """What was counted: the components, those that were shared, and the phases in which work is counted."""
    shared = {device.component for device in report.devices if device.shared}
    parts = []
    for component in report.energy:
        told = (("shared", component in shared), ("estimated", component in report.estimated))
        notes = [note for note, holds in told if holds]
        parts.append(component.upper() + (f" ({', '.join(notes)})" if notes else ""))
    phases = sorted({" + ".join(work.phases) or "the whole run" for work in report.work})
    return " + ".join(parts) + (f", work of {' and '.join(phases)}" if phases else "")


def _figures(report: Report) -> list[tuple[Figure, Interval]]:
    found = [
        (Figure(f"energy_{component}_joules", "energy", f"energy, {component.upper()}"), energy)
        for component, energy in report.energy.items()
    ]
    found.append((Figure("duration_seconds", "duration", "duration"), Interval(report.duration_s)))
    for work in report.work:
        if work.energy_per_unit:
            key, name = f"energy_per_{work.unit}_joules", "energy per unit"
            found.append((Figure(key, "energy_per_unit", name, work.unit), work.energy_per_unit))
        if work.per_second:
            key = f"{work.unit}_per_second"
            found.append((Figure(key, "rate", "rate", work.unit), Interval(work.per_second)))
    for sum_ in report.emission_totals:
        key = f"emissions_{sum_.basis}_{sum_.origin.replace(' ', '_')}_grams"
        found.append((Figure(key, "emissions", f"emissions, {sum_.basis}, {sum_.origin}"), sum_.mass_g))
    return found


def differing(groups: Sequence[Group]) -> dict[str, dict[str, list[str]]]:
    """By aspect in which not all runs are alike: by what they have, which runs have it."""
    found: dict[str, dict[str, list[str]]] = {}
    for one in (one for group in groups for one in group.members):
        for aspect, text in one.identity.items():
            found.setdefault(aspect, {}).setdefault(text, []).append(one.run_id)
    return {aspect: texts for aspect, texts in found.items() if len(texts) > 1}


def compare(groups: Sequence[Group], *, force: bool = False) -> Comparison:
    """Each against the first. Raises MixedError for runs that are not alike, unless forced to pool them, and
    TwiceError.
    """
    _refuse_twice(groups)
    mixed = [_mixture(aspect, texts) for aspect, texts in differing(groups).items()]
    if mixed and not force:
        raise MixedError("the runs differ in " + "; in ".join(mixed))
    warnings = [f"pooled by force, though the runs differ in {text}" for text in mixed]
    if len({one.gpus for group in groups for one in group.members}) > 1:
        warnings.append(
            "not all runs were on the same GPUs; cards of one model differ by some percent: see variability"
        )
    return Comparison(tuple(groups), tuple(_lines(groups)), tuple(warnings))


def _mixture(aspect: str, texts: Mapping[str, Sequence[str]]) -> str:
    some = [
        f"{text} ({', '.join(ids[:3])}{f' and {len(ids) - 3} more' * (len(ids) > 3)})" for text, ids in texts.items()
    ]
    return f"{aspect}: {' against '.join(some)}"


def _refuse_twice(groups: Sequence[Group]) -> None:
    seen: dict[str, str] = {}
    for group in groups:
        for one in group.members:
            if one.run_id in seen:
                raise TwiceError(f"run {one.run_id} is in {seen[one.run_id]} and in {group.name}")
            seen[one.run_id] = group.name


def _lines(groups: Sequence[Group]) -> list[Line]:
    figures = dict.fromkeys(figure for group in groups for one in group.members for figure in one.figures)
    words: dict[str, tuple[str, str]] = {"duration": _LASTS, "rate": _RATES, "emissions": _EMITS}
    lines = []
    for figure in figures:
        samples = [_samples(group, figure, paired=_paired(groups)) for group in groups]
        there = [position for position, group in enumerate(samples) if group]
        known = [group for group in samples if group]
        by_level = dict(zip(there, levels(known), strict=True))
        against = dict(zip(there[1:], differences(known), strict=True)) if there[:1] == [0] else {}
        positions = range(len(groups))
        lines.append(
            Line(
                figure,
                tuple(by_level.get(position) for position in positions),
                tuple(against.get(position) for position in positions),
                *words.get(figure.kind, _SAVES),
            )
        )
    return [line for line in lines if any(line.levels)]


def _samples(group: Group, figure: Figure, *, paired: Callable[[Member], object]) -> list[Sample]:
    """Empty where one of the runs does not have it, or has none of it."""
    values = [one.figures.get(figure) for one in group.members]
    if any(value is None or value.value <= 0 for value in values):
        return []
    return [
        Sample(value, str(paired(one))) for one, value in zip(group.members, values, strict=True) if value is not None
    ]


def _paired(groups: Sequence[Group]) -> Callable[[Member], object]:
    """Repeats were made beside each other where each group has the same ones, once each."""
    repeats = [sorted(str(one.repeat) for one in group.members) for group in groups]
    named = all(one.repeat for group in groups for one in group.members)
    alike = named and all(each == repeats[0] for each in repeats) and len(set(repeats[0])) == len(repeats[0])
    return (lambda one: one.repeat) if alike else (lambda one: one.run_id)

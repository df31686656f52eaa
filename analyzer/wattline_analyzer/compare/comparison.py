"""Comparison of runs or groups of runs: comparability and differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wattline.contract import metrics as m
from wattline.contract.work import is_useful, most_common_first
from wattline.figures import Figure, short_text
from wattline_analyzer.core.devices import SIMULATED
from wattline_analyzer.core.emissions import origin_text
from wattline_analyzer.core.recorded_run import RecordedRun
from wattline_analyzer.core.run_report import Report, Work
from wattline_analyzer.core.sample_table import last
from wattline_analyzer.core.statistics import (
    RatioDifference,
    RunValue,
    geometric_means,
    outliers,
    ratios_to_first,
)

_SAVES = ("saves {}", "costs {} more")
_LASTS = ("takes {} less time", "takes {} more time")
_RATES = ("has a {} lower rate", "has a {} higher rate")
_EMITS = ("emits {} less", "emits {} more")
_EQUAL_RATIO = 0.02
"""Difference between groups up to which amounts of work count as equal."""


class MixedRunsError(Exception):
    """Runs that are not comparable; the message names each difference and its runs."""


class RepeatedRunError(Exception):
    """A run that is in two groups."""


@dataclass(frozen=True, slots=True)
class RunFigure:
    """A figure to compare. `key` has its unit, `kind` its format, `of` its unit of work, if any."""

    key: str
    kind: str
    name: str
    of: str = ""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One run: its figures, and the aspects in which pooled runs must be identical."""

    run_id: str
    repeat: str | None
    identity: Mapping[str, str]
    gpus: frozenset[str]
    figures: Mapping[RunFigure, Figure]
    work: Mapping[str, float] = field(default_factory=dict)
    """Amount of work of the whole run, by unit, the primary one first."""
    started_at_s: float = 0.0
    is_attributed: bool = False
    """True if others used its devices, so that the energy per unit is of its share, and the energy
    of the whole.
    """


@dataclass(frozen=True, slots=True)
class RunGroup:
    name: str
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class ComparisonLine:
    """One figure by group, and its differences from the first group; None where a run of the group
    lacks it. `outliers` are the runs that are left out.
    """

    figure: RunFigure
    levels: tuple[Figure | None, ...]
    differences: tuple[RatioDifference | None, ...]
    less: str
    more: str
    outliers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupComparison:
    groups: tuple[RunGroup, ...]
    lines: tuple[ComparisonLine, ...]
    warnings: tuple[str, ...]


def group_member(recorded: RecordedRun, report: Report) -> GroupMember:
    """Return a run as a member; energy of shared devices is a different boundary."""
    names = sorted(f"{device.name or 'unknown GPU'}" for device in report.gpus)
    models = [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
    return GroupMember(
        report.run_id,
        report.labels.get("repeat"),
        {
            "hosts": ", ".join(report.instances) or "local",
            "drivers": ", ".join(_drivers(recorded, report)) or "unknown",
            "GPUs": " + ".join(models) or "no GPU",
            "units": ", ".join(sorted(work.unit for work in report.work)) or "no work",
            "boundaries": _boundary(report),
        },
        frozenset(device.device for device in report.gpus),
        dict(_figures(report)),
        {work.unit: work.amount for work in report.work},
        report.started_at_s,
        any(work.whole_devices for work in report.work),
    )


def _drivers(recorded: RecordedRun, report: Report) -> list[str]:
    mine = {device.device for device in report.gpus}
    rows = last(recorded.raw, m.GPU_INFO) if len(recorded.raw) else []
    return sorted(
        {row.labels.get("driver_version", "") for row in rows if row.labels.get("uuid") in mine}
        - {""}
    )


def _boundary(report: Report) -> str:
    """Return the components, with shared and estimated ones marked, and the phases with work."""
    shared = {device.component for device in report.devices if device.shared}
    parts = []
    for component in report.energy:
        flags = (("shared", component in shared), ("estimated", component in report.estimated))
        notes = [note for note, holds in flags if holds]
        parts.append(component.upper() + (f" ({', '.join(notes)})" if notes else ""))
    covered = sorted({_covered(work) for work in report.work})
    return " + ".join(parts) + (f", energy per unit {' and '.join(covered)}" if covered else "")


def _covered(work: Work) -> str:
    if work.whole_devices:
        return "attributed to the run"
    return f"of the phase {' + '.join(work.phases)}" if work.phases else "of the whole run"


def _figures(report: Report) -> list[tuple[RunFigure, Figure]]:
    found = [
        (RunFigure(f"energy_{component}_joules", "energy", f"energy, {component.upper()}"), energy)
        for component, energy in report.energy.items()
    ]
    found.append((RunFigure("duration_seconds", "duration", "duration"), Figure(report.duration_s)))
    for work in report.work:
        if work.energy_per_unit:
            key = f"energy_per_{work.unit}_joules"
            name = "energy per unit"
            found.append((RunFigure(key, "energy_per_unit", name, work.unit), work.energy_per_unit))
        if work.per_second:
            key = f"{work.unit}_per_second"
            found.append((RunFigure(key, "rate", "rate", work.unit), Figure(work.per_second)))
    given = {sum_.basis for sum_ in report.emission_totals if sum_.origin == "given intensity"}
    for sum_ in report.emission_totals:
        if sum_.origin == "ledger" and sum_.basis in given:
            continue  # the user replaces the intensity of the exporter
        key = f"emissions_{sum_.basis}_{sum_.origin.replace(' ', '_')}_grams"
        origin = "" if sum_.origin == "ledger" else f", {origin_text(sum_.origin)}"
        name = f"emissions, {sum_.basis}{origin}"
        found.append((RunFigure(key, "emissions", name), sum_.mass_g))
    return found


def differing_aspects(groups: Sequence[RunGroup]) -> dict[str, dict[str, list[str]]]:
    """Return the aspects that differ between runs, with the runs of each value."""
    found: dict[str, dict[str, list[str]]] = {}
    for one in (one for group in groups for one in group.members):
        for aspect, text in one.identity.items():
            found.setdefault(aspect, {}).setdefault(text, []).append(one.run_id)
    return {aspect: texts for aspect, texts in found.items() if len(texts) > 1}


def compare_groups(
    groups: Sequence[RunGroup], known_warnings: Sequence[str] = (), *, force: bool = False
) -> GroupComparison:
    """Compare each group with the first. Raises RepeatedRunError, and MixedRunsError unless
    forced.
    """
    warnings = group_warnings(groups, known_warnings, force=force)
    return GroupComparison(tuple(groups), tuple(_lines(groups)), tuple(warnings))


def group_warnings(
    groups: Sequence[RunGroup], known_warnings: Sequence[str] = (), *, force: bool = False
) -> list[str]:
    """Return warnings about the comparison. Raises RepeatedRunError, and MixedRunsError unless
    forced.
    """
    _refuse_twice(groups)
    mixed = [_mixture(aspect, texts) for aspect, texts in differing_aspects(groups).items()]
    if mixed and not force:
        raise MixedRunsError("the runs differ in " + "; in ".join(mixed) + _whole_run_hint(mixed))
    warnings = [
        *known_warnings,
        *(f"pooled with --force although the runs differ in {text}" for text in mixed),
    ]
    if len({one.gpus for group in groups for one in group.members}) > 1:
        warnings.append(
            "the runs used different GPUs; GPUs of one model differ by some percent, see: analyzer "
            "variability"
        )
    if any(SIMULATED in one.identity.get("GPUs", "") for group in groups for one in group.members):
        warnings.append("SIMULATED hardware: the figures do not describe a real GPU")
    return [*warnings, *_missing_figures(groups), *unequal_work(groups)]


def _missing_figures(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield which runs lack a figure that other runs have: their group has no value then."""
    members = [one for group in groups for one in group.members]
    lacking: dict[tuple[str, ...], list[str]] = {}
    for figure in dict.fromkeys(figure for one in members for figure in one.figures):
        without = [one.run_id for one in members if not _has(one, figure)]
        if without:
            name = f"{figure.name}, {figure.of.replace('_', ' ')}" if figure.of else figure.name
            lacking.setdefault(tuple(without), []).append(name)
    for run_ids, names in lacking.items():
        yield (
            f"no {' and no '.join(names)} of {', '.join(run_ids)}: a group with such a run has "
            "no value"
        )


def _has(one: GroupMember, figure: RunFigure) -> bool:
    value = one.figures.get(figure)
    return value is not None and value.number > 0


def unequal_work(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield the primary unit of which the runs of two groups did different amounts."""
    amounts = [[one.work for one in group.members] for group in groups]
    units = most_common_first(
        [unit for unit in work if is_useful(unit)] for group in amounts for work in group
    )
    for unit in units[:1]:
        means = [
            sum(work.get(unit, 0.0) for work in group) / len(group) for group in amounts if group
        ]
        if min(means) < (1 - _EQUAL_RATIO) * max(means):
            parts = ", ".join(
                f"{group.name} {short_text(mean)}"
                for group, mean in zip(groups, means, strict=True)
            )
            yield (
                f"the groups did different amounts of work (mean {unit.replace('_', ' ')} of a "
                f"run: {parts}): compare "
                "the energy per unit, not the energy and duration of the runs"
            )


def _whole_run_hint(mixed: Sequence[str]) -> str:
    if not any("of the whole run" in text and "of the phase" in text for text in mixed):
        return ""
    return (
        "; work counts for the whole run if it was counted outside of phases, or in a phase "
        "shorter than 1 s, which "
        "has no energy: count it in the same phases, of 1 s or longer"
    )


def _mixture(aspect: str, texts: Mapping[str, Sequence[str]]) -> str:
    some = [
        f"{text} ({', '.join(ids[:3])}{f' and {len(ids) - 3} more' * (len(ids) > 3)})"
        for text, ids in texts.items()
    ]
    return f"{aspect}: {' and '.join(some)}"


def _refuse_twice(groups: Sequence[RunGroup]) -> None:
    groups_by_run: dict[str, str] = {}
    for group in groups:
        for one in group.members:
            if one.run_id in groups_by_run:
                raise RepeatedRunError(
                    f"run {one.run_id} is in {groups_by_run[one.run_id]} and in {group.name}"
                )
            groups_by_run[one.run_id] = group.name


def _lines(groups: Sequence[RunGroup]) -> list[ComparisonLine]:
    figures = dict.fromkeys(
        figure for group in groups for one in group.members for figure in one.figures
    )
    words: dict[str, tuple[str, str]] = {"duration": _LASTS, "rate": _RATES, "emissions": _EMITS}
    lines = []
    for figure in figures:
        samples = [group_values(group, figure, paired=_paired(groups)) for group in groups]
        there = [position for position, group in enumerate(samples) if group]
        flags = outliers([samples[position] for position in there])
        known = [
            [one for one, is_outlier in zip(samples[at], marks, strict=True) if not is_outlier]
            for at, marks in zip(there, flags, strict=True)
        ]
        left_out = [
            one.run_id
            for at, marks in zip(there, flags, strict=True)
            for one, is_outlier in zip(groups[at].members, marks, strict=True)
            if is_outlier
        ]
        by_level = dict(zip(there, geometric_means(known), strict=True))
        against = (
            dict(zip(there[1:], ratios_to_first(known), strict=True)) if there[:1] == [0] else {}
        )
        positions = range(len(groups))
        lines.append(
            ComparisonLine(
                figure,
                tuple(by_level.get(position) for position in positions),
                tuple(against.get(position) for position in positions),
                *words.get(figure.kind, _SAVES),
                tuple(left_out),
            )
        )
    return [line for line in lines if any(line.levels)]


def group_values(
    group: RunGroup, figure: RunFigure, *, paired: Callable[[GroupMember], object]
) -> list[RunValue]:
    """Return the values of a group; empty if a run lacks the figure or has zero."""
    if not all(_has(one, figure) for one in group.members):
        return []
    values = [one.figures.get(figure) for one in group.members]
    return [
        RunValue(value, str(paired(one)))
        for one, value in zip(group.members, values, strict=True)
        if value is not None
    ]


def _paired(groups: Sequence[RunGroup]) -> Callable[[GroupMember], object]:
    """Return the key that pairs runs: the repeat if each group has the same repeats once, else the
    run.
    """
    repeats = [sorted(str(one.repeat) for one in group.members) for group in groups]
    named = all(one.repeat for group in groups for one in group.members)
    alike = (
        named
        and all(each == repeats[0] for each in repeats)
        and len(set(repeats[0])) == len(repeats[0])
    )
    return (lambda one: one.repeat) if alike else (lambda one: one.run_id)

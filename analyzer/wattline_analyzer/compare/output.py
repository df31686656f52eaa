"""Output of `analyzer compare`, and the text of a difference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from wattline.figures import Figure, energy_text, half_text, mass_text
from wattline_analyzer.compare.comparison import ComparisonLine, GroupComparison, RunFigure
from wattline_analyzer.core import units
from wattline_analyzer.core.statistics import (
    FALSE_CLEAR,
    FEWEST_FOR_SMALL,
    SMALL,
    RatioDifference,
)
from wattline_analyzer.core.tables import (
    Cell,
    Column,
    CommandOutput,
    Table,
    estimate_record,
    text_cell,
)

_SINGLE = "measurement uncertainty only; repeats may scatter more"
_MARK = "*"
_ROUNDED = (
    "Energies are rounded to the accuracy of the GPUs' sensors, which the CI does not include: it "
    "is the same in every "
    "run on a GPU, so differences between such runs are known better."
)
_CLEAR = (
    f"A difference is clear by a test of level {100 * FALSE_CLEAR:g} %; with fewer than "
    f"{FEWEST_FOR_SMALL} repeats a side also if it is {100 * SMALL:g} % or more."
)
_ATTRIBUTED = (
    "Energy per unit of {} is that attributed to the runs, since others used their devices as "
    "well; the energy is that "
    "of the whole devices."
)


def comparison_output(comparison: GroupComparison) -> CommandOutput:
    """Return levels and differences; only levels of a group alone."""
    short = _differing_labels([group.name for group in comparison.groups])
    names = [
        f"{name} (n = {len(group.members)})"
        for name, group in zip(short, comparison.groups, strict=True)
    ]
    rows = [[text_cell(figure_name(line.figure)), *_value_cells(line)] for line in comparison.lines]
    differences = [
        [
            text_cell(text)
            for text in (figure_name(line.figure), short[at], _marked_text(line, difference))
        ]
        for line in comparison.lines
        for at, difference in enumerate(line.differences)
        if difference
    ]
    base = comparison.groups[0].name
    is_single = any(
        one and not one.repeated for line in comparison.lines for one in line.differences
    )
    notes = [f"{_MARK} {_SINGLE}."] if is_single else []
    if any(one and one.repeated for line in comparison.lines for one in line.differences):
        notes.append(_CLEAR)
    levels = ["Geometric means with 95 % CI."]
    if any(level and level.bias for line in comparison.lines for level in line.levels):
        levels.append(_ROUNDED)
    if attributed := [
        name
        for name, group in zip(short, comparison.groups, strict=True)
        if any(member.is_attributed for member in group.members)
    ]:
        levels.append(_ATTRIBUTED.format(" and ".join(attributed)))
    levels += _left_out(comparison)
    titles = ("Figure", "Group", f"Difference from {short[0]}")
    parts: list[str | Table] = [
        Table("", [Column("Figure", text=True), *map(Column, names)], rows, notes=levels),
        *(
            [Table("", [Column(title, text=True) for title in titles], differences, notes=notes)]
            if len(comparison.groups) > 1
            else []
        ),
        *(f"warning: {text}" for text in comparison.warnings),
    ]
    records = [record for line in comparison.lines for record in _records(comparison, line)]
    document = {
        "version": 1,
        "baseline": base,
        "groups": [
            {"name": group.name, "runs": [one.run_id for one in group.members]}
            for group in comparison.groups
        ],
        "figures": records,
        "warnings": list(comparison.warnings),
    }
    return CommandOutput(parts, document, records)


def _left_out(comparison: GroupComparison) -> Iterator[str]:
    """Yield the runs that are outliers, with their figures, and the levels without limits."""
    figures: dict[tuple[str, ...], list[str]] = {}
    for line in comparison.lines:
        if line.outliers:
            figures.setdefault(line.outliers, []).append(figure_name(line.figure))
    for run_ids, names in figures.items():
        yield f"Left out as outliers of {'; '.join(names)}: {', '.join(run_ids)}."
    reasons: dict[str, list[str]] = {}
    for line in comparison.lines:
        for group, level in zip(comparison.groups, line.levels, strict=True):
            if level is not None and level.low is None and level.reason:
                name = f"{figure_name(line.figure)} of {group.name}"
                reasons.setdefault(level.reason, []).append(name)
    for reason, names in reasons.items():
        yield f"No CI of {'; '.join(names)}: {reason}."


def figure_name(figure: RunFigure) -> str:
    return f"{figure.name}, {figure.of.replace('_', ' ')}" if figure.of else figure.name


def _text(line: ComparisonLine, difference: RatioDifference) -> str:
    return difference_text(difference, line.less, line.more)


def _marked_text(line: ComparisonLine, difference: RatioDifference) -> str:
    return _text(line, difference).replace(f", {_SINGLE}", _MARK)


def _differing_labels(names: Sequence[str]) -> list[str]:
    """Return the names of groups without the labels that all of them have."""
    labels = [name.split(",") for name in names]
    common = set(labels[0]).intersection(*labels[1:])
    short = [",".join(one for one in each if one not in common) for each in labels]
    return short if all(short) else list(names)


def _value_cells(line: ComparisonLine) -> list[Cell]:
    """Return the values of all groups in one unit."""
    largest = units.largest(level.value for level in line.levels if level)
    return [_value_cell(line.figure, level, largest) for level in line.levels]


def _value_cell(figure: RunFigure, level: Figure | None, largest: float) -> Cell:
    if level is None:
        return Cell()
    text = f"{value_text(figure, level, largest)}{_half_percent(level)}"
    return Cell(text, level.value, low=level.low, high=level.high)


def value_text(figure: RunFigure, level: Figure, largest: float | None = None) -> str:
    """Return the value; the systematic error of the sensors, if it is known, decides its digits."""
    if figure.kind == "duration":
        return units.duration(level.number)
    if figure.kind == "rate":
        return units.rate(level.number, figure.of)
    half = (
        None
        if level.bias is None or level.skewed is None
        else (level.skewed[1] - level.skewed[0]) / 2
    )
    quantity = replace(level, half_width=half, skewed=None)
    if figure.kind == "energy_per_unit":
        return units.energy_per_unit(quantity, figure.of, largest, half=False)
    show = mass_text if figure.kind == "emissions" else energy_text
    return show(quantity, largest, half=False)


def _half_percent(level: Figure) -> str:
    if level.low is None or level.high is None or level.high == level.low:
        return ""
    return f" (±{half_text(50 * (level.high - level.low) / level.number)} %)"


def _records(comparison: GroupComparison, line: ComparisonLine) -> list[dict[str, Any]]:
    return [
        {
            "figure": line.figure.key,
            "group": group.name,
            "n": len(group.members),
            **estimate_record(level, "value"),
            "outliers": [
                run for run in line.outliers if run in {one.run_id for one in group.members}
            ],
            "ratio": difference.ratio if difference else None,
            "ratio_low": difference.low if difference else None,
            "ratio_high": difference.high if difference else None,
            "clear": difference.clear if difference else None,
            "p": difference.p if difference else None,
            "from_repeats": difference.repeated if difference else None,
            "text": _text(line, difference) if difference else None,
        }
        for group, level, difference in zip(
            comparison.groups, line.levels, line.differences, strict=True
        )
    ]


def difference_text(difference: RatioDifference, less: str, more: str) -> str:
    """Return `saves 7 % (4 to 10 %, n = 12)`; `less` and `more` are templates such as `saves
    {}`.
    """
    count = f"n = {difference.n}" if difference.repeated or difference.n != 2 else "1 vs. 1 run"
    if difference.low is None or difference.high is None:
        why = difference.too_short or "confidence unknown"
        return f"{signed_percent(difference.ratio - 1)}, {why} ({count})"
    basis = "" if difference.repeated else f", {_SINGLE}"
    if not difference.clear:
        interval = (
            f"{signed_percent(difference.low - 1).removesuffix(' %')} to "
            f"{signed_percent(difference.high - 1)}"
        )
        return f"no clear difference ({interval}, {count}{basis})"
    limits = sorted((abs(difference.low - 1), abs(difference.high - 1)))
    digits = _digits(limits[1] - limits[0])
    if not difference.repeated:
        parts = (
            f"{100 * (ratio - 1):+.{digits}f}"
            for ratio in (difference.ratio, difference.low, difference.high)
        )
        return "{} % ({} to {} %, {}{})".format(*parts, count, basis).replace("-", "−")
    low, high = (f"{100 * limit:.{digits}f}" for limit in limits)
    size = f"{100 * abs(difference.ratio - 1):.{digits}f} %"
    return (
        f"{(less if difference.ratio < 1 else more).format(size)} ({low} to {high} %, "
        f"{count}{basis})"
    )


def signed_percent(ratio: float) -> str:
    digits = _digits(abs(ratio))
    return f"{100 * ratio:+.{digits}f} %".replace("-", "−")


def _digits(width: float) -> int:
    """Return the decimals with which a width in percent has two digits."""
    percent = 100 * width
    return (
        0 if percent >= 10 or not percent else min(max(1 - math.floor(math.log10(percent)), 0), 3)
    )

"""Groups of runs beside each other, as `analyzer compare` shows them."""

from __future__ import annotations

from typing import Any

from analyzer.model.interval import Interval
from analyzer.output import units
from analyzer.output.view import Table, View, estimate
from analyzer.studies.compare import Comparison, Figure, Line
from analyzer.studies.contrast import words
from analyzer.studies.spread import Estimate


def view(found: Comparison) -> View:
    names = [f"{group.name} (n = {len(group.members)})" for group in found.groups]
    rows = [[_name(line.figure), *_levels(line)] for line in found.lines]
    against = [
        [_name(line.figure), found.groups[position].name, words(difference, line.less, line.more)]
        for line in found.lines
        for position, difference in enumerate(line.differences)
        if difference
    ]
    note = "geometric means; in brackets what holds the truth with 95 %"
    parts: list[str | Table] = [Table(["", *names], rows), note]
    parts.append(Table(["", "", f"against {found.groups[0].name}"], against))
    parts += [f"warning: {text}" for text in found.warnings]
    flat = [row for line in found.lines for row in _rows(found, line)]
    document = {
        "version": 1,
        "baseline": found.groups[0].name,
        "groups": [{"name": group.name, "runs": [one.run_id for one in group.members]} for group in found.groups],
        "figures": flat,
        "warnings": list(found.warnings),
    }
    return View(parts, document, flat)


def _name(figure: Figure) -> str:
    return f"{figure.name}, {figure.of.replace('_', ' ')}" if figure.of else figure.name


def _levels(line: Line) -> list[str]:
    """All of a line in one unit."""
    of = units.largest(level.value for level in line.levels if level)
    return [f"{_value(line.figure, level.value, of)}{_span(level)}" if level else "–" for level in line.levels]


def _value(figure: Figure, value: float, of: float) -> str:
    if figure.kind == "duration":
        return units.duration(value)
    if figure.kind == "rate":
        return units.rate(value, figure.of)
    if figure.kind == "energy_per_unit":
        return units.energy_per_unit(Interval(value), figure.of, of)
    return units.plain_mass(value, of) if figure.kind == "emissions" else units.plain_energy(value, of)


def _span(level: Estimate) -> str:
    if level.low is None or level.high is None or level.high == level.low:
        return ""
    return f" (±{50 * (level.high - level.low) / level.value:.2g} %)"


def _rows(found: Comparison, line: Line) -> list[dict[str, Any]]:
    rows = []
    for group, level, difference in zip(found.groups, line.levels, line.differences, strict=True):
        rows.append(
            {
                "figure": line.figure.key,
                "group": group.name,
                "n": len(group.members),
                **estimate(level, "value"),
                "ratio": difference.ratio if difference else None,
                "ratio_low": difference.low if difference else None,
                "ratio_high": difference.high if difference else None,
                "clear": difference.clear if difference else None,
                "from_repeats": difference.repeated if difference else None,
                "text": words(difference, line.less, line.more) if difference else None,
            }
        )
    return rows

"""A panel in words: what it asks and how the answer is shown."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Kind = Literal["lines", "areas", "spans", "means", "number", "gauges", "table", "bars", "points"]


@dataclass(frozen=True, slots=True)
class Query:
    """`legend` is Grafana's template: `{{gpu}}`. A table's query is asked once, for the end of the time range."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """`unit` is Grafana's id.

    A table, bars and points are asked once, for the end of the time range, and have a row for each series: `columns`
    gives each label and value a name, or leaves it out where that is empty; `units` are of named columns. Bars stand
    side by side along the first column. Points have it as their x, a number, and a line for each value of the others.

    Lines, areas, spans and means are over time: `calcs` are what the legend says of each. A span stands from its moment
    to the next one, a mean from the one before to its own. `step` is how far apart the moments are at least. `remedy`
    stands in the panel where there is no data.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "lines"
    width: int = 12
    height: int = 8
    columns: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    calcs: tuple[str, ...] = ("mean", "max")
    step: str = ""
    remedy: str = ""

    def sized(self, width: int, height: int) -> Panel:
        return replace(self, width=width, height=height)

    def telling(self, *calcs: str) -> Panel:
        return replace(self, calcs=calcs)

    def without(self, *, data: str) -> Panel:
        """What to do about it where there is none."""
        return replace(self, remedy=data)


def lines(title: str, description: str, unit: str, expr: str, legend: str) -> Panel:
    """A line for each series of one query."""
    return Panel(title, description, unit, (Query(expr, legend),))


def bars(title: str, description: str, unit: str, expr: str, columns: dict[str, str]) -> Panel:
    """A bar for each series of one query."""
    return Panel(title, description, unit, (Query(expr),), "bars", columns=columns)

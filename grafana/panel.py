"""Panel definitions: queries and their presentation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Kind = Literal["lines", "areas", "spans", "means", "number", "gauges", "table", "bars", "points"]


@dataclass(frozen=True, slots=True)
class Query:
    """One query; `legend` is Grafana's template, such as `{{gpu}}`."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; `unit` is Grafana's id of the unit.

    Tables, bars and points use an instant query at the end of the time range and have a row for
    each series. `columns` maps labels and values to column titles; an empty title hides the column.
    `units` maps titles to units, and `links` maps them to the address that a cell opens. A table
    has falling values of the column `sort`. Bars use the first column as the category axis. Points
    use it as the numeric x axis, with a line for each combination of the other labels.

    Lines, areas, spans and means use range queries. `calcs` are the legend's calculations. A span
    covers the time from its timestamp to the next one, a mean the time from the previous timestamp
    to its own. `step` is the minimum step. `remedy` is shown in a panel without data. A number is
    green, and orange from `orange_from` on.
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
    links: dict[str, str] = field(default_factory=dict)
    sort: str = ""
    calcs: tuple[str, ...] = ("mean", "max")
    step: str = ""
    remedy: str = ""
    orange_from: float | None = None

    def sized(self, width: int, height: int) -> Panel:
        return replace(self, width=width, height=height)

    def with_calcs(self, *calcs: str) -> Panel:
        return replace(self, calcs=calcs)

    def without(self, *, data: str) -> Panel:
        """Return the panel with a text to show when it has no data."""
        return replace(self, remedy=data)


def lines(title: str, description: str, unit: str, expr: str, legend: str) -> Panel:
    """Return a panel with a line for each series of one query."""
    return Panel(title, description, unit, (Query(expr, legend),))


def bars(title: str, description: str, unit: str, expr: str, columns: dict[str, str]) -> Panel:
    """Return a panel with a bar for each series of one query."""
    return Panel(title, description, unit, (Query(expr),), "bars", columns=columns)

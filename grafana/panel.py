"""A panel in words: what it asks and how the answer is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["lines", "areas", "number", "gauges", "table", "bars", "points"]


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

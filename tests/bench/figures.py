"""Table of figures with those of peers in the same run and goals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.laboratory.results import markdown_table, text_table

UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6, "%": 1e2, "MB": 1e-6, "GB": 1e-9, "Hz": 1.0, "×": 1.0}
"""Factors from seconds, bytes, rates and ratios to displayed units."""
_HEAD = ("figure", "Wattline", "peer", "ratio", "goal", "met")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure; `goal` is its maximum, or its minimum if `at_least`; `spread` is the observed
    range.
    """

    name: str
    unit: str
    ours: float
    peer: str = ""
    theirs: float | None = None
    goal: float | None = None
    at_least: bool = False
    spread: tuple[float, float] | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.theirs if self.theirs else None

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.ours >= self.goal if self.at_least else self.ours <= self.goal


def table(figures: Iterable[Figure]) -> str:
    return text_table(_HEAD, [_row(figure) for figure in figures])


def markdown(figures: Iterable[Figure]) -> str:
    return markdown_table(_HEAD, [_row(figure) for figure in figures], text=len(_HEAD))


def _row(figure: Figure) -> tuple[str, ...]:
    def number(value: float) -> str:
        return f"{value * UNITS[figure.unit]:#.3g}"

    def shown(value: float) -> str:
        return f"{number(value)} {figure.unit}"

    spread = f" ({number(figure.spread[0])} to {number(figure.spread[1])})" if figure.spread else ""
    note = f" [{figure.note}]" if figure.note else ""
    peer = f"{shown(figure.theirs)} {figure.peer}" if figure.theirs is not None else ""
    ratio = f"{figure.ratio:.2g}" if figure.ratio is not None else ""
    goal = (
        f"{'≥' if figure.at_least else '≤'} {shown(figure.goal)}" if figure.goal is not None else ""
    )
    met = {None: "", True: "yes", False: "NO"}[figure.met]
    return (figure.name, shown(figure.ours) + spread + note, peer, ratio, goal, met)

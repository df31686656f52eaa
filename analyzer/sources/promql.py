"""PromQL as text: how much a counter rose in a span of time, of a device and of a run. Pure.

- A counter of a device: what it rose by. VictoriaMetrics' `increase` takes the sample before the span, which is that.
  Prometheus' extrapolates; there it is the last sample less the last before the span, or less the first of a series
  that is new, and `increase` only for series that fall within the span.
- A counter of a run begins with the run, at 0: its highest value in the span less that before it. `increase` would give
  nothing for a run that was scraped once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analyzer.sources.instant import Dialect
from exporter.contract import metrics as m

Side = Literal["until", "before"]
RUN = ("instance", "run_id")
_EDGE_MS = 3_600_000
"""How old a device's last sample before an edge may be; after longer silence its series begins anew."""
_MEMORY_MS = 10_800_000
"""Likewise a run's."""
_LATE_MS = 300_000
"""A run that is first seen later than this after its begin was on before its exporter was scraped."""


@dataclass(frozen=True, slots=True)
class Span:
    """It ends `until_ms` before the time at which the server evaluates."""

    long_ms: int
    until_ms: int = 0

    @property
    def from_ms(self) -> int:
        return self.until_ms + self.long_ms

    @property
    def range(self) -> str:
        sign = "-" if self.until_ms < 0 else ""
        return f"[{self.long_ms}ms]" + (f" offset {sign}{abs(self.until_ms)}ms" if self.until_ms else "")

    def halves(self) -> tuple[Span, Span]:
        late_ms = self.long_ms // 2
        return Span(self.long_ms - late_ms, self.until_ms + late_ms), Span(late_ms, self.until_ms)


@dataclass(frozen=True, slots=True)
class Counter:
    """`labels` are its own, beside those of a run. What is recorded at a time may be of `behind_ms` before."""

    name: str
    labels: tuple[str, ...]
    matchers: str = ""
    behind_ms: int = 0

    @property
    def selector(self) -> str:
        return f"{self.name}{{{self.matchers}}}"


def rise(counter: Counter, span: Span, dialect: Dialect) -> str:
    """Of a device's counter, by its labels."""
    selector = counter.selector
    increase = f"increase({selector}{span.range})"
    if dialect == "victoria-metrics":
        return most(counter.labels, increase)
    before = f"last_over_time({selector}{Span(_EDGE_MS, span.from_ms).range})"
    newest, least = (f"{name}_over_time({selector}{span.range})" for name in ("last", "min"))
    fell = f"((resets({selector}{span.range}) > 0) or ({least} < {before}))"
    exact = f"(({newest} - ({before} or {least})) unless {fell})"
    return most(counter.labels, f"({exact} or {increase})")


def recorded_rise(name: str, span: Span, behind_ms: int) -> str:
    """The sum of what was recorded; a sample at the span's begin is of the time before it."""
    return f"sum_over_time({name}{Span(span.long_ms - 1, span.until_ms - behind_ms).range})"


def counted(counter: Counter, span: Span, side: Side) -> str:
    """A run's counter at the span's end, or what it had before it; the latter only of runs that are there within, too.

    Of a run that is first seen long after its begin, what it has then is of a time in which nobody looked; not so what
    a run that was seen before counts for the first time, such as tokens that it tells at its end.
    """
    own, behind_ms = (*RUN, *counter.labels), counter.behind_ms
    if side == "until":
        return most(own, f"max_over_time({counter.selector}{Span(span.long_ms, span.until_ms - behind_ms).range})")
    soon_ms = min(_MEMORY_MS, span.long_ms)
    soon = Span(soon_ms, span.from_ms - soon_ms)
    within = f"{counter.selector}{Span(soon_ms, soon.until_ms - behind_ms).range}"
    before = f"{counter.selector}{Span(_MEMORY_MS, span.from_ms - behind_ms).range}"
    known = f"({most(own, f'last_over_time({before})')} and {most(own, f'count_over_time({within})')})"
    begun = most(RUN, f"max_over_time({m.RUN_START.name}{soon.range})")
    unseen = f"unless on ({listed(RUN)}) max_over_time({m.RUN_START.name}{Span(_MEMORY_MS, span.from_ms).range})"
    old = f"({begun} < time() - {(span.from_ms + _LATE_MS) / 1_000:.3f} {unseen})"
    return f"({known} or ({most(own, f'min_over_time({within})')} and on ({listed(RUN)}) {old}))"


def total(labels: Sequence[str], values: str) -> str:
    return f"sum by ({listed(labels)}) ({values})"


def most(labels: Sequence[str], values: str) -> str:
    return f"max by ({listed(labels)}) ({values})"


def renamed(values: str, new: str, old: str) -> str:
    """With the label `new`, which has the text of `old`."""
    return f'label_replace({values}, "{new}", "$1", "{old}", "(.+)")'


def listed(labels: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(labels))

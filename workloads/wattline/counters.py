"""Increase of a counter: wraps, restarts, falls, late and missing values.

Amounts have the unit of the counter. The rule has two levels. `counter_step` compares two values
that a sensor or driver gave. `CounterLimits.step` compares two samples that a server stored: these
can be late, and come from a program that lost its latest state. A missing value changes nothing:
the next one includes the increase since the latest value that counts. `wattline.counter_arrays`
applies the second level to arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

ROLLBACK_RATIO = 0.875
"""Ratio to the earlier value from which on a lower sample is no restart at 0.

VictoriaMetrics has the same ratio.
"""


def counter_step(
    before: float, now: float, range_: float | None = None, most: float = math.inf
) -> float | None:
    """Return the increase between two values, or None where it exceeds `most` or is negative.

    A counter with a range wraps there: it counts one wrap. One without a range that fell was
    restarted: it counts from 0, so its value is the increase since then.
    """
    if now < 0:
        return None
    increase = now - before
    if increase < 0:
        increase = now if range_ is None else increase + range_
    return increase if 0 <= increase <= most else None


def further_wraps(range_: float, most: float, added: float) -> float:
    """Return the amount of wraps beyond `added` that a counter may have made while at most `most`
    was counted.
    """
    return 0.0 if most <= range_ else max(0.0, most - added)


class CounterTotal(NamedTuple):
    """Total of a counter that never falls, and the latest raw value, which may fall."""

    total: float
    raw: float

    def after(self, raw: float) -> CounterTotal:
        """Return the total after the next raw value; a value that is negative or NaN is ignored."""
        increase = counter_step(self.raw, raw)
        return self if increase is None else CounterTotal(self.total + increase, raw)


class SampleStep(NamedTuple):
    """Increase between two samples.

    A `late` sample does not count: the next one is compared with the same sample before.
    """

    kind: Literal["rise", "wrap", "restart", "late"]
    increase: float


@dataclass(frozen=True, slots=True)
class CounterLimits:
    """Facts about a sampled counter that tell wraps, restarts and late samples apart.

    `range_` is the value at which it wraps, None if it does not. `most_rate` is its highest rate
    per second. `age_s` is the longest time for which a value can be older than its sample.
    """

    range_: float | None = None
    most_rate: float = math.inf
    age_s: float = 0.0

    def step(self, before: float, now: float, elapsed_s: float) -> SampleStep:
        """Return the step to a sample `elapsed_s` > 0 after the latest one that counts.

        A rise counts as it is. A fall is a wrap if `most_rate` permits the increase, else a restart
        at 0 if `most_rate` permits that and the value is below ROLLBACK_RATIO of the one before.
        Any other lower value is old: the sample is late, or the program continued from an older
        state. It is left out until the counter passes the value before, so that no amount counts
        twice.
        """
        if now >= before:
            return SampleStep("rise", now - before)
        most = self.most_rate * (elapsed_s + self.age_s)
        if self.range_ is not None:
            wrapped = counter_step(before, now, self.range_, most)
            if wrapped is not None:
                return SampleStep("wrap", wrapped)
        if now < ROLLBACK_RATIO * before:
            restarted = counter_step(before, now, None, most)
            if restarted is not None:
                return SampleStep("restart", restarted)
        return _LATE


_LATE = SampleStep("late", 0.0)

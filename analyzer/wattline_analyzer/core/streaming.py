"""Exact figures of a long series, from its samples part by part: integral, gaps, constant
stretches.

Gaps depend on the median spacing, which is known only at the end. So seconds, integral and jumps
are kept by the width of the intervals between samples. There are few widths, since servers keep
milliseconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, MutableMapping

import numpy as np

from wattline_analyzer.core.integrate import SENSOR_S
from wattline_analyzer.core.samples import (
    GAP_FACTOR,
    Exact,
    FloatArray,
    Gap,
    Stretch,
    usual_spacing,
)

STRETCH_S = 60.0
"""Time for which a stuck sensor repeats its value at least."""
_PER_S = 1_000
_IN_MEMORY = 100_000
"""Numbers up to which their median is computed at once."""
FEWEST_UPDATES = 40
"""Changes of the value from which on the time between them shows the sensor's update period."""


def median(read: Callable[[], Iterable[FloatArray]]) -> float | None:
    """Return the exact median of positive numbers, None without one; `read` yields them part by
    part each time.
    """
    count = sum(len(part) for part in read())
    if count <= _IN_MEMORY:
        return float(np.median(np.concatenate(list(read())))) if count else None
    return float(np.mean([_of_rank(read, rank) for rank in ((count - 1) // 2, count // 2)]))


def _of_rank(read: Callable[[], Iterable[FloatArray]], rank: int) -> float:
    """Return the number with `rank` lower ones. The bits of positive numbers, as integers, have the
    same order.

    Each reading finds the next 16 bits of the result, the highest first.
    """
    found = 0
    for shift in (48, 32, 16, 0):
        counts = np.zeros(1 << 16, dtype=np.int64)
        for part in read():
            bits = np.ascontiguousarray(part).view(np.uint64) >> np.uint64(shift)
            chosen = bits[bits >> np.uint64(16) == found] & np.uint64(0xFFFF)
            counts += np.bincount(chosen.astype(np.int64), minlength=1 << 16)
        upto = np.cumsum(counts)
        digit = int(np.searchsorted(upto, rank, side="right"))
        rank -= int(upto[digit - 1]) if digit else 0
        found = found << 16 | digit
    return float(np.array(found, dtype=np.uint64).view(np.float64))


class ExactAccumulator:
    """Accumulator of one series; the figures cover `window_s`, the median spacing all samples."""

    def __init__(self, window_s: tuple[float, float]) -> None:
        self._window_s = window_s
        self._widths: defaultdict[int, int] = defaultdict(int)
        self._pairs: defaultdict[int, int] = defaultdict(int)
        """Number of intervals by width, and of those between every second sample."""
        self._before_last_s: float | None = None
        self._inside: defaultdict[int, FloatArray] = defaultdict(lambda: np.zeros(3))
        """Integral, seconds and Σ(width · jump)² by width."""
        self._squares = self._products = 0.0
        """Σ(jump²) and Σ(jump · next jump) over the intervals without gaps."""
        self._jump = 0.0
        self._changes: defaultdict[int, FloatArray] = defaultdict(lambda: np.zeros(2))
        """Number of changes of the value and Σ(jump · next jump), by the time between two changes.
        """
        self._change: tuple[float, float] | None = None
        """Time and jump of the latest change."""
        self._wide: list[tuple[int, Gap]] = []
        self._least_spacing: float | None = None
        self._first_s: float | None = None
        self._last: tuple[float, float] | None = None
        self._same: list[Stretch] = []

    def add(self, t: FloatArray, value: FloatArray) -> None:
        """Add samples that are later than all previous ones."""
        if not len(t):
            return
        self._first_s = float(t[0]) if self._first_s is None else self._first_s
        if self._last is not None:
            t = np.insert(t, 0, self._last[0])
            value = np.insert(value, 0, self._last[1])
        known_s = t if self._before_last_s is None else np.insert(t, 0, self._before_last_s)
        _count(np.rint((known_s[2:] - known_s[:-2]) * _PER_S), self._pairs)
        self._before_last_s = float(known_s[-2]) if len(known_s) > 1 else None
        self._stretch(t, value, joins=self._last is not None)
        self._last = float(t[-1]), float(value[-1])
        if len(t) > 1:
            self._intervals(t, value)

    def result(self) -> Exact | None:
        """Return the exact figures; None for fewer than two samples."""
        if self._last is None or not self._widths:
            return None
        widest = GAP_FACTOR * self._spacing() / _PER_S
        close = [parts for width, parts in self._inside.items() if width / _PER_S <= widest]
        integral, covered_s = np.sum(close, axis=0)[:2] if close else (0.0, 0.0)
        near = [
            parts[2]
            for width, parts in self._inside.items()
            if width / _PER_S <= max(widest, SENSOR_S)
        ]
        jumps_squared, products = self._of_updates() or (math.fsum(near), self._products)
        gaps = [gap for width, gap in self._wide if width / _PER_S > widest]
        start_s, end_s = self._window_s
        if self._first_s is not None and self._first_s - start_s > widest:
            gaps.insert(0, Gap(start_s, min(self._first_s, end_s)))
        if end_s - self._last[0] > widest:
            gaps.append(Gap(max(self._last[0], start_s), end_s))
        stretches = tuple(same for same in self._same if same.duration_s >= STRETCH_S)
        return Exact(
            self._window_s,
            self._spacing() / _PER_S,
            float(integral),
            float(covered_s),
            tuple(gaps),
            stretches,
            jumps_squared,
            products / self._squares if self._squares else 0.0,
        )

    def _of_updates(self) -> tuple[float, float] | None:
        """Return both sums of jumps over the sensor's updates; None without regular updates, half
        as fast.
        """
        counts = {width: int(count) for width, (count, _) in self._changes.items()}
        if sum(counts.values()) < FEWEST_UPDATES:
            return None
        period = _median_of(counts)
        regular = sum(count for width, count in counts.items() if abs(width - period) <= period / 4)
        if period < 2 * self._spacing() or 2 * regular < sum(counts.values()):
            return None
        products = math.fsum(
            product for width, (_, product) in self._changes.items() if width < 1.5 * period
        )
        return (period / _PER_S) ** 2 * self._squares, products

    def _intervals(self, t: FloatArray, value: FloatArray) -> None:
        widths = np.rint(np.diff(t) * _PER_S).astype(np.int64)
        _count(widths.astype(np.float64), self._widths)
        start_s, end_s = self._window_s
        over = np.flatnonzero((t[1:] > start_s) & (t[:-1] < end_s))
        if not len(over):
            return
        begins = np.clip(t[over], start_s, end_s)
        ends = np.clip(t[over + 1], start_s, end_s)
        seconds = ends - begins
        parts = seconds * (np.interp(begins, t, value) + np.interp(ends, t, value)) / 2
        jumps = np.diff(value)[over]
        kinds, places = np.unique(widths[over], return_inverse=True)
        columns = (
            np.bincount(places, part)
            for part in (parts, seconds, (widths[over] / _PER_S * jumps) ** 2)
        )
        for kind, *sums in zip(kinds, *columns, strict=True):
            self._inside[int(kind)] += sums
        # a larger median spacing at the end makes some of these no gaps; `result` leaves them out
        spacing = self._spacing()
        self._least_spacing = (
            spacing if self._least_spacing is None else min(spacing, self._least_spacing)
        )
        for at in np.flatnonzero(widths[over] > GAP_FACTOR * self._least_spacing):
            self._wide.append((int(widths[over[at]]), Gap(float(begins[at]), float(ends[at]))))
        self._add_jumps(
            t[over + 1], np.where(widths[over] > GAP_FACTOR * self._least_spacing, 0.0, jumps)
        )

    def _add_jumps(self, t: FloatArray, jumps: FloatArray) -> None:
        """Add the jumps that end at `t`."""
        self._squares += float(jumps @ jumps)
        self._products += float(np.append(self._jump, jumps[:-1]) @ jumps)
        self._jump = float(jumps[-1])
        changed = jumps != 0
        t = t[changed]
        jumps = jumps[changed]
        if self._change is not None:
            t = np.insert(t, 0, self._change[0])
            jumps = np.insert(jumps, 0, self._change[1])
        if not len(t):
            return
        self._change = float(t[-1]), float(jumps[-1])
        kinds, places = np.unique(
            np.rint(np.diff(t) * _PER_S).astype(np.int64), return_inverse=True
        )
        counts = np.bincount(places, minlength=len(kinds))
        for kind, count, product in zip(
            kinds, counts, np.bincount(places, jumps[1:] * jumps[:-1]), strict=True
        ):
            self._changes[int(kind)] += count, product

    def _spacing(self) -> float:
        """Return the usual width of all intervals so far, in milliseconds."""
        return usual_spacing(_median_of(self._widths), _median_of(self._pairs))

    def _stretch(self, t: FloatArray, value: FloatArray, *, joins: bool) -> None:
        """Continue the last stretch if the value is the same; short stretches are dropped once they
        end.
        """
        inside = (t >= self._window_s[0]) & (t <= self._window_s[1])
        t = t[inside]
        value = value[inside]
        joins = joins and bool(inside[0]) and bool(self._same)
        if not len(t):
            return
        changes = np.flatnonzero(np.diff(value) != 0)
        firsts = np.concatenate([[0], changes + 1])
        finals = np.concatenate([changes, [len(t) - 1]])
        long = (t[finals] - t[firsts] >= STRETCH_S) | (firsts == 0) | (finals == len(t) - 1)
        found = [
            Stretch(float(t[first]), float(t[final]), float(value[first]), int(final - first) + 1)
            for first, final in zip(firsts[long], finals[long], strict=True)
        ]
        if joins:
            before = self._same.pop()
            found[0] = Stretch(
                before.start_s, found[0].end_s, found[0].value, before.count + found[0].count - 1
            )
        self._same = [*(same for same in self._same if same.duration_s >= STRETCH_S), *found]


def _count(widths: FloatArray, counts: MutableMapping[int, int]) -> None:
    for width, count in zip(*np.unique(widths, return_counts=True), strict=True):
        counts[int(width)] += int(count)


def _median_of(counts: Mapping[int, int]) -> float:
    """Return the median of numbers that are counted by value, 0 without one."""
    if not counts:
        return 0.0
    values = np.array(sorted(counts))
    upto = np.cumsum([counts[int(value)] for value in values])
    middle = (int(upto[-1]) - 1) // 2, int(upto[-1]) // 2
    return float(np.mean(values[np.searchsorted(upto, middle, side="right")]))

"""Exact figures of a long series, from its samples part by part: integral, gaps, constant stretches.

Gaps depend on the median spacing, which is known only at the end. So seconds and integral are kept by the width of the
intervals between samples. There are few widths, since servers keep milliseconds.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from analyzer.model.samples import GAP_FACTOR, Exact, FloatArray, Gap, Stretch

STRETCH_S = 60.0
"""Time for which a stuck sensor repeats its value at least."""
_PER_S = 1_000


class ExactAccumulator:
    """Accumulator of one series; the figures cover `window_s`, the median spacing all samples."""

    def __init__(self, window_s: tuple[float, float]) -> None:
        self._window_s = window_s
        self._widths: defaultdict[int, int] = defaultdict(int)
        self._inside: defaultdict[int, FloatArray] = defaultdict(lambda: np.zeros(2))
        """Integral and seconds by width."""
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
            t, value = np.insert(t, 0, self._last[0]), np.insert(value, 0, self._last[1])
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
        integral, covered_s = np.sum(close, axis=0) if close else (0.0, 0.0)
        gaps = [gap for width, gap in self._wide if width / _PER_S > widest]
        start_s, end_s = self._window_s
        if self._first_s is not None and self._first_s - start_s > widest:
            gaps.insert(0, Gap(start_s, min(self._first_s, end_s)))
        if end_s - self._last[0] > widest:
            gaps.append(Gap(max(self._last[0], start_s), end_s))
        stretches = tuple(same for same in self._same if same.duration_s >= STRETCH_S)
        return Exact(
            self._window_s, self._spacing() / _PER_S, float(integral), float(covered_s), tuple(gaps), stretches
        )

    def _intervals(self, t: FloatArray, value: FloatArray) -> None:
        widths = np.rint(np.diff(t) * _PER_S).astype(np.int64)
        for width, count in zip(*np.unique(widths, return_counts=True), strict=True):
            self._widths[int(width)] += int(count)
        start_s, end_s = self._window_s
        over = np.flatnonzero((t[1:] > start_s) & (t[:-1] < end_s))
        if not len(over):
            return
        begins, ends = np.clip(t[over], start_s, end_s), np.clip(t[over + 1], start_s, end_s)
        seconds = ends - begins
        parts = seconds * (np.interp(begins, t, value) + np.interp(ends, t, value)) / 2
        kinds, places = np.unique(widths[over], return_inverse=True)
        for kind, *sums in zip(kinds, np.bincount(places, parts), np.bincount(places, seconds), strict=True):
            self._inside[int(kind)] += sums
        # a larger median spacing at the end makes some of these no gaps; `result` leaves them out
        spacing = self._spacing()
        self._least_spacing = spacing if self._least_spacing is None else min(spacing, self._least_spacing)
        for at in np.flatnonzero(widths[over] > GAP_FACTOR * self._least_spacing):
            self._wide.append((int(widths[over[at]]), Gap(float(begins[at]), float(ends[at]))))

    def _spacing(self) -> float:
        """Return the median width of all intervals so far, in milliseconds."""
        widths = np.array(sorted(self._widths))
        upto = np.cumsum([self._widths[int(width)] for width in widths])
        middle = (int(upto[-1]) - 1) // 2, int(upto[-1]) // 2
        return float(np.mean(widths[np.searchsorted(upto, middle, side="right")]))

    def _stretch(self, t: FloatArray, value: FloatArray, *, joins: bool) -> None:
        """Continue the last stretch if the value is the same; short stretches are dropped once they end."""
        inside = (t >= self._window_s[0]) & (t <= self._window_s[1])
        t, value = t[inside], value[inside]
        joins = joins and bool(inside[0]) and bool(self._same)
        if not len(t):
            return
        changes = np.flatnonzero(np.diff(value) != 0)
        firsts, finals = np.concatenate([[0], changes + 1]), np.concatenate([changes, [len(t) - 1]])
        long = (t[finals] - t[firsts] >= STRETCH_S) | (firsts == 0) | (finals == len(t) - 1)
        found = [
            Stretch(float(t[first]), float(t[final]), float(value[first]), int(final - first) + 1)
            for first, final in zip(firsts[long], finals[long], strict=True)
        ]
        if joins:
            before = self._same.pop()
            found[0] = Stretch(before.start_s, found[0].end_s, found[0].value, before.count + found[0].count - 1)
        self._same = [*(same for same in self._same if same.duration_s >= STRETCH_S), *found]

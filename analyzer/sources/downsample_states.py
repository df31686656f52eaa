"""Downsampling of states, which rarely change, to the scrapes around each change.

A series that is absent from a scrape is a state as well, so the series of a group are kept or dropped together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from analyzer.model.samples import FloatArray, Series
from analyzer.sources.downsample import MAX_UNCHANGED, Key, Mask, near_edges, series_key


class StateGroup:
    """Series with the same scrapes; the values of `moving` series differ at each scrape."""

    def __init__(
        self, edges_s: Sequence[float], moving: Callable[[Mapping[str, str]], bool], whole: int = MAX_UNCHANGED
    ) -> None:
        self._edges_s = edges_s
        self._moving = moving
        self._whole = whole
        self._labels: dict[Key, Mapping[str, str]] = {}
        self._waiting: list[Series] = []
        self._counts: dict[Key, int] = {}
        self._kept: dict[Key, list[tuple[FloatArray, FloatArray]]] = {}
        self._open: tuple[float, dict[Key, float]] | None = None
        """Last scrape, which is kept if the next one differs."""
        self._kept_s = float("-inf")

    def add(self, part: Iterable[Series]) -> None:
        """Add all series of the group over a time range after all earlier ones."""
        added = [(series_key(one[0]), one) for one in part if len(one[1])]
        for known, one in added:
            self._labels.setdefault(known, one[0])
            self._counts[known] = self._counts.get(known, 0) + len(one[1])
        self._waiting += [one for _, one in added]
        if self._is_long:
            self._downsample()

    def result(self) -> list[Series]:
        if not self._is_long:
            return self._waiting
        self._downsample()
        if self._open and self._open[0] > self._kept_s:
            self._keep(*self._open)
        return [(self._labels[known], *_together(parts)) for known, parts in self._kept.items()]

    @property
    def _is_long(self) -> bool:
        return max(self._counts.values(), default=0) > self._whole

    def _downsample(self) -> None:
        if not self._waiting:
            return
        times, table = self._table()
        self._waiting = []
        shown = {known: row for known, row in table.items() if not self._moving(self._labels[known])}
        shown |= {known: np.where(np.isnan(row), np.nan, 1.0) for known, row in table.items() if known not in shown}
        kept = _around_changes(times, list(shown.values())) | near_edges(times, self._edges_s)
        kept[0] |= self._open is None
        kept &= times > self._kept_s
        for known, row in table.items():
            some = kept & ~np.isnan(row)
            if some.any():
                self._kept.setdefault(known, []).append((times[some], row[some]))
        if kept.any():
            self._kept_s = float(times[kept][-1])
        newest = {known: float(row[-1]) for known, row in table.items() if not np.isnan(row[-1])}
        self._open = float(times[-1]), newest

    def _table(self) -> tuple[FloatArray, dict[Key, FloatArray]]:
        """Return the times of scrapes and each series at them, NaN where absent; the open scrape is the first."""
        times = np.unique(np.concatenate([t for _, t, _ in self._waiting]))
        if self._open:
            times = np.concatenate([[self._open[0]], times[times > self._open[0]]])
        table = {known: np.full(len(times), np.nan) for known in self._labels}
        for labels, t, value in self._waiting:
            table[series_key(labels)][np.searchsorted(times, t)] = value
        if self._open:
            for known, shown in self._open[1].items():
                table[known][0] = shown
        return times, table

    def _keep(self, t_s: float, values: Mapping[Key, float]) -> None:
        for known, value in values.items():
            self._kept.setdefault(known, []).append((np.array([t_s]), np.array([value])))


def _around_changes(times: FloatArray, rows: Sequence[FloatArray]) -> Mask:
    kept = np.zeros(len(times), dtype=bool)
    changed = np.zeros(max(len(times) - 1, 0), dtype=bool)
    for row in rows:
        changed |= (row[1:] != row[:-1]) & ~(np.isnan(row[1:]) & np.isnan(row[:-1]))
    kept[:-1] |= changed
    kept[1:] |= changed
    return kept


def _together(parts: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    return np.concatenate([t for t, _ in parts]), np.concatenate([value for _, value in parts])

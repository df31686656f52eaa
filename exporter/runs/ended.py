"""The series of runs that have ended. They change no more, so they are put together once, not at every scrape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from exporter.contract.run import Run
from exporter.exposition.render import Families, families
from exporter.model import Reading
from exporter.runs.record import RunRecord
from exporter.runs.view import readings
from exporter.storage.history import AROUND_S, SPARSE_S


class _Ended(NamedTuple):
    readings: tuple[Reading, ...]
    families: Families


class EndedRuns:
    """`view` gives a run as it is shown."""

    def __init__(self, view: Callable[[RunRecord], Run]) -> None:
        self._view = view
        self._ended: dict[str, _Ended] = {}
        self._new = False
        self._last_end_s = self._given_s = -math.inf

    def keep(self, runs: Iterable[RunRecord], now_s: float) -> None:
        """From now on it is these; some may be on still."""
        ended = [run for run in runs if run.final_settled]
        added = [run for run in ended if run.run_id not in self._ended]
        if len(ended) - len(added) < len(self._ended):
            names = {run.run_id for run in ended}
            self._ended = {name: kept for name, kept in self._ended.items() if name in names}
        for run in added:
            put_together = tuple(readings(self._view(run), run))
            self._ended[run.run_id] = _Ended(put_together, families(put_together))
            self._new, self._last_end_s = True, now_s

    def families(self) -> Iterator[Families]:
        return (ended.families for ended in self._ended.values())

    def for_history(self, now_s: float, *, run_open: bool) -> Iterator[Reading]:
        """For a history that takes what there is each second, all of it only as often as one without runs would."""
        is_dense = run_open or now_s - self._last_end_s <= AROUND_S + SPARSE_S
        if is_dense and not self._new and now_s - self._given_s < SPARSE_S:
            return
        self._new, self._given_s = False, now_s
        for ended in self._ended.values():
            yield from ended.readings

"""Limits of the runs that are open, and of those with series on the page of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from wattline.contract.api import MAX_RUNNING, RUN_TAIL_S
from wattline.contract.metrics import (
    RUN_ATTRIBUTED_ENERGY,
    RUN_COVERED_RATIO,
    RUN_INTEGRATED_ENERGY,
)
from wattline.contract.work import SHARE_POLICY
from wattline_exporter.runs.run_record import RunRecord
from wattline_exporter.sensors.readings import Reading, RunError


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Settings of the runs. `tail_s`: time for which the series of an ended run stay.

    A discovered run that is shorter than `min_s` or smaller than `min_j` has no series in /metrics.
    The local history has all of them.
    """

    max_open: int = MAX_RUNNING
    tail_s: float = RUN_TAIL_S
    min_s: float = 0.0
    min_j: float = 0.0
    is_slim: bool = False
    """True if /metrics lacks the series of a run that no rule or dashboard uses."""

    def omits(self, reading: Reading, *, recorded: bool) -> bool:
        """Return True for a series of a run that is left out since it is rarely used."""
        if recorded or not self.is_slim:
            return False
        name = reading.metric.name
        return (
            name == RUN_INTEGRATED_ENERGY.name
            or (name == RUN_ATTRIBUTED_ENERGY.name and reading.labels[-1] != SHARE_POLICY)
            or (name == RUN_COVERED_RATIO.name and reading.value >= 1.0)
        )

    def hidden(
        self,
        runs: Iterable[RunRecord],
        held_j: Callable[[RunRecord], float],
        now_s: float,
        *,
        recorded: bool,
    ) -> frozenset[str]:
        """Return the ids of the runs without series in /metrics, or as `recorded` in the local
        history.

        `held_j` returns the energy that is attributed to a run; `now_s` is CLOCK_BOOTTIME.
        """
        if recorded or (self.min_s <= 0 and self.min_j <= 0):
            return frozenset()
        return frozenset(
            run.run_id for run in runs if run.discovered and self._hides(run, held_j(run), now_s)
        )

    def _hides(self, run: RunRecord, joules: float, now_s: float) -> bool:
        end_s = now_s if run.end_s is None else run.end_s
        return end_s - run.begin_s < self.min_s or joules < self.min_j

    def has_room(self, open_runs: int) -> bool:
        return open_runs < self.max_open

    def check(self, open_runs: int) -> None:
        """Raise RunError where no further run may begin."""
        if not self.has_room(open_runs):
            advice = "end one (GET /api/v1/runs?state=running), or raise --runs.max"
            raise RunError(429, f"{self.max_open} runs are open, the maximum; {advice}")

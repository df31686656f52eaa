"""Plausibility of a GPU's energy: its counter compared with its power (pure).

Two windows of a minute or more must disagree, so that a healthy GPU is never flagged under any load: the averaged power
trails by half a second, which is at most 1.5 % of a minute.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

from exporter.contract.power_sensors import sensor_window
from exporter.energy.meter import DeviceMeter

SuspectReason = Literal["frozen", "implausible", "disagrees", "aliasing"]
REASONS: tuple[SuspectReason, ...] = get_args(SuspectReason)
REASON_TEXTS: dict[SuspectReason, str] = {
    "frozen": "the energy counter does not change while the GPU draws power; "
    "check nvidia-smi -q -d POWER, then reset the GPU",
    "implausible": "the energy counter jumped by more than the GPU can draw; the gap is filled with integrated power",
    "aliasing": "the only sensor measures a part of the time, and the energy of a load with a period near its own is "
    "off by up to 80 %; the interval includes the largest possible energy",
    "disagrees": "the energy counter and the averaged power differ by more than 5 % over two minutes",
}
FROZEN_S = 10.0
"""Time above the update period of any counter."""
FROZEN_J = 50.0
WINDOW_S = 60.0
TOLERANCE = 0.05
MIN_WINDOW_J = 300.0
"""Energy below that of an idle GPU in a minute, where the resolution of a reading matters too much."""
REPORTED_S = 60.0
"""Time for which an implausible jump is reported."""


class _Snapshot(NamedTuple):
    t_s: float
    raw_j: float
    counted_j: float
    integrated_j: float
    covered_s: float


class EnergyCheck:
    """Check of one GPU, updated about once a second; `reasons` are the current doubts."""

    def __init__(self) -> None:
        self.reasons: frozenset[SuspectReason] = frozenset()
        self._moved: _Snapshot | None = None
        self._window: _Snapshot | None = None
        self._off = 0
        """Number of consecutive windows that disagreed, negative where the counter was lower."""

    def update(self, meter: DeviceMeter, now_s: float) -> None:
        poll, totals = meter.latest, meter.totals
        if poll is None or poll.counter_j is None or totals.raw_j is None:
            self.reasons = frozenset({"aliasing"}) if meter.unmeasured_share > 0 else frozenset()
            self._moved, self._window, self._off = None, None, 0
            return
        now = _Snapshot(poll.after_s, totals.raw_j, totals.energy_j, totals.integrated_j, totals.covered_s)
        reasons: set[SuspectReason] = set()
        if self._is_frozen(now):
            reasons.add("frozen")
        if now_s - meter.implausible_s < REPORTED_S:
            reasons.add("implausible")
        if self._disagrees(now, averaged=poll.average_w is not None):
            reasons.add("disagrees")
        self.reasons = frozenset(reasons)

    def _is_frozen(self, now: _Snapshot) -> bool:
        """Return whether the GPU drew power while the counter did not change."""
        if self._moved is None or now.raw_j != self._moved.raw_j:
            self._moved = now
        flowed_j = now.integrated_j - self._moved.integrated_j
        return now.t_s - self._moved.t_s >= FROZEN_S and flowed_j >= FROZEN_J

    def _disagrees(self, now: _Snapshot, *, averaged: bool) -> bool:
        """Return whether two consecutive windows differed by more than the tolerance in the same direction.

        One window that agrees ends it. Only a power averaged over all of the time is compared: a sensor that measures a
        quarter of it is off by up to 80 % with some loads, while the counter is right.
        """
        window = self._window
        if window is None or not averaged:
            self._window, self._off = now, 0
            return False
        if now.t_s - window.t_s < WINDOW_S:
            return abs(self._off) >= 2
        self._window = now
        covered = now.covered_s - window.covered_s >= 0.95 * (now.t_s - window.t_s)
        counted_j, integrated_j = now.counted_j - window.counted_j, now.integrated_j - window.integrated_j
        if not covered or max(counted_j, integrated_j) < MIN_WINDOW_J:
            return abs(self._off) >= 2  # this window is inconclusive
        off = counted_j / integrated_j - 1 if integrated_j > 0 else math.inf
        side = 0 if abs(off) <= TOLERANCE else 1 if off > 0 else -1
        self._off = self._off + side if side and self._off * side >= 0 else side
        return abs(self._off) >= 2


UNMETERED_SHARE = 0.25
"""Share of GPUs whose sensor was never metered: the smallest of all that were."""


def sensor_share(name: str, architecture: str) -> float:
    """Return the share of time that instantaneous power covers: the sensor's window over its update period."""
    window = sensor_window(name, architecture)
    return window.seen_ratio if window else UNMETERED_SHARE

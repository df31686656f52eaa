"""Reasons to doubt the energy of a GPU (pure)."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from wattline.contract.power_sensors import sensor_window
from wattline_exporter.meter.meter import DeviceMeter

SuspectReason = Literal["frozen", "implausible", "disagrees", "aliasing", "stuck"]
REASONS: tuple[SuspectReason, ...] = get_args(SuspectReason)
REASON_TEXTS: dict[SuspectReason, str] = {
    "frozen": "the energy counter does not change while the GPU draws power; "
    "check nvidia-smi -q -d POWER, then reset the GPU",
    "implausible": "the energy counter or the power has values that the GPU cannot have; they are "
    "not used, and the "
    "interval includes the energy that may be missing",
    "aliasing": "the only sensor measures a part of the time, and the energy of a load with a "
    "period near its own is "
    "off by up to 80 %; the interval includes the largest possible energy",
    "stuck": "the power does not change while work runs; the interval includes the largest "
    "possible energy",
    "disagrees": "the energy counter and the power differ by more than their accuracy; the "
    "interval includes both",
}
FROZEN_S = 10.0
"""Time above the update period of any counter."""
FROZEN_J = 50.0
REPORTED_S = 60.0
"""Time for which an implausible value or a disagreement is reported."""


class _Snapshot(NamedTuple):
    t_s: float
    raw_j: float
    integrated_j: float


class EnergyCheck:
    """Check of one GPU, updated about once a second; `reasons` are the current doubts."""

    def __init__(self) -> None:
        self.reasons: frozenset[SuspectReason] = frozenset()
        self._moved: _Snapshot | None = None

    def update(self, meter: DeviceMeter, now_s: float) -> None:
        meter.compare_sensors()
        reasons: set[SuspectReason] = set()
        if meter.unmeasured_share > 0:
            reasons.add("aliasing")
        if self._is_frozen(meter):
            reasons.add("frozen")
        if now_s - meter.implausible_s < REPORTED_S:
            reasons.add("implausible")
        if now_s - meter.comparison.stuck_s < REPORTED_S:
            reasons.add("stuck")
        if now_s - meter.comparison.disagreed_s < REPORTED_S:
            reasons.add("disagrees")
        self.reasons = frozenset(reasons)

    def _is_frozen(self, meter: DeviceMeter) -> bool:
        """Return whether the GPU drew power while the counter did not change."""
        poll = meter.latest
        raw_j = meter.counter.raw_j
        if poll is None or raw_j is None:
            return False
        now = _Snapshot(poll.after_s, raw_j, meter.totals.integrated_j)
        if self._moved is None or now.raw_j != self._moved.raw_j:
            self._moved = now
        flowed_j = now.integrated_j - self._moved.integrated_j
        return now.t_s - self._moved.t_s >= FROZEN_S and flowed_j >= FROZEN_J


UNMETERED_SHARE = 0.25
"""Share of GPUs whose sensor was never metered: the smallest of all that were."""


def sensor_share(name: str, architecture: str) -> float:
    """Return the share of time that instantaneous power covers: the sensor's window over its update
    period.
    """
    window = sensor_window(name, architecture)
    return window.seen_ratio if window else UNMETERED_SHARE


def has_short_window(name: str, architecture: str) -> bool:
    """Return whether the instantaneous power of a GPU's model is known to be a mean over less than
    an update.
    """
    window = sensor_window(name, architecture)
    return window is not None and window.window_s < window.update_s

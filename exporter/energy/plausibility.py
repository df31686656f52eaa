"""Whether a GPU's energy can be trusted: its counter held against the power that was seen (pure).

Judged over a minute or more, and twice, so that a healthy card is never flagged whatever its load: the averaged power
trails by half a second, which is 1.5 % of a minute at the greatest step there is.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

from exporter.contract.power_sensors import sensor_window
from exporter.energy.meter import DeviceMeter

SuspectReason = Literal["frozen", "implausible", "disagrees", "aliasing"]
REASONS: tuple[SuspectReason, ...] = get_args(SuspectReason)
REASON_TEXTS: dict[SuspectReason, str] = {
    "frozen": "its counter stands still while power flows; try: nvidia-smi -q -d POWER, then reset the GPU",
    "implausible": "its counter jumped by more than it can draw; power fills the gap",
    "aliasing": "its only sensor sees a part of the time, and a load whose period is near the sensor's is off by up to "
    "80 %: the interval holds all that it may have drawn meanwhile",
    "disagrees": "its counter and its averaged power differ by more than 5 % over two minutes",
}
FROZEN_S = 10.0
"""No counter takes longer to update."""
FROZEN_J = 50.0
JUDGED_S = 60.0
TOLERANCE = 0.05
LEAST_J = 300.0
"""Less than an idle card draws in a minute: below it the quantum of a reading counts too much."""
SHOWN_S = 60.0
"""For how long an impossible jump is shown."""


class _Look(NamedTuple):
    t_s: float
    raw_j: float
    counted_j: float
    integrated_j: float
    covered_s: float


class EnergyCheck:
    """Looks at one GPU's line about once a second; `reasons` are those not to trust it now."""

    def __init__(self) -> None:
        self.reasons: frozenset[SuspectReason] = frozenset()
        self._moved: _Look | None = None
        self._window: _Look | None = None
        self._off = 0
        """So many windows in a row disagreed, negative where the counter was lower."""

    def look(self, line: DeviceMeter, now_s: float) -> None:
        poll, totals = line.latest, line.totals
        if poll is None or poll.counter_j is None or totals.raw_j is None:
            self.reasons = frozenset({"aliasing"}) if line.unseen_ratio > 0 else frozenset()
            self._moved, self._window, self._off = None, None, 0
            return
        seen = _Look(poll.after_s, totals.raw_j, totals.energy_j, totals.integrated_j, totals.covered_s)
        found: set[SuspectReason] = set()
        if self._is_frozen(seen):
            found.add("frozen")
        if now_s - line.implausible_s < SHOWN_S:
            found.add("implausible")
        if self._disagrees(seen, averaged=poll.average_w is not None):
            found.add("disagrees")
        self.reasons = frozenset(found)

    def _is_frozen(self, seen: _Look) -> bool:
        """Power flows, and the counter stands still."""
        if self._moved is None or seen.raw_j != self._moved.raw_j:
            self._moved = seen
        flowed_j = seen.integrated_j - self._moved.integrated_j
        return seen.t_s - self._moved.t_s >= FROZEN_S and flowed_j >= FROZEN_J

    def _disagrees(self, seen: _Look, *, averaged: bool) -> bool:
        """Two windows in a row were off by more than the tolerance, to the same side; one that agrees ends it.

        Only against a power that is an average over all of the time: a sensor that sees a quarter of it is off by up to
        80 % at unlucky periods, through no fault of the counter.
        """
        window = self._window
        if window is None or not averaged:
            self._window, self._off = seen, 0
            return False
        if seen.t_s - window.t_s < JUDGED_S:
            return abs(self._off) >= 2
        self._window = seen
        covered = seen.covered_s - window.covered_s >= 0.95 * (seen.t_s - window.t_s)
        counted_j, integrated_j = seen.counted_j - window.counted_j, seen.integrated_j - window.integrated_j
        if not covered or max(counted_j, integrated_j) < LEAST_J:
            return abs(self._off) >= 2  # nothing can be said of this window
        off = counted_j / integrated_j - 1 if integrated_j > 0 else math.inf
        side = 0 if abs(off) <= TOLERANCE else 1 if off > 0 else -1
        self._off = self._off + side if side and self._off * side >= 0 else side
        return abs(self._off) >= 2


_LEAST_SEEN_RATIO = 0.25
"""The least of all metered sensors, for those that were not metered."""


def sensor_share(name: str, architecture: str) -> float:
    """Return the share of the time that the GPU's instant power covers."""
    window = sensor_window(name, architecture)
    return window.seen_ratio if window else _LEAST_SEEN_RATIO

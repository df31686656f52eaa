"""Energy totals of a device, and the polls that they belong to."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

from wattline_exporter.sensors.readings import Poll

KEPT_S = 12.0
"""Time for which all polls are kept. At a slow polling rate, the last KEPT_POLLS are kept for
longer.
"""
KEPT_POLLS = 64


class PowerStep(NamedTuple):
    """Energy from one poll to the next by the reported powers.

    The time before the first poll has no length.
    """

    elapsed_s: float
    is_gap: bool
    """True if the polls are further apart than expected, or another exporter made the first one."""
    joules: float = 0.0
    moved_s: float | None = None
    """Time when the power changed; None where it is unknown in between."""
    slack_s: float = 0.0
    """Half-width of that time."""
    risen_w: float = 0.0
    """Difference of the powers of both polls, where they are known."""

    @property
    def known_s(self) -> float:
        """Time for which the power is known."""
        return 0.0 if self.moved_s is None else self.elapsed_s


class Step(NamedTuple):
    """Energy after one poll, and the increments of the other totals by it.

    The energy is absolute, since the sum of a total and a rounded difference can differ from the
    counter's energy in the last digit.
    """

    energy_j: float
    integrated_j: float = 0.0
    variance_j2: float = 0.0
    covered_s: float = 0.0
    unseen_j: float = 0.0
    resets: int = 0
    counted_j: float | None = None
    """Energy at the poll's counter value; None where that is missing or doubtful."""
    is_implausible: bool = False
    """True if the counter changed in a way that the device cannot."""


class MeterTotals(NamedTuple):
    """Sums that are persisted, so that the exported counters never fall."""

    energy_j: float = 0.0
    integrated_j: float = 0.0
    raw_j: float | None = None
    variance_j2: float = 0.0
    covered_s: float = 0.0
    resets: int = 0
    unseen_j: float = 0.0
    """Largest additional energy of the periods that were not measured; one-sided bounds, which add
    up.
    """
    peak_w: float = 0.0
    """Highest power in any poll."""

    def after(self, step: Step, raw_j: float | None, poll: Poll) -> MeterTotals:
        """Return the totals after a poll; `raw_j` is the counter's value that belongs to them."""
        return MeterTotals(
            step.energy_j,
            self.integrated_j + step.integrated_j,
            raw_j,
            self.variance_j2 + step.variance_j2,
            self.covered_s + step.covered_s,
            self.resets + step.resets,
            self.unseen_j + step.unseen_j,
            max(self.peak_w, poll.instant_w or 0.0, poll.average_w or 0.0),
        )


ZERO_TOTALS = MeterTotals()


class LastPoll(NamedTuple):
    """Last poll of a device before its exporter stopped. Times are CLOCK_BOOTTIME."""

    t_s: float
    most_w: float
    """Power that the device cannot exceed."""
    shown_s: float
    """Time up to which the poll shows the energy: its values may be older than the poll."""
    pending_j: float = 0.0
    """Largest error of the energy at that time, which a later value of the counter would correct.
    """


class MeteredPoll(NamedTuple):
    """Poll with the totals after it."""

    poll: Poll
    totals: MeterTotals
    moved_s: float | None
    """When the integrated power changed since the previous poll; None where the power is unknown
    since then.
    """
    counted_j: float | None = None
    """Energy at the poll's counter value; None where that is missing or doubtful."""


def poll_time_s(item: MeteredPoll) -> float:
    return item.poll.after_s


class CounterChange(NamedTuple):
    """Polls with a trusted value between which the counter changed: the last one with the old
    value, and the first one with the new value.
    """

    before: MeteredPoll
    after: MeteredPoll


class RecentPolls(deque[MeteredPoll]):
    """Latest polls of a device, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: deque[CounterChange] = deque()
        """Changes of the counter among the polls, oldest first."""
        self.counted: MeteredPoll | None = None
        """Latest poll with a trusted value of the counter."""
        self._is_complete = True
        """False once polls were discarded."""

    def append(self, item: MeteredPoll) -> None:
        """Add a poll, and discard those that are too old."""
        if item.counted_j is not None:
            before = self.counted
            if before is not None and before.poll.counter_j != item.poll.counter_j:
                self.changes.append(CounterChange(before, item))
            self.counted = item
        deque.append(self, item)
        oldest_s = item.poll.after_s - KEPT_S
        while len(self) > KEPT_POLLS and self[1].poll.after_s < oldest_s:
            self.popleft()
            self._is_complete = False
        first_s = self[0].poll.after_s
        while self.changes and self.changes[0].after.poll.after_s <= first_s:
            self.changes.popleft()

    def totals_before(self, t_s: float) -> MeterTotals:
        """Return the totals of the last poll at or before `t_s`, else of the first one."""
        return self[max(0, bisect_right(self, t_s, key=poll_time_s) - 1)].totals

    def has_discarded(self, t_s: float) -> bool:
        """Return whether the polls around `t_s` are no longer kept."""
        return not self._is_complete and t_s < poll_time_s(self[0])

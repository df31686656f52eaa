"""Trusted values of an energy counter, and the energy that belongs to them."""

from __future__ import annotations

import math
from collections import deque
from typing import Literal, NamedTuple

from wattline.counters import counter_step
from wattline_exporter.sensors.readings import Poll

MAX_DEVICE_W = 4_000.0
"""Power above any device's, where its limit is unknown."""
PACKAGE_MAX_W = 1_000.0
"""Power that no CPU package exceeds."""
CONFIRM_S = 0.5
"""Time for which implausible values must continue each other before they replace the trusted value.
"""
STALLED_S = 2.5
STALLED_UPDATES = 8.0
"""Time, or update periods, without a change or value after which power replaces a counter until it
changes again.
"""
LOST_S = 60.0
"""Time without a value after which a counter is lost; a later value is a new start of the counter.
"""
STALLED_J = 50.0
"""Energy without which a counter that does not change is healthy."""
MAX_UPDATE_S = 1.0
"""Longest update period of a healthy counter or power sensor; assumed until the polls show a
shorter one.
"""
_FAST_POLLS_S = 0.2
"""Longest time between polls that show when a sensor updates."""
_INTERVALS = 8


class UpdateInterval:
    """Longest recent time between two changes of a sensor's value."""

    def __init__(self, shortest_s: float) -> None:
        self.s = MAX_UPDATE_S
        self._shortest_s = shortest_s
        self._value: float | None = None
        self._changed_s = self._read_s = 0.0
        self._is_dated = False
        """True if fast polls show when the value changed."""
        self._recent: deque[float] = deque(maxlen=_INTERVALS)

    def take(self, t_s: float, value: float) -> None:
        """Note a value that was read at `t_s`."""
        if value != self._value:
            is_dated = t_s - self._read_s <= _FAST_POLLS_S
            if is_dated and self._is_dated:
                self._recent.append(t_s - self._changed_s)
                if 2 * len(self._recent) >= _INTERVALS:
                    self.s = min(max(*self._recent, self._shortest_s), MAX_UPDATE_S)
            self._value = value
            self._changed_s = t_s
            self._is_dated = is_dated
        self._read_s = t_s


class CounterStep(NamedTuple):
    """Result of one poll; `energy_j` is the energy at its counter value, None if that is missing or
    doubtful.

    `first`: there was no trusted value. `restarted`: the counter restarted from 0. `replaced`: it
    changed by more than the device can use, or fell, and continues from there.
    """

    kind: Literal["missing", "doubtful", "first", "counted", "restarted", "replaced"]
    energy_j: float | None = None
    doubt_j: float = 0.0
    """Energy that may be missing since the counter fell for a short time."""


class _Candidate(NamedTuple):
    """Implausible value that may turn out to be the counter's new value."""

    first_j: float
    first_s: float
    latest: Poll


_MISSING = CounterStep("missing")
_DOUBTFUL = CounterStep("doubtful")


class CounterTracker:
    """Latest trusted value of a counter, and the device's energy at that value.

    A value that is missing or doubtful changes nothing: the next plausible one includes all the
    energy since then.
    """

    def __init__(
        self, update_s: float, last: Poll | None, energy_j: float, integrated_j: float
    ) -> None:
        self.raw_j = last.counter_j if last else None
        self.energy_j = energy_j
        self.read_s = self.changed_s = last.after_s if last else float("-inf")
        """Time of the latest trusted value, and of its latest change."""
        self.changed_integrated_j = integrated_j
        """Integral of power at the latest change."""
        self._dated_s = self.changed_s - MAX_UPDATE_S
        """Earliest time at which energy of the next step can have flowed: the latest value was not
        yet read then.
        """
        self.update = UpdateInterval(update_s)
        self._candidate: _Candidate | None = None

    @property
    def stalled_s(self) -> float:
        """Time without a change after which the counter has stopped, if energy flows."""
        return min(STALLED_S, STALLED_UPDATES * self.update.s)

    def take(self, poll: Poll, bridged_j: float, *, max_w: float, restarts: bool) -> CounterStep:
        """Check the poll's value. `bridged_j`: energy by the integral of power, which counts where
        the counter is not trusted.

        `restarts`: the driver was unloaded, so that a value that is plausible since 0 counts from
        there.
        """
        raw_j = poll.counter_j
        if raw_j is None:
            return _MISSING
        if self.raw_j is None:
            return self._accept(poll, "first", bridged_j)
        range_j = poll.counter_range_j
        most_j = max_w * (poll.after_s - self._dated_s)
        if restarts and range_j is None and raw_j <= most_j:
            return self._accept(poll, "restarted", max(bridged_j, self.energy_j + raw_j))
        fell = raw_j < self.raw_j and range_j is None
        if not fell and not (self._candidate and self._continues_jump(poll, max_w)):
            step_j = counter_step(self.raw_j, raw_j, range_j, most_j)
            if step_j is not None:
                doubt_j = self._fall_j(poll, max_w) if self._candidate else 0.0
                return self._accept(poll, "counted", self.energy_j + step_j, doubt_j)
        return self._confirm(poll, raw_j, bridged_j, max_w)

    def follow(self, poll: Poll, integrated_j: float, max_w: float) -> bool:
        """Take an unchanged or plausibly higher value, as `take` would; return False where `take`
        must decide.
        """
        raw_j = self.raw_j
        counter_j = poll.counter_j
        if raw_j is None or counter_j is None or self._candidate:
            return False
        t_s = poll.after_s
        step_j = counter_j - raw_j
        if step_j == 0:
            if t_s - self.changed_s > self.stalled_s:
                return False
        elif 0 < step_j <= max_w * (t_s - self._dated_s):
            self._dated_s = self.read_s
            self.changed_s = t_s
            self.changed_integrated_j = integrated_j
            self.raw_j = counter_j
            self.energy_j += step_j
        else:
            return False
        self.read_s = t_s
        self.update.take(t_s, counter_j)
        return True

    def forget(self) -> None:
        """Forget the trusted value: power has replaced the counter for too long, so that its next
        value is a new start.
        """
        self.raw_j = None

    def raw_at(self, energy_j: float, range_j: float | None) -> float | None:
        """Return the counter's value that belongs to `energy_j`, from which the next exporter
        continues.
        """
        ahead_j = energy_j - self.energy_j
        if self.raw_j is None or abs(ahead_j) < 1e-6:
            return self.raw_j
        return (self.raw_j + ahead_j) % (range_j or math.inf)

    def _confirm(self, poll: Poll, raw_j: float, bridged_j: float, max_w: float) -> CounterStep:
        """Return a doubtful step until the implausible values have continued each other for
        CONFIRM_S.
        """
        known = self._candidate
        before_j = known.latest.counter_j if known else None
        if (
            known is None
            or before_j is None
            or not self._continues(before_j, known.latest, poll, max_w)
        ):
            self._candidate = _Candidate(raw_j, poll.after_s, poll)
            return _DOUBTFUL
        self._candidate = known._replace(latest=poll)
        if poll.after_s - known.first_s < CONFIRM_S:
            return _DOUBTFUL
        trusted_j = self.raw_j or 0.0
        from_zero = known.first_j < trusted_j and poll.counter_range_j is None
        if from_zero and known.first_j <= max_w * (known.first_s - self._dated_s):
            return self._accept(poll, "restarted", max(bridged_j, self.energy_j + raw_j))
        counted_j = self.energy_j + raw_j - known.first_j  # for a device without power readings
        return self._accept(poll, "replaced", bridged_j if bridged_j > self.energy_j else counted_j)

    def _continues_jump(self, poll: Poll, max_w: float) -> bool:
        """Return whether the value continues an implausible one that is higher than the trusted
        value.
        """
        known = self._candidate
        if known is None or known.latest.counter_j is None or known.first_j <= (self.raw_j or 0.0):
            return False
        return self._continues(known.latest.counter_j, known.latest, poll, max_w)

    def _fall_j(self, poll: Poll, max_w: float) -> float:
        """Return the largest possible fall of the counter if the poll continues an implausible
        lower value, else 0.
        """
        known = self._candidate
        if (
            known is None
            or known.latest.counter_j is None
            or self.raw_j is None
            or known.first_j >= self.raw_j
        ):
            return 0.0
        continues = self._continues(known.latest.counter_j, known.latest, poll, max_w)
        risen_j = max_w * (known.first_s - self._dated_s)
        return self.raw_j - known.first_j + risen_j if continues else 0.0

    def _continues(self, before_j: float, before: Poll, poll: Poll, max_w: float) -> bool:
        most_j = max_w * (poll.after_s - before.after_s + self.update.s)
        return poll.counter_j is not None and 0 <= poll.counter_j - before_j <= most_j

    def _accept(
        self,
        poll: Poll,
        kind: Literal["first", "counted", "restarted", "replaced"],
        energy_j: float,
        doubt_j: float = 0.0,
    ) -> CounterStep:
        raw_j = poll.counter_j
        assert raw_j is not None
        if raw_j != self.raw_j:
            is_known = self.raw_j is not None and kind == "counted"
            self._dated_s = self.read_s if is_known else poll.before_s - MAX_UPDATE_S
            self.changed_s = poll.after_s
        self.raw_j = raw_j
        self.energy_j = energy_j
        self.read_s = poll.after_s
        self.update.take(poll.after_s, raw_j)
        self._candidate = None
        return CounterStep(kind, energy_j, doubt_j)

"""Polling schedule of the NVML worker, set by the daemon's orders."""

from __future__ import annotations

import threading
import time

from wattline_exporter.sensors.readings import SamplingOrder, boottime

FAST_S = 0.047
"""Polling period of the GPUs in a run, and always of a GPU without an energy counter.

It does not divide the sensor's 100 ms, so that the times of its updates become known to a
millisecond.
"""
BURST_PERIOD_S = 0.013
"""Polling period in a burst that locates the updates of the sensors."""
BURST_PROCESSES_S = 0.2
"""Time between two lists of processes in a burst: a run that starts has the load of its processes
from its start on.
"""
COALESCE_S = 0.02
COALESCE_STEADY_S = 0.18
"""Coalescing time while polls come fast outside of a burst: four rounds share a frame. With eight
GPUs and an open run the daemon takes 1.73 % of a core, with half of this time 1.92 %.
"""
SHORT_WAIT_S = 0.05
"""Longest wait that an order need not interrupt."""
CHECK_S = 0.1
"""Longest pause between two checks for hanging driver calls while polls come fast."""


class SamplingSchedule:
    """Latest order of the daemon, and the waiting times that follow from it."""

    def __init__(self, order: SamplingOrder | None = None) -> None:
        first = order or SamplingOrder()
        self.period_s = first.period_s
        self._processes_every_s = first.processes_every_s
        self._burst_until_s = boottime() + first.burst_s
        self._locates_updates = first.locates_updates
        self._changed = threading.Condition()

    def follow(self, order: SamplingOrder) -> None:
        with self._changed:
            self.period_s = order.period_s
            self._processes_every_s = order.processes_every_s
            self._burst_until_s = boottime() + order.burst_s
            self._locates_updates = order.locates_updates
            self._changed.notify_all()

    @property
    def is_burst(self) -> bool:
        return boottime() < self._burst_until_s

    @property
    def processes_every_s(self) -> float:
        return (
            min(self._processes_every_s, BURST_PROCESSES_S)
            if self.is_burst
            else self._processes_every_s
        )

    def reads_a_round(self) -> int | None:
        """Return the number of GPUs of which a round of polls reads other values, too; None for
        all, at a slow rate.

        At a fast rate it is one, so that the polls are not late. A burst reads as many in a time
        as if it polled each BURST_PERIOD_S.
        """
        if self.period_s > SHORT_WAIT_S:
            return None
        return round(self.round_s() / BURST_PERIOD_S) if self.is_burst else 1

    def round_s(self, at_most_s: float | None = None) -> float:
        """Return the time between two rounds of polls."""
        if self.is_burst and self._locates_updates:
            return BURST_PERIOD_S
        return self.period_s if at_most_s is None else min(self.period_s, at_most_s)

    def coalesce_s(self) -> float:
        """Return how long an item waits for others that go into the same message."""
        steady = self.period_s < SHORT_WAIT_S and not self.is_burst
        return COALESCE_STEADY_S if steady else COALESCE_S

    def pause(self, seconds: float) -> bool:
        """Wait; return True if an order ended the wait."""
        with self._changed:
            return self._changed.wait(seconds)

    def check_every_s(self) -> float:
        return CHECK_S if self.period_s < SHORT_WAIT_S else self.period_s / 2

    def wait(self, offset_s: float, *, at_most_s: float | None) -> None:
        """Wait for the next round, `offset_s` after a multiple of the period. An order ends a long
        wait early.
        """
        now = boottime()
        period_s = self.round_s(at_most_s)
        wait_s = period_s - (now - offset_s) % period_s
        if wait_s < SHORT_WAIT_S:
            time.sleep(wait_s)
            return
        with self._changed:
            self._changed.wait(wait_s)

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
        self._changed = threading.Condition()

    def follow(self, order: SamplingOrder) -> None:
        with self._changed:
            self.period_s = order.period_s
            self._processes_every_s = order.processes_every_s
            self._burst_until_s = boottime() + order.burst_s
            self._changed.notify_all()

    @property
    def processes_every_s(self) -> float:
        is_burst = boottime() < self._burst_until_s
        return (
            min(self._processes_every_s, BURST_PROCESSES_S) if is_burst else self._processes_every_s
        )

    def coalesce_s(self) -> float:
        """Return how long an item waits for others that go into the same message."""
        steady = self.period_s < SHORT_WAIT_S and boottime() > self._burst_until_s
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
        period_s = self.period_s if at_most_s is None else min(self.period_s, at_most_s)
        if now < self._burst_until_s:
            period_s = BURST_PERIOD_S
        wait_s = period_s - (now - offset_s) % period_s
        if wait_s < SHORT_WAIT_S:
            time.sleep(wait_s)
            return
        with self._changed:
            self._changed.wait(wait_s)

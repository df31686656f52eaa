"""Time up to which no report that may still come can change the energy of a server."""

from __future__ import annotations

import math

from wattline_exporter.requests.division.arrays import FloatArray

FIRST_S = 30.0
"""Time for which slots wait while the durations of requests are unknown: in the first minute."""
LEAST_DISORDER_S = 1.0
"""Least time by which a request may end before one that was reported earlier: a server has several
workers.
"""
QUIET_S = 5.0
QUIET_LAGS = 2.0
"""Without a new report, a request is taken as reported QUIET_S and QUIET_LAGS times the usual lag
after its end.
"""
AFTER_END_S = 0.5
"""Time after the end of a run, beside the usual lag, within which its last requests are reported.
"""
LAST_CALL_S = 1.0
"""Longest time from the last call to the end of the run with which a server has reported all its
requests, and longest time to its next call in that case.
"""
OWN_LAG_RATIO = 0.1
"""Lag of the last call relative to the largest one, from which it is of the same reporter: another
one that reports at once has a shorter lag.
"""
KEPT_S = 300.0
"""Time for which the largest values count at least, and twice that at most."""


class _RecentMaximum:
    """Largest value of the last KEPT_S to 2 * KEPT_S, 0 without any."""

    def __init__(self) -> None:
        self._since_s = -math.inf
        self._new = 0.0
        self._old = 0.0

    def add(self, value: float, now_s: float) -> None:
        if now_s - self._since_s >= KEPT_S:
            self._old = self._new
            self._new = 0.0
            self._since_s = now_s
        self._new = max(self._new, value)

    @property
    def value(self) -> float:
        return max(self._new, self._old)


class Watermark:
    """Reports of one server, in the order in which they came. Times are CLOCK_BOOTTIME.

    `window_s` is the longest time from the end of a request to its report. `lateness_s` is the one
    for which slots wait although the reports so far came earlier.

    A request that is not reported yet ends after the latest reported end, but for the disorder of
    the reports, and is no longer than the longest one. A server that reports rarely therefore needs
    no setting: slots wait for its next call.
    """

    def __init__(self, window_s: float, lateness_s: float = 0.0) -> None:
        self.window_s = window_s
        self._lateness_s = min(lateness_s, window_s)
        self._first_s = math.inf
        self._called_s = -math.inf
        self._latest_end_s = -math.inf
        self._run_end_s = math.inf
        self._restarted_s = -math.inf
        self._longest = _RecentMaximum()
        self._disorder = _RecentMaximum()
        self._lag = _RecentMaximum()
        """Time from the end of a request to its report."""
        self._lag_after_call = _RecentMaximum()
        """The same, of requests that an earlier call could not have: a server that reports all its
        requests in one call has none to report after it.
        """
        self._last_lag_s = 0.0
        """The same, of the last call."""
        self._freshest_s = math.inf
        """Shortest time from the end of a request to its report."""

    def report(self, arrived_s: FloatArray, ended_s: FloatArray, now_s: float) -> None:
        """Note the N requests of a call, at least one, by their arrivals and ends."""
        first_end_s = float(ended_s.min())
        last_end_s = float(ended_s.max())
        self._longest.add(float((ended_s - arrived_s).max()), now_s)
        if self._latest_end_s > -math.inf:
            self._disorder.add(self._latest_end_s - first_end_s, now_s)
        self._lag.add(now_s - first_end_s, now_s)
        is_first = self._called_s == -math.inf
        since_s = last_end_s if is_first else max(first_end_s, min(self._called_s, last_end_s))
        self._last_lag_s = now_s - since_s
        self._lag_after_call.add(self._last_lag_s, now_s)
        self._freshest_s = min(self._freshest_s, now_s - last_end_s)
        self._first_s = min(self._first_s, now_s)
        self._latest_end_s = max(self._latest_end_s, last_end_s)
        self._called_s = now_s

    def end(self, run_end_s: float) -> None:
        """Note the end of the run, after which no request ends."""
        self._run_end_s = run_end_s

    def restart(self, now_s: float) -> None:
        """Note a restart of the exporter, before which no report could come for a time."""
        self._first_s = now_s
        self._restarted_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return the time after its end at which a slot is divided without any later report."""
        longest_s = self._longest.value
        wait_s = max(QUIET_S + QUIET_LAGS * self._lag.value, self._lateness_s) + longest_s
        if self._is_new(now_s):
            wait_s = max(wait_s, FIRST_S)
        return min(wait_s, self.window_s + min(longest_s, self.window_s))

    def closed_s(self, now_s: float) -> float:
        """Return the time up to which energy can be divided for good, inf for all of it."""
        lag_s = min(max(self._lag_after_end_s, self._lateness_s), self.window_s)
        if now_s >= max(self._run_end_s, self._restarted_s) + AFTER_END_S + lag_s:
            return math.inf
        closed_s = now_s - self.wait_s(now_s)
        if self._is_new(now_s):
            return closed_s
        disorder_s = max(self._disorder.value, LEAST_DISORDER_S, self._lateness_s)
        return max(closed_s, self._latest_end_s - disorder_s - self._longest.value)

    @property
    def _lag_after_end_s(self) -> float:
        """Longest time from the end of the run to the last report of its requests.

        A server that reports rarely, and has reported the rest at the end, has none left.
        """
        lag_s = self._lag_after_call.value
        has_called = self._called_s >= self._run_end_s - LAST_CALL_S
        is_own = self._last_lag_s >= OWN_LAG_RATIO * lag_s
        if has_called and is_own and self._freshest_s <= LAST_CALL_S:
            return min(lag_s, LAST_CALL_S)
        return lag_s

    def _is_new(self, now_s: float) -> bool:
        """Return whether the durations of requests are unknown yet."""
        return now_s < self._first_s + 2 * FIRST_S

"""Checks of reported requests: duplicates, late reports, wrong clocks, and the rate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from wattline_exporter.sensors.readings import ClockReading, RunError

if TYPE_CHECKING:  # numpy is imported with the first request
    from wattline_exporter.requests.division.arrays import IntArray, Mask
    from wattline_exporter.requests.division.columns import RequestColumns
    from wattline_exporter.requests.id_table import IdTable

MAX_HELD = 200_000
"""Requests whose ids are kept to find duplicates, at least; with more in a window, the window is
shorter.
"""
MAX_RUNS = 128
"""Runs whose ids are kept."""
CLOCK_ERROR_S = 1.0
"""Largest difference between the clocks of a server and the exporter that is not declared."""

Reason = Literal["duplicate", "late", "future", "order", "before_run", "after_run"]
REASONS: dict[Reason, str] = {
    "duplicate": "reported before: ids must be unique, and only the first report counts",
    "late": (
        "reported too late: the energy of their time was divided before, or they ended before the "
        "window of --requests.window; a longer --requests.lateness lets energies wait for them"
    ),
    "future": "end in the future: the clock of their server is ahead; synchronize it with NTP",
    "order": "their times are not in the order start, first token, end",
    "before_run": "begin before the run",
    "after_run": "end after the run",
}


def id_hash_of(request_id: str) -> int:
    """Return the hash of an id, as `RequestColumns.id_hashes`."""
    return hash(request_id) or 1


class RunSpan(NamedTuple):
    """Begin and end of a run in Unix seconds; the end is None while it runs."""

    begin_at: float
    end_at: float | None


class Checked(NamedTuple):
    """Requests that are accepted with the hashes of their ids, and how many are not, by reason."""

    accepted: RequestColumns
    id_hashes: IntArray
    refused: Counter[Reason]


@dataclass(slots=True)
class _Generation:
    """Hashes of ids that were accepted since a time, and the latest end of their requests, both
    CLOCK_BOOTTIME.
    """

    since_s: float
    hashes: IdTable
    latest_end_s: float = -math.inf


class RequestIds:
    """Hashes of the ids of one run's requests that ended within the window.

    They are in two generations, of which the older one is forgotten as a whole. Their times are
    CLOCK_BOOTTIME, which a step of the wall clock leaves as they are.
    """

    def __init__(self, window_s: float) -> None:
        from wattline_exporter.requests.id_table import IdTable

        self._window_s = window_s
        self._new, self._old = (_Generation(-math.inf, IdTable()) for _ in range(2))
        self._late_before_s = -math.inf
        """Time up to which duplicates can no longer be found."""

    def check(self, requests: RequestColumns, run: RunSpan, now: ClockReading) -> Checked:
        """Return the requests that count, whose ids are known from now on."""
        import numpy as np

        self._forget(now.s)
        if not len(requests):
            return Checked(requests, requests.id_hashes, Counter())
        late_before = self._late_before_s + now.at - now.s
        latest = now.at + CLOCK_ERROR_S
        first = run.begin_at - CLOCK_ERROR_S
        last = latest if run.end_at is None else run.end_at + CLOCK_ERROR_S
        end = requests.ended_at
        begin = requests.started_at
        token = requests.first_token_at
        order = (begin > end) | (token < begin) | (token > end)
        refused: Counter[Reason] = Counter()
        first_end, last_end = requests.end_range
        if order.any() or not (
            late_before < first_end <= last_end <= min(latest, last) and begin.min() >= first
        ):
            wrong: dict[Reason, Mask] = {
                "future": end > latest,
                "late": end <= late_before,
                "order": order,
                "before_run": begin < first,
                "after_run": end > last,
            }
            left = np.ones(len(requests), dtype=bool)
            for reason, mask in wrong.items():
                if count := int(np.count_nonzero(mask & left)):
                    refused[reason] = count
                    left &= ~mask
            requests = requests.take(left)
        hashes = requests.id_hashes
        new = self._unknown(hashes)
        if not new.all():
            refused["duplicate"] = len(requests) - int(np.count_nonzero(new))
            requests = requests.take(new)
            hashes = hashes[new]
        self._keep(requests, hashes, now)
        return Checked(requests, hashes, refused)

    def _unknown(self, id_hashes: IntArray) -> Mask:
        """Return the mask of ids that are not known, each one once."""
        from wattline_exporter.requests.id_table import is_first

        known = self._new.hashes.contains(id_hashes) | self._old.hashes.contains(id_hashes)
        return is_first(id_hashes) & ~known

    def note(self, requests: RequestColumns, now: ClockReading) -> None:
        """Keep the ids of requests that were accepted before."""
        hashes = requests.id_hashes
        self._keep(requests, hashes[self._unknown(hashes)], now)

    def _keep(self, requests: RequestColumns, new: IntArray, now: ClockReading) -> None:
        """Keep new hashes, of some of the requests."""
        if len(new):
            self._new.hashes.add(new)
            self._new.latest_end_s = max(
                self._new.latest_end_s, requests.end_range[1] - (now.at - now.s)
            )

    def withdraw(self, id_hashes: IntArray) -> None:
        """Forget requests that could not be saved: they will be reported again."""
        self._new.hashes.remove(id_hashes)
        self._old.hashes.remove(id_hashes)

    def _forget(self, now_s: float) -> None:
        if len(self._new.hashes) >= MAX_HELD or now_s - self._new.since_s >= self._window_s:
            self._late_before_s = max(self._late_before_s, self._old.latest_end_s)
            from wattline_exporter.requests.id_table import IdTable

            self._new, self._old = _Generation(now_s, IdTable(len(self._new.hashes))), self._new
        self._late_before_s = max(self._late_before_s, now_s - self._window_s)


class RunIds:
    """Ids of the requests of runs. Those of ended runs are forgotten first, else of the longest
    without a report.
    """

    def __init__(self, window_s: float, has_ended: Callable[[str], bool]) -> None:
        self._window_s = window_s
        self._has_ended = has_ended
        self._of: dict[str, RequestIds] = {}
        """Ids in the order of the latest reports of their runs."""

    def of_run(self, run_id: str) -> RequestIds:
        """Return the ids of a run that reports requests now."""
        ids = self._of.pop(run_id, None) or RequestIds(self._window_s)
        if len(self._of) >= MAX_RUNS:
            del self._of[next(filter(self._has_ended, self._of), next(iter(self._of)))]
        self._of[run_id] = ids
        return ids


class RateLimit:
    """Limit of the requests per second, over two seconds."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left = 2.0 * per_second
        self._at_s = 0.0

    def take(self, requests: int, now_s: float) -> None:
        """Count requests. Raises RunError where they are too many."""
        self._left = min(
            2.0 * self._per_second, self._left + (now_s - self._at_s) * self._per_second
        )
        self._at_s = now_s
        if self._left < min(
            requests, self._per_second
        ):  # one call may have more than the limit, at once
            raise RunError(
                429,
                f"more than {self._per_second} requests per second; send them again later, or "
                "raise "
                "--requests.max-per-second",
                max(
                    1, math.ceil((min(requests, self._per_second) - self._left) / self._per_second)
                ),
            )
        self._left -= requests

"""Checks of reported requests: duplicates, late reports, wrong clocks, and the rate."""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Literal, NamedTuple

from exporter.model import RunError

if TYPE_CHECKING:  # numpy is imported with the first request
    from exporter.request_energy.columns import RequestColumns
    from exporter.request_energy.pieces import Mask

MAX_HELD = 200_000
"""Most requests whose ids are kept to find duplicates; beyond, the window is shorter."""
CLOCK_ERROR_S = 1.0
"""Largest difference between the clocks of a server and the exporter that is not declared."""

Reason = Literal["duplicate", "late", "future", "order", "before_run", "after_run"]
REASONS: dict[Reason, str] = {
    "duplicate": "reported before",
    "late": "reported too late: they ended before the window of --requests.window",
    "future": "end in the future: the clock of their server is ahead",
    "order": "their times are not in the order start, first token, end",
    "before_run": "begin before the run",
    "after_run": "end after the run",
}


class RunTimes(NamedTuple):
    """Begin and end of a run in Unix seconds; the end is None while it runs."""

    begin_at: float
    end_at: float | None


class Checked(NamedTuple):
    """Requests that are accepted with the hashes of their ids, and how many are not, by reason."""

    accepted: RequestColumns
    id_hashes: list[int]
    refused: Counter[Reason]


@dataclass(slots=True)
class RequestIds:
    """Hashes of the ids of one run's requests that ended within the window."""

    window_s: float
    _hashes: set[int] = field(default_factory=set)
    _batches: deque[tuple[float, array[int]]] = field(default_factory=deque)
    """Hashes of each call, with the latest end."""
    late_before: float = 0.0
    """Unix time up to which duplicates can no longer be found."""

    def check(self, requests: RequestColumns, run: RunTimes, now_at: float) -> Checked:
        """Return the requests that count, whose ids are known from now on."""
        import numpy as np

        self._forget(now_at)
        latest, first = now_at + CLOCK_ERROR_S, run.begin_at - CLOCK_ERROR_S
        last = latest if run.end_at is None else run.end_at + CLOCK_ERROR_S
        end, begin, token = requests.ended_at, requests.started_at, requests.first_token_at
        wrong: dict[Reason, Mask] = {
            "future": end > latest,
            "late": end <= self.late_before,
            "order": (begin > end) | (token < begin) | (token > end),
            "before_run": begin < first,
            "after_run": end > last,
        }
        refused: Counter[Reason] = Counter()
        left = np.ones(len(requests), dtype=bool)
        for reason, mask in wrong.items():
            if count := int(np.count_nonzero(mask & left)):
                refused[reason] = count
                left &= ~mask
        hashes = requests.id_hashes
        if len(set(hashes)) < len(hashes) or not self._hashes.isdisjoint(hashes):
            known: set[int] = set()
            for index in np.flatnonzero(left).tolist():
                if hashes[index] in self._hashes or hashes[index] in known:
                    refused["duplicate"] += 1
                    left[index] = False
                known.add(hashes[index])
        if refused:
            requests, hashes = requests.take(left), list(compress(hashes, left))
        self.note(requests, hashes)
        return Checked(requests, hashes, refused)

    def note(self, requests: RequestColumns, id_hashes: list[int]) -> None:
        """Keep the ids of accepted requests."""
        if id_hashes:
            self._hashes.update(id_hashes)
            self._batches.append((requests.end_range[1], array("q", id_hashes)))

    def withdraw(self, id_hashes: list[int]) -> None:
        """Forget requests that could not be saved: they will be reported again."""
        self._hashes.difference_update(id_hashes)

    def _forget(self, now_at: float) -> None:
        self.late_before = max(self.late_before, now_at - self.window_s)
        while self._batches and (self._batches[0][0] <= self.late_before or len(self._hashes) > MAX_HELD):
            ended_at, hashes = self._batches.popleft()
            self.late_before = max(self.late_before, ended_at)
            self._hashes.difference_update(hashes)


class RateLimit:
    """Limit of the requests per second, over two seconds."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left, self._at_s = 2.0 * per_second, 0.0

    def take(self, requests: int, now_s: float) -> None:
        """Count requests. Raises RunError where they are too many."""
        self._left = min(2.0 * self._per_second, self._left + (now_s - self._at_s) * self._per_second)
        self._at_s = now_s
        if self._left < min(requests, self._per_second):  # one call may have more than the limit, at once
            raise RunError(
                429,
                f"more than {self._per_second} requests per second; send them again later, or raise "
                "--requests.max-per-second",
                max(1, math.ceil((min(requests, self._per_second) - self._left) / self._per_second)),
            )
        self._left -= requests

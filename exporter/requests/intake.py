"""Checks of reported requests: duplicates, late reports, wrong clocks, and the rate."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from exporter.contract.requests import ServedRequest
from exporter.model import RunError

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


@dataclass(slots=True)
class Checked:
    """Requests that are accepted, and how many are not, by reason."""

    accepted: list[ServedRequest]
    refused: Counter[Reason]


@dataclass(slots=True)
class RequestIds:
    """Ids of the requests of one run that ended within the window."""

    window_s: float
    _ids: set[str] = field(default_factory=set)
    _batches: deque[tuple[float, list[str]]] = field(default_factory=deque)
    """Ids of each call, with the latest end."""
    late_before: float = 0.0
    """Unix time up to which duplicates can no longer be found."""

    def check(self, requests: Sequence[ServedRequest], run: RunTimes, now_at: float) -> Checked:
        """Return the requests that count, whose ids are known from now on."""
        self._forget(now_at)
        latest, first, late = now_at + CLOCK_ERROR_S, run.begin_at - CLOCK_ERROR_S, self.late_before
        last = latest if run.end_at is None else run.end_at + CLOCK_ERROR_S
        checked, ids = Checked([], Counter()), self._ids
        for each in requests:
            end, begin, token = each.ended_at, each.started_at, each.first_token_at
            if end > latest:
                checked.refused["future"] += 1
            elif end <= late:
                checked.refused["late"] += 1
            elif begin > end or (token is not None and not begin <= token <= end):
                checked.refused["order"] += 1
            elif begin < first:
                checked.refused["before_run"] += 1
            elif end > last:
                checked.refused["after_run"] += 1
            elif each.request_id in ids:
                checked.refused["duplicate"] += 1
            else:
                ids.add(each.request_id)
                checked.accepted.append(each)
        self.note(checked.accepted)
        return checked

    def note(self, requests: Sequence[ServedRequest]) -> None:
        """Keep the ids of accepted requests."""
        if requests:
            ids = [each.request_id for each in requests]
            self._ids.update(ids)
            self._batches.append((max(each.ended_at for each in requests), ids))

    def withdraw(self, requests: Sequence[ServedRequest]) -> None:
        """Forget requests that could not be saved: they will be reported again."""
        self._ids.difference_update(each.request_id for each in requests)

    def _forget(self, now_at: float) -> None:
        self.late_before = max(self.late_before, now_at - self.window_s)
        while self._batches and (self._batches[0][0] <= self.late_before or len(self._ids) > MAX_HELD):
            ended_at, ids = self._batches.popleft()
            self.late_before = max(self.late_before, ended_at)
            self._ids.difference_update(ids)


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

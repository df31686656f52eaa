"""What the sampler's process and its parent say to each other: orders in, JSON lines out."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from exporter.model import boottime

PROCESSES_EVERY_S = 5.0
COALESCE_S = 0.02
COALESCE_STEADY_S = 0.09
"""While polls come fast and nothing waits for one of them, two rounds go as one line: that halves the parent's work."""
BURST_PERIOD_S = 0.013
SHORT_S = 0.05
LOOK_S = 0.1
"""While polls come fast, the outbox looks this often whether some are missing."""
EXIT_BEHIND = 1
EXIT_NO_DRIVER = 3
MOST_POLLS = 20_000
"""So many wait for a parent that does not read, of 64 GPUs those of 15 s; of more the older half is dropped.

A GPU's own counter bridges that; where it has none, the time counts as not covered.
"""
MOST_OTHERS = 4_000
"""None of these can be dropped, since only what changes is sent: a process that begins anew tells everything again."""
LONGEST_LINE = 256 * 1024
"""In bytes: the parent does nothing else while it takes in a line."""


_Message = tuple[str, Any]
"""Its kind, and what it says."""


@dataclass
class Orders:
    """What the parent wants. `burst_until_s`: poll as fast as it pays, to learn when the sensor updates."""

    period_s: float = 1.0
    burst_until_s: float = 0.0
    processes_every_s: float = PROCESSES_EVERY_S
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, line: str) -> None:
        order = json.loads(line)
        with self.changed:
            self.period_s = order["period_s"]
            self.burst_until_s = boottime() + order["burst_s"]
            self.processes_every_s = order["processes_every_s"]
            self.changed.notify_all()

    def coalesce_s(self) -> float:
        steady = self.period_s < SHORT_S and boottime() > self.burst_until_s
        return COALESCE_STEADY_S if steady else COALESCE_S

    def look_s(self) -> float:
        """How long the outbox may wait for something to send."""
        return LOOK_S if self.period_s < SHORT_S else self.period_s / 2

    def wait(self, offset_s: float, *, at_most_s: float | None) -> None:
        """Until the next round is due, `offset_s` after a multiple of the period. An order cuts a long wait short."""
        now = boottime()
        period_s = self.period_s if at_most_s is None else min(self.period_s, at_most_s)
        if now < self.burst_until_s:
            period_s = BURST_PERIOD_S
        wait_s = period_s - (now - offset_s) % period_s
        if wait_s < SHORT_S:
            time.sleep(wait_s)
            return
        with self.changed:
            self.changed.wait(wait_s)


class Outbox:
    """Lines for the parent; what comes within a short time goes as one."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._filled = threading.Event()
        self._lock = threading.Lock()
        self._messages: list[_Message] = []
        self._polls = 0

    def put(self, kind: str, message: Any) -> None:
        """Ends the process where the parent reads nothing for so long that it must be told everything anew."""
        with self._lock:
            self._messages.append((kind, message))
            self._polls += kind == "polls"
            if self._polls > MOST_POLLS:
                self._drop_polls()
            if len(self._messages) - self._polls > MOST_OTHERS:
                os._exit(EXIT_BEHIND)
        self._filled.set()

    def _drop_polls(self) -> None:
        """The older half. Called with the lock held."""
        places = [place for place, (kind, _) in enumerate(self._messages) if kind == "polls"]
        first_kept = places[len(places) // 2]
        older = [message for message in self._messages[:first_kept] if message[0] != "polls"]
        self._messages = older + self._messages[first_kept:]
        self._polls = len(places) - len(places) // 2

    def send_for_ever(self, look: Callable[[], None]) -> None:
        """Calls `look` each time it wakes up, which it does also where nothing comes."""
        while True:
            if self._filled.wait(self._orders.look_s()):
                time.sleep(self._orders.coalesce_s())
                self._filled.clear()
                self.flush()
            look()

    def flush(self) -> None:
        with self._lock:
            messages, self._messages, self._polls = self._messages, [], 0
        try:
            with _writing:
                for line in _lines(messages):
                    _write(line)
        except BrokenPipeError:
            os._exit(0)

    def leave(self, code: int) -> NoReturn:
        """Ends the process once what waits is sent. Threads that hang in the driver would keep it otherwise."""
        self.flush()
        with _writing:
            os._exit(code)


_writing = threading.Lock()


def _lines(messages: list[_Message]) -> Iterator[bytes]:
    """In the order in which they were put, as few lines as go: a GPU is told of before its polls are."""
    if not messages:
        return
    by_kind: dict[str, list[Any]] = {}
    for kind, message in messages:
        by_kind.setdefault(kind, []).append(message)
    line = json.dumps(by_kind, separators=(",", ":")).encode() + b"\n"
    if len(line) <= LONGEST_LINE or len(messages) == 1:
        yield line
        return
    half = len(messages) // 2
    yield from _lines(messages[:half])
    yield from _lines(messages[half:])


def _write(line: bytes) -> None:
    """Whole: a line longer than the pipe holds goes in parts."""
    while line:
        line = line[os.write(1, line) :]

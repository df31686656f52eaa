"""Sends what the history keeps to one server, oldest first; each sample until the server has taken or refused it."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol, TypeVar

from exporter.contract.metrics import PUSH_SAMPLES, PUSH_TIMESTAMP, PUSH_UP
from exporter.history import History
from exporter.push.answers import Answer
from exporter.push.backlog import Backlog, Batch, Outcome, Position, Sample
from exporter.push.server import Server
from exporter.push.target import Target
from exporter.reading import Reading, boottime

MOST_SAMPLES = 10_000
"""In one request: a body of 2 MB, before it is compressed."""
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
FINISH_WITHIN_S = 5.0
FORGETS_S = 10.0
"""A VictoriaMetrics that is killed loses what it took in the last five seconds, -inmemoryDataFlushInterval."""
MOST_REFUSED = 64
"""After so many parts in a row that were refused, parts are no longer halved down to one sample."""
FEW_SAMPLES = MOST_SAMPLES // 64

_EVER_MS = 1 << 62

Value = TypeVar("Value")
log = logging.getLogger(__name__)


class InHistory(Protocol):
    """Runs a function in the history's thread."""

    def __call__(self, ask: Callable[[History], Value], /) -> Awaitable[Value]: ...


class Pusher:
    """What it holds is one batch: whatever waits, waits in the history's file."""

    def __init__(self, target: Target, in_history: InHistory, *, first_wait_s: float = FIRST_WAIT_S) -> None:
        self._target = target
        self._in_history = in_history
        self._first_wait_s = first_wait_s
        self._thread = ThreadPoolExecutor(1, "push")
        self._up: bool | None = None
        self._trouble = ""
        self._troubled_s = 0.0
        self._failures = 0
        self._not_before_s = 0.0
        self._refusals: set[str] = set()
        self._refused = 0
        """How many parts in a row."""
        self._most = MOST_SAMPLES
        self._position = Position()
        self._taken: deque[tuple[float, Position]] = deque()
        """When something was taken lately, and the position before."""

    def readings(self) -> Iterator[Reading]:
        position = self._position
        if self._up is not None:
            yield Reading(PUSH_UP, (), float(self._up))
        if position.t_ms:
            yield Reading(PUSH_TIMESTAMP, (), position.t_ms / 1_000)
        yield Reading(PUSH_SAMPLES, ("accepted",), float(position.accepted))
        yield Reading(PUSH_SAMPLES, ("refused",), float(position.refused))
        yield Reading(PUSH_SAMPLES, ("dropped",), float(position.dropped))

    async def run(self) -> None:
        """For ever. It begins at a moment of its own, so that nodes do not come all at once."""
        self._position = await self._of_backlog(lambda backlog, _: backlog.position()) or self._position
        wait_s = random.uniform(0.0, self._target.every_s)  # noqa: S311  # no secret
        async with Server(self._target, self._thread) as server:
            while True:
                await asyncio.sleep(wait_s)
                wait_s = await self._send_some(server)

    async def finish(self) -> None:
        """Sends what is left, as far as the server takes it at once. `run` has ended."""
        if boottime() < self._not_before_s:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_WITHIN_S), Server(self._target, self._thread) as server:
                while await self._send_some(server, whole=True) == 0.0:
                    pass

    async def _send_some(self, server: Server, *, whole: bool = False) -> float:
        """One batch. For how many seconds there is nothing to do then. `whole`: the history gets no more."""
        most = self._most
        batch = await self._of_backlog(
            lambda backlog, settled_ms: backlog.oldest(_EVER_MS if whole else settled_ms, most)
        )
        if batch is None:
            return self._back_off(None)
        if not batch.samples:
            return self._target.every_s
        failed = await self._deliver(server, batch)
        if failed:
            return self._back_off(failed.wait_s)
        self._failures = 0
        return 0.0 if len(batch.samples) == most else self._target.every_s

    def _back_off(self, asked_s: float | None) -> float:
        self._failures += 1
        wait_s = min(self._first_wait_s * 2.0 ** min(self._failures - 1, 16), LONGEST_WAIT_S)
        wait_s = max(wait_s * random.uniform(0.5, 1.0), (asked_s or 0.0) * random.uniform(1.0, 1.1))  # noqa: S311  # no secret
        self._not_before_s = boottime() + (asked_s or 0.0)
        return wait_s

    async def _deliver(self, server: Server, batch: Batch) -> Answer | None:
        """None once all of it is done with. Where a part is refused its halves are tried, the older one first."""
        parts = [batch.samples]
        while parts:
            part = parts.pop()
            said = await server.post(part, batch)
            if said.kind == "later":
                await self._fail(said)
                return said
            if said.kind == "accepted":
                self._refused, self._most = 0, min(self._most * 2, MOST_SAMPLES)
                done = await self._done(part, batch, "accepted")
            elif self._is_split(said, part):
                parts += reversed(halves(part))
                continue
            else:
                self._refused += 1
                self._say_refused(said, part)
                done = await self._done(part, batch, "refused")
            if not done:
                return Answer("later")
        return None

    def _is_split(self, said: Answer, part: list[Sample]) -> bool:
        if said.kind == "too_large":
            self._most = max(len(part) // 2, 1)
            return len(part) > 1
        return len(part) > (1 if self._refused < MOST_REFUSED else FEW_SAMPLES)

    async def _done(self, part: list[Sample], batch: Batch, outcome: Outcome) -> bool:
        """Whether that could be written down."""
        before = self._position
        after = await self._of_backlog(lambda backlog, _: backlog.acknowledge(part, batch.moves, outcome))
        if after is None:
            return False
        self._position = after
        self._taken.append((boottime(), before))
        while self._taken[0][0] < boottime() - FORGETS_S:
            self._taken.popleft()
        if self._trouble:
            log.info("pushing to %s again, after %.0f s", self._target.url, boottime() - self._troubled_s)
        self._up, self._trouble = True, ""
        return True

    async def _fail(self, said: Answer) -> None:
        """A server that was gone may have lost what it took last: where that does no harm it is sent again."""
        self._say(said.text)
        if said.lost and self._target.repeatable and self._taken:
            since = self._taken[0][1]
            self._taken.clear()
            self._position = await self._of_backlog(lambda backlog, _: backlog.go_back(since)) or self._position

    def _say(self, text: str) -> None:
        """Once, though numbers in it may change."""
        if not self._trouble:
            self._troubled_s = boottime()
        if re.sub(r"\d{4,}", "…", text) != re.sub(r"\d{4,}", "…", self._trouble):
            log.warning("cannot push to %s: %s; what is not sent waits in the history", self._target.url, text)
        self._up, self._trouble = False, text

    def _say_refused(self, said: Answer, part: list[Sample]) -> None:
        """Once for each remedy."""
        remedy = said.text.partition("; ")[2]
        if remedy in self._refusals:
            return
        self._refusals.add(remedy)
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(part[0].t_ms / 1_000))
        log.warning(
            "%s refuses samples of %s: %s; they are not sent again, and wattline_push_samples_total counts them",
            self._target.url, moment, said.text,
        )  # fmt: skip

    async def _of_backlog(self, ask: Callable[[Backlog, int], Value]) -> Value | None:
        """None where the history cannot be read or written now."""

        def asked(history: History) -> Value:
            assert history.backlog is not None
            return ask(history.backlog, history.settled_ms)

        try:
            return await self._in_history(asked)
        except (sqlite3.Error, OSError) as error:
            self._say(f"the history cannot be used: {error}; see that its disk is well and has room")
            return None


def halves(part: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    """By time as far as there are several, since servers refuse what is old; of one time by series."""
    middle = len(part) // 2
    if part[0].t_ms != part[-1].t_ms:
        later = [at for at in range(1, len(part)) if part[at].t_ms != part[at - 1].t_ms]
        middle = min(later, key=lambda at: abs(at - middle))
    return part[:middle], part[middle:]

"""Sends what the history keeps to one server, oldest first; each sample until the server has taken or refused it."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from exporter.contract.metrics import PUSH_SAMPLES, PUSH_TIMESTAMP, PUSH_UP
from exporter.model import Reading, Service, boottime
from exporter.push.certainty import FORGETS_S, Certainty
from exporter.push.config import Target
from exporter.push.http import TIMEOUT_S, Server
from exporter.push.outage import MOST_COUNTED, Outage
from exporter.push.responses import Answer
from exporter.storage.history import History
from exporter.storage.push_queue import (
    PushBatch,
    PushOutcome,
    PushPosition,
    PushQueue,
    PushQueueState,
    QueuedSample,
    split_samples,
)

MOST_SAMPLES = 10_000
"""In one request: a body of 2 MB, before it is compressed."""
LONGEST_WAIT_S = 60.0
FINISH_WITHIN_S = 5.0
MOST_REFUSED = 64
"""After so many parts in a row that were refused, parts are no longer halved down to one sample."""
FEW_SAMPLES = MOST_SAMPLES // 64
CAREFUL_S = 600.0
"""For so long a server for which a request was too much gets no more at once than it took."""

_EVER_MS = 1 << 62

Value = TypeVar("Value")


class InHistory(Protocol):
    """Runs a function in the history's thread."""

    def __call__(self, ask: Callable[[History], Value], /) -> Awaitable[Value]: ...


@dataclass(frozen=True, slots=True)
class Pace:
    first_wait_s: float = 1.0
    """After the first of several failures."""
    timeout_s: float = TIMEOUT_S
    forgets_s: float = FORGETS_S


_PACE = Pace()


class Pusher(Service):
    """What it holds is one batch: whatever waits, waits in the history's file."""

    def __init__(self, target: Target, in_history: InHistory, pace: Pace = _PACE) -> None:
        self._target = target
        self._in_history = in_history
        self._pace = pace
        self._thread = ThreadPoolExecutor(1, "push")
        self._outage = Outage(target.url)
        self._failures = 0
        self._not_before_s = 0.0
        self._refused = 0
        """How many parts in a row."""
        self._most = MOST_SAMPLES
        self._careful_until_s = 0.0
        self._position = PushPosition()
        self._certainty = Certainty(target.url, pace.forgets_s)

    def readings(self) -> Iterator[Reading]:
        position = self._position
        if self._outage.up is not None:
            yield Reading(PUSH_UP, (), float(self._outage.up))
        if position.t_ms:
            yield Reading(PUSH_TIMESTAMP, (), position.t_ms / 1_000)
        yield Reading(PUSH_SAMPLES, ("accepted",), float(position.accepted))
        yield Reading(PUSH_SAMPLES, ("refused",), float(position.refused))
        yield Reading(PUSH_SAMPLES, ("dropped",), float(position.dropped))

    async def run(self) -> None:
        """For ever. It begins at a moment of its own, so that nodes do not come all at once."""
        begun = await self._begin()
        wait_s = random.uniform(0.0, self._target.every_s)  # noqa: S311  # no secret
        async with Server(self._target, self._thread, timeout_s=self._pace.timeout_s) as server:
            while True:
                await asyncio.sleep(wait_s)
                begun = begun or await self._begin()
                wait_s = await self._send_some(server) if begun else self._back_off(None)
                prove_after_s = self._pace.forgets_s + 1.0
                if wait_s > prove_after_s and self._is_doubtful():
                    await asyncio.sleep(prove_after_s)
                    wait_s = await self._prove(server, wait_s - prove_after_s)

    async def _begin(self) -> bool:
        """Whether the history could be asked. The server may have been killed while the exporter was away."""

        def begin(backlog: PushQueue, _: int) -> PushQueueState:
            backlog.reset_damaged()
            backlog.go_back()
            return backlog.waiting(MOST_COUNTED)

        waiting = await self._of_backlog(begin)
        if waiting:
            self._look(waiting.position)
            self._outage.say_begun(waiting)
        return bool(waiting)

    async def stop(self) -> None:
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
        batch = await self._of_backlog(lambda backlog, settled: backlog.oldest(_EVER_MS if whole else settled, most))
        if batch is None:
            return self._back_off(None)
        self._look(batch.position)
        if not batch.samples:
            return self._target.every_s
        failed = await self._deliver(server, batch)
        if failed and failed.kind == "gone":
            return 0.0
        if failed:
            return self._back_off(failed.wait_s)
        self._failures = 0
        return 0.0 if len(batch.samples) == most else self._target.every_s

    async def _prove(self, server: Server, wait_s: float) -> float:
        """Asks on the connection that is kept whether the server is what it was. How long to wait after that."""
        position, asked_s = self._position, boottime()
        said = await server.post([], PushBatch([], {}, position), anew=False)
        if said.kind == "accepted":
            sure = self._certainty.answered(said, asked_s, position)
            self._position = await self._of_backlog(lambda backlog, _: backlog.prove(sure)) or position
            return wait_s
        await self._fail(said, [])
        return 0.0 if said.kind == "gone" else wait_s

    def _back_off(self, asked_s: float | None) -> float:
        self._failures += 1
        wait_s = min(self._pace.first_wait_s * 2.0 ** min(self._failures - 1, 16), LONGEST_WAIT_S)
        wait_s = max(wait_s * random.uniform(0.5, 1.0), (asked_s or 0.0) * random.uniform(1.0, 1.1))  # noqa: S311  # no secret
        self._not_before_s = boottime() + (asked_s or 0.0)
        return wait_s

    async def _deliver(self, server: Server, batch: PushBatch) -> Answer | None:
        """None once all of it is done with. Where a part is refused its halves are tried, the older one first.

        A server that has taken nothing yet, and refuses all for what is no sample's fault, is set up wrongly: it waits.
        """
        parts = [batch.samples]
        held: list[tuple[Answer, list[QueuedSample]]] = []
        while parts:
            part = parts.pop()
            asked_s = boottime()
            said = await server.post(part, batch, anew=not self._is_doubtful())
            if said.kind in {"gone", "later"}:
                return await self._fail(said, part)
            if said.kind == "accepted":
                if boottime() > self._careful_until_s:
                    self._most = min(self._most * 2, MOST_SAMPLES)
                self._refused = 0
            elif self._is_split(said, part):
                parts += reversed(split_samples(part))
                continue
            else:
                self._refused += 1
            held.append((said, part))
            if not (said.kind == "accepted" or said.sample or self._position.accepted):
                if parts and len(held) < MOST_REFUSED:
                    continue
                return await self._fail(replace(said, kind="later"), part)
            for what, which in held:
                if not await self._done(what, which, batch, asked_s):
                    return Answer("later")
            held.clear()
        return None

    def _send_less(self, most: int) -> None:
        self._most, self._careful_until_s = max(most, 1), boottime() + CAREFUL_S

    def _is_doubtful(self) -> bool:
        """Whether a new connection means that something may have to be sent again."""
        certainty, position = self._certainty, self._position
        return position.sure < position.done and certainty.may_go_back() and certainty.connections_last

    def _is_split(self, said: Answer, part: list[QueuedSample]) -> bool:
        if said.kind == "too_large":
            self._send_less(len(part) // 2)
            return len(part) > 1
        return len(part) > (1 if self._refused < MOST_REFUSED else FEW_SAMPLES)

    async def _done(self, said: Answer, part: list[QueuedSample], batch: PushBatch, asked_s: float) -> bool:
        """Whether that could be written down."""
        outcome: PushOutcome = "accepted" if said.kind == "accepted" else "refused"
        before, moves = self._position, batch.position.moves
        sure = self._certainty.took(said, asked_s, before)
        after = await self._of_backlog(lambda backlog, _: backlog.acknowledge(part, moves, outcome, sure))
        if after is None:
            return False
        if outcome == "refused":
            self._outage.say_refused(said.text, part[0].t_ms)
        if after.done > before.counted:
            self._certainty.came_further()
        self._position = after
        self._outage.end()
        return True

    async def _fail(self, said: Answer, part: list[QueuedSample]) -> Answer:
        """A server that was gone may have lost what it took last: that is sent again."""
        if said.kind == "later":
            self._outage.say(said.text)
        if said.slow and part:
            self._send_less(max(len(part) // 2, FEW_SAMPLES))
        gone = said.kind == "gone" and self._is_doubtful()
        may = said.lost and self._certainty.may_go_back(told=said.answered)
        if gone or (may and self._position.sure < self._position.done):
            self._certainty.went_back(said)
            self._position = await self._of_backlog(lambda backlog, _: backlog.go_back()) or self._position
        return said

    def _look(self, position: PushPosition) -> None:
        self._position = position
        self._outage.look(position)

    async def _of_backlog(self, ask: Callable[[PushQueue, int], Value]) -> Value | None:
        """None where the history cannot be read or written now."""

        def asked(history: History) -> Value:
            assert history.backlog is not None
            return ask(history.backlog, history.settled_ms)

        try:
            return await self._in_history(asked)
        except (sqlite3.Error, OSError) as error:
            self._outage.say(f"the history cannot be used: {error}; see that its disk is well and has room")
            return None

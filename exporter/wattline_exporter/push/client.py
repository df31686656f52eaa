"""Push client that sends the history to one server, oldest samples first."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from wattline.contract.metrics import PUSH_SAMPLES, PUSH_TIMESTAMP, PUSH_UP
from wattline_exporter.push.config import PushTarget
from wattline_exporter.push.http import TIMEOUT_S, PushConnection, PushResponse
from wattline_exporter.push.server_state import (
    FLUSH_S,
    MAX_COUNTED_SAMPLES,
    PushStatusLog,
    ServerPersistence,
)
from wattline_exporter.sensors.readings import Reading, Service, boottime
from wattline_exporter.storage.history import History
from wattline_exporter.storage.push_queue import (
    PushBatch,
    PushOutcome,
    PushPosition,
    PushQueue,
    PushQueueState,
    QueuedSample,
    split_samples,
)

MAX_SAMPLES = 10_000
"""Limit per request: a body of 2 MB before compression."""
MAX_BACKOFF_S = 60.0
FINISH_WITHIN_S = 5.0
MAX_REFUSED_PARTS = 64
"""Number of consecutive refused parts after which parts are no longer split down to one sample."""
SMALL_BATCH_SAMPLES = MAX_SAMPLES // 64
REDUCED_S = 600.0
"""Time for which batches stay small after a server could not handle a larger one."""

_NO_LIMIT_MS = 1 << 62

Value = TypeVar("Value")


class HistoryExecutor(Protocol):
    """Runs a function in the history's thread."""

    def __call__(self, ask: Callable[[History], Value], /) -> Awaitable[Value]: ...


@dataclass(frozen=True, slots=True)
class PushTiming:
    first_backoff_s: float = 1.0
    timeout_s: float = TIMEOUT_S
    flush_s: float = FLUSH_S


_TIMING = PushTiming()


class PushClient(Service):
    """Client of one server.

    It sends each sample until the server accepts or refuses it. One batch is in memory, the queue
    in the history.
    """

    def __init__(
        self,
        target: PushTarget,
        in_history: HistoryExecutor,
        timing: PushTiming = _TIMING,
        *,
        connect: type[PushConnection] = PushConnection,
    ) -> None:
        self._target = target
        self._in_history = in_history
        self._timing = timing
        self._connect = connect
        self._thread = ThreadPoolExecutor(1, "push")
        self._status = PushStatusLog(target.url)
        self._failures = 0
        self._not_before_s = 0.0
        self._refused_parts = 0
        """Number of consecutive refused parts."""
        self._batch_samples = MAX_SAMPLES
        self._reduced_until_s = 0.0
        self._position = PushPosition()
        self._is_known = False
        """True once the position was read: until then the counts of samples are absent, not 0."""
        self._must_rewind = False
        """True after a rewind that could not be stored, until it is."""
        self._persistence = ServerPersistence(target.url, timing.flush_s)

    def readings(self) -> Iterator[Reading]:
        position = self._position
        if self._status.up is not None:
            yield Reading(PUSH_UP, (), float(self._status.up))
        if not self._is_known:
            return
        if position.t_ms:
            yield Reading(PUSH_TIMESTAMP, (), position.t_ms / 1_000)
        yield Reading(PUSH_SAMPLES, ("accepted",), float(position.accepted))
        yield Reading(PUSH_SAMPLES, ("refused",), float(position.refused))
        yield Reading(PUSH_SAMPLES, ("dropped",), float(position.dropped))

    async def run(self) -> None:
        """Send batches until cancelled. A random delay before the first one prevents simultaneous
        pushes of nodes.
        """
        is_started = await self._start()
        wait_s = random.uniform(0.0, self._target.every_s)  # noqa: S311  # not a secret
        async with self._connect(
            self._target, self._thread, timeout_s=self._timing.timeout_s
        ) as server:
            while True:
                await asyncio.sleep(wait_s)
                is_started = is_started or await self._start()
                wait_s = await self._send_batch(server) if is_started else self._back_off(None)
                check_after_s = self._timing.flush_s + 1.0
                if wait_s > check_after_s and self._has_unproven_samples():
                    await asyncio.sleep(check_after_s)
                    wait_s = await self._check_server(server, wait_s - check_after_s)

    async def _start(self) -> bool:
        """Rewind to the persisted position, since the server may have been killed meanwhile.

        Return False if the history cannot be used.
        """

        def start(queue: PushQueue, _: int) -> PushQueueState:
            queue.reset_damaged()
            queue.rewind()
            return queue.state(MAX_COUNTED_SAMPLES)

        state = await self._in_queue(start)
        if state:
            self._set_position(state.position)
            self._status.log_start(state)
        return bool(state)

    async def stop(self) -> None:
        """Send the remaining samples after `run` has ended, unless the server asked for a delay."""
        if boottime() < self._not_before_s:
            return
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(FINISH_WITHIN_S),
                self._connect(self._target, self._thread) as server,
            ):
                while await self._send_batch(server, is_last=True) == 0.0:
                    pass

    async def _send_batch(self, server: PushConnection, *, is_last: bool = False) -> float:
        """Send one batch and return the seconds until the next one.

        With `is_last` the history is complete, so that its latest seconds are sent, too.
        """
        if self._must_rewind and not await self._rewind():
            return self._back_off(None)
        limit = self._batch_samples
        batch = await self._in_queue(
            lambda queue, settled: queue.oldest(_NO_LIMIT_MS if is_last else settled, limit)
        )
        if batch is None:
            return self._back_off(None)
        self._set_position(batch.position)
        if not batch.samples:
            return self._target.every_s
        failure = await self._deliver(server, batch)
        if failure and failure.kind == "disconnected":
            return 0.0
        if failure:
            return self._back_off(failure.retry_after_s)
        self._failures = 0
        return 0.0 if len(batch.samples) == limit else self._target.every_s

    async def _check_server(self, server: PushConnection, wait_s: float) -> float:
        """Send an empty request on the open connection to prove that the server still runs; return
        the next wait.
        """
        position, requested_s = self._position, boottime()
        response = await server.post([], PushBatch([], {}, position), may_connect=False)
        if response.kind == "accepted":
            persisted = self._persistence.record_empty(response, requested_s, position)
            self._position = (
                await self._in_queue(lambda queue, _: queue.mark_durable(persisted)) or position
            )
            return wait_s
        await self._handle_failure(response, [])
        return 0.0 if response.kind == "disconnected" else wait_s

    def _back_off(self, retry_after_s: float | None) -> float:
        self._failures += 1
        wait_s = min(
            self._timing.first_backoff_s * 2.0 ** min(self._failures - 1, 16), MAX_BACKOFF_S
        )
        delay_s = (retry_after_s or 0.0) * random.uniform(1.0, 1.1)  # noqa: S311  # not a secret
        wait_s = max(wait_s * random.uniform(0.5, 1.0), delay_s)  # noqa: S311  # not a secret
        self._not_before_s = boottime() + (retry_after_s or 0.0)
        return wait_s

    async def _deliver(self, server: PushConnection, batch: PushBatch) -> PushResponse | None:
        """Send the batch and return the failure that stopped it; None once all samples are accepted
        or refused.

        A refused part is split in halves, and the older half is sent first. If a server has never
        accepted a sample, and refuses these for a reason other than their timestamps, it is
        misconfigured: they stay in the queue.
        """
        parts = [batch.samples]
        results: list[tuple[PushResponse, list[QueuedSample]]] = []
        while parts:
            part = parts.pop()
            requested_s = boottime()
            response = await server.post(part, batch, may_connect=not self._has_unproven_samples())
            if response.kind in {"disconnected", "retry"}:
                return await self._handle_failure(response, part)
            if response.kind == "accepted":
                if boottime() > self._reduced_until_s:
                    self._batch_samples = min(self._batch_samples * 2, MAX_SAMPLES)
                self._refused_parts = 0
            elif self._must_split(response, part):
                parts += reversed(split_samples(part))
                continue
            else:
                self._refused_parts += 1
            results.append((response, part))
            if not (
                response.kind == "accepted" or response.is_sample_fault or self._position.accepted
            ):
                if parts and len(results) < MAX_REFUSED_PARTS:
                    continue
                return await self._handle_failure(replace(response, kind="retry"), part)
            for result, samples in results:
                if not await self._acknowledge(result, samples, batch, requested_s):
                    return PushResponse("retry")
            results.clear()
        return None

    def _reduce_batch(self, samples: int) -> None:
        self._batch_samples, self._reduced_until_s = max(samples, 1), boottime() + REDUCED_S

    def _has_unproven_samples(self) -> bool:
        """Return whether samples have to be sent again if the connection is lost."""
        persistence, position = self._persistence, self._position
        is_unproven = position.durable < position.done and not self._must_rewind
        return is_unproven and persistence.may_rewind() and persistence.connections_last

    def _must_split(self, response: PushResponse, part: list[QueuedSample]) -> bool:
        if response.kind == "too_large":
            self._reduce_batch(len(part) // 2)
            return len(part) > 1
        return len(part) > (1 if self._refused_parts < MAX_REFUSED_PARTS else SMALL_BATCH_SAMPLES)

    async def _acknowledge(
        self, response: PushResponse, part: list[QueuedSample], batch: PushBatch, requested_s: float
    ) -> bool:
        """Store the position after the part. Return False if the history cannot be written."""
        outcome: PushOutcome = "accepted" if response.kind == "accepted" else "refused"
        before, moves = self._position, batch.position.moves
        persisted = self._persistence.record_accepted(response, requested_s, before)
        after = await self._in_queue(
            lambda queue, _: queue.acknowledge(part, moves, outcome, persisted)
        )
        if after is None:
            return False
        if outcome == "refused":
            self._status.log_refusal(response.text, part[0].t_ms)
        if after.done > before.counted:
            self._persistence.record_progress()
        self._position = after
        self._status.log_recovery()
        return True

    async def _handle_failure(
        self, response: PushResponse, part: list[QueuedSample]
    ) -> PushResponse:
        """Rewind to the persisted position if the server may have been restarted; return the
        response.
        """
        if response.kind == "retry":
            self._status.log_failure(response.text)
        if response.reduce_batch and part:
            self._reduce_batch(max(len(part) // 2, SMALL_BATCH_SAMPLES))
        is_disconnected = response.kind == "disconnected" and self._has_unproven_samples()
        may_rewind = response.may_have_restarted and self._persistence.may_rewind(
            from_server=response.from_server
        )
        if is_disconnected or (may_rewind and self._position.durable < self._position.done):
            self._persistence.record_rewind(response)
            await self._rewind()
        return response

    async def _rewind(self) -> bool:
        """Rewind to the persisted position. Return False if that cannot be stored; no batch is sent
        before it is.
        """
        position = await self._in_queue(lambda queue, _: queue.rewind())
        self._position, self._must_rewind = position or self._position, position is None
        return not self._must_rewind

    def _set_position(self, position: PushPosition) -> None:
        self._position, self._is_known = position, True
        self._status.check_dropped(position)

    async def _in_queue(self, function: Callable[[PushQueue, int], Value]) -> Value | None:
        """Call the function with the queue in the history's thread; None if the history cannot be
        used.
        """

        def call(history: History) -> Value:
            assert history.backlog is not None
            return function(history.backlog, history.settled_ms)

        try:
            return await self._in_history(call)
        except (sqlite3.Error, OSError) as error:
            self._status.log_failure(
                f"cannot use the history: {error}; check its disk and the free space"
            )
            return None

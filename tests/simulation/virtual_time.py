"""Virtual clocks, a queue of events of the world, and an event loop that runs one process in
virtual time.

The simulation replaces the clocks of the module `time` as a whole, since one clock that is not
passed to some class would end the determinism without a sign.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import inspect
import random
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any
from unittest import mock

EPOCH_AT = 1_790_000_000.0
"""Unix time at virtual time 0."""
_JITTER_S = 1e-4
"""Longest delay of a timer beyond its time, which also gives timers of the same time a random
order.
"""
_EXECUTOR_S = 4e-4


class ProcessEndError(BaseException):
    """End of the process that the loop runs: a kill, or the end of the simulation."""


class VirtualTime:
    """CLOCK_BOOTTIME `s`, the other clocks, and the events of the world in order of time.

    Events at the same time run in a random order.
    """

    def __init__(self, rng: random.Random, begin_s: float) -> None:
        self.s = begin_s
        self.wall_offset_s = EPOCH_AT
        self.slept_s = 0.0
        self.rng = rng
        self._events: list[tuple[float, float, int, Callable[[], None]]] = []
        self._number = 0

    @property
    def next_s(self) -> float:
        return self._events[0][0] if self._events else float("inf")

    def at(self, t_s: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (max(t_s, self.s), self.rng.random(), self._number, event))

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        self.at(self.s + delay_s, event)

    def run_next(self) -> None:
        """Advance to the next event and run it."""
        t_s, _, _, event = heapq.heappop(self._events)
        self.s = max(self.s, t_s)
        event()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the clocks of this interpreter."""
        with (
            mock.patch.object(time, "clock_gettime", lambda _clock: self.s),  # noqa: PT008  # it changes
            mock.patch.object(time, "time", lambda: self.s + self.wall_offset_s),  # noqa: PT008  # it changes
            mock.patch.object(time, "monotonic", lambda: self.s - self.slept_s),  # noqa: PT008  # it changes
        ):
            yield


class _Selector:
    """Waits by advancing the virtual time: the events of the world run while the process waits."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        loop, now = self._loop, self._loop.virtual
        until_s = float("inf") if timeout is None else now.s + timeout
        while not loop.has_ready or now.s < loop.stopped_until_s:
            wake_s = max(until_s, loop.stopped_until_s)
            if now.next_s > wake_s:
                now.s = max(now.s, wake_s)
                break
            now.run_next()
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """Event loop of one process. Threads are replaced by work in the loop that takes virtual
    time.
    """

    def __init__(self, virtual: VirtualTime) -> None:
        super().__init__()
        self.virtual = virtual
        self._selector = _Selector(self)
        self._busy_until_s: dict[int, float] = {}
        self.stopped_until_s = 0.0
        """Time until which the process is stopped, as by SIGSTOP."""
        self.executor_delay_s: Callable[[Executor | None], float] = lambda _executor: 0.0
        """Additional time of each call in a thread, as on a slow disk."""
        self.wrap_call: Callable[[Executor | None, Callable[[], Any]], Callable[[], Any]] = (
            lambda _executor, call: call
        )
        self.make_process: Callable[[Any], Any] | None = None
        self.is_dead = False

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)  # type: ignore[attr-defined]  # of BaseEventLoop

    def time(self) -> float:
        return self.virtual.s - self.virtual.slept_s  # CLOCK_MONOTONIC, as the loop of Linux

    def call_at(self, when, callback, *args, context=None):  # type: ignore[override]  # untyped
        if self.is_dead:
            raise ProcessEndError
        return super().call_at(
            when + self.virtual.rng.uniform(0.0, _JITTER_S), callback, *args, context=context
        )

    def call_soon(self, callback, *args, context=None):  # type: ignore[override]  # untyped
        if self.is_dead:
            raise ProcessEndError
        return super().call_soon(callback, *args, context=context)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # untyped

    def _process_events(self, _events) -> None:
        """Do nothing: there are no files."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread wakes the loop."""

    def run_in_executor(self, executor, func, *args):  # type: ignore[override]  # untyped
        """Run the function at a random instant of its virtual duration; one thread runs one
        function at a time.
        """
        if self.is_dead:
            raise ProcessEndError
        future, rng, now_s = self.create_future(), self.virtual.rng, self.time()
        begin_s = max(now_s, self._busy_until_s.get(id(executor), 0.0)) if executor else now_s
        took_s = rng.uniform(0.0, _EXECUTOR_S) + self.executor_delay_s(executor)
        self._busy_until_s[id(executor)] = begin_s + took_s
        call = self.wrap_call(executor, lambda: func(*args))
        outcome: list[tuple[Any, BaseException | None]] = []

        def run() -> None:
            try:
                outcome.append((call(), None))
            except Exception as error:  # noqa: BLE001  # the error is the result
                outcome.append((None, error))

        def answer() -> None:
            result, error = outcome[0]
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def finish() -> None:
            run()
            super(VirtualLoop, self).call_at(begin_s + took_s, answer)

        super().call_at(begin_s + rng.random() * took_s, finish)
        return future

    async def subprocess_exec(self, protocol_factory, *_program, **_options):
        """Start the virtual process that `make_process` returns for a protocol."""
        assert self.make_process
        protocol = protocol_factory()
        transport = self.make_process(protocol)
        return transport, protocol

    def kill(self) -> None:
        """End the process at once: its coroutines get no chance to do anything that lasts."""
        self.is_dead = True
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # else asyncio logs each of them
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", RuntimeWarning
            )  # of coroutines that the cleanup never awaits
            for task in tasks:
                _close(task.get_coro())
        self.close()


def _close(coroutine: Any) -> None:
    """Close a coroutine; its cleanup fails at the first attempt to wait, as the loop is dead."""
    for _ in range(50):
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED:
            return
        with contextlib.suppress(BaseException):
            coroutine.close()

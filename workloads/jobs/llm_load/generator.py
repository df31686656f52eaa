"""Load generator: scheduled requests (open loop), or constant concurrency (closed loop)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from workloads.client.messages import log_message
from workloads.jobs.llm_load.outcome import RequestOutcome
from workloads.jobs.llm_load.prompts import Request

_AFTER_NO_CONNECTION_S = 0.1

SendRequest = Callable[[Request, float | None], Awaitable[RequestOutcome]]
"""Function that sends a request; the second argument is its due time."""


@dataclass(frozen=True, slots=True)
class StopCondition:
    """Limits after which no request is sent; requests in flight are awaited."""

    requests: int | None = None
    duration_s: float = math.inf


class LoadGenerator:
    """Sender of requests, which collects outcomes and passes each to `report`."""

    def __init__(self, ask: SendRequest, report: Callable[[RequestOutcome], None]) -> None:
        self._ask = ask
        self._report = report
        self._ended_s: float | None = None
        self.begun_s = time.monotonic()
        self.answers: list[RequestOutcome] = []
        self.sent = 0
        self.cancelled = 0
        self.failed = 0
        self.generated_tokens = 0

    @property
    def in_flight(self) -> int:
        return self.sent - self.cancelled - len(self.answers)

    @property
    def window_s(self) -> float:
        """Time from the start to the last outcome, or to the cancellation."""
        ended_s = max((answer.ended_s for answer in self.answers), default=self.begun_s)
        return max(ended_s, self._ended_s or ended_s) - self.begun_s

    async def closed(self, requests: Iterator[Request], concurrency: int, until: StopCondition) -> None:
        """Send the next request when one is answered."""
        self.begun_s = time.monotonic()
        end_s = self.begun_s + until.duration_s
        rest = itertools.islice(requests, until.requests)

        async def one_after_the_other() -> None:
            while time.monotonic() < end_s:
                request = next(rest, None)
                if request is None:
                    return
                answer = await self._one(request)
                if answer.failure and answer.failure.kind == "connection":
                    await asyncio.sleep(_AFTER_NO_CONNECTION_S)  # a stopped server would fail thousands per second

        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, until.requests or concurrency)):
                group.create_task(one_after_the_other())

    async def open(self, requests: Iterator[Request], offsets_s: Iterable[float], until: StopCondition) -> None:
        """Send each request when due; its times count from then, even if this process is late."""
        self.begun_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for request, offset_s in zip(itertools.islice(requests, until.requests), offsets_s, strict=False):
                if offset_s >= until.duration_s:
                    break
                due_s = self.begun_s + offset_s
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                group.create_task(self._one(request, due_s))

    async def _one(self, request: Request, due_s: float | None = None) -> RequestOutcome:
        self.sent += 1
        try:
            answer = await self._ask(request, due_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            self._ended_s = time.monotonic()
            raise
        self.add(answer)
        self._report(answer)
        return answer

    def add(self, answer: RequestOutcome) -> None:
        self.answers.append(answer)
        self.failed += answer.failure is not None
        self.generated_tokens += answer.tokens or 0


_ON_TERMINAL_S = 0.5
_ELSE_S = 5.0
_CLEAR_LINE = "\r\x1b[K"


@contextlib.asynccontextmanager
async def show_load_progress(load: LoadGenerator, what: str, every_s: float | None = None) -> AsyncIterator[None]:
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    pause_s = every_s or (_ON_TERMINAL_S if on_terminal else _ELSE_S)
    task = asyncio.create_task(_show(load, what, pause_s, on_terminal=on_terminal))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if on_terminal:
            print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)


async def _show(load: LoadGenerator, what: str, pause_s: float, *, on_terminal: bool) -> None:
    while True:
        await asyncio.sleep(pause_s)
        text = f"{what}: {load_progress_line(load, time.monotonic())}"
        if on_terminal:
            print(f"{_CLEAR_LINE}{text}", end="", file=sys.stderr, flush=True)
        else:
            log_message(text)


def load_progress_line(load: LoadGenerator, now_s: float) -> str:
    elapsed_s = max(now_s - load.begun_s, 1e-9)
    return (
        f"{elapsed_s:.0f} s, {len(load.answers) - load.failed} answered, {load.failed} failed, "
        f"{load.in_flight} in flight, {load.generated_tokens / elapsed_s:.0f} tokens/s"
    )

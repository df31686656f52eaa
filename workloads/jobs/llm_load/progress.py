"""How far a load has come, on stderr: one line again and again on a terminal, else a line every few seconds."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator

from workloads.client.messages import say
from workloads.jobs.llm_load.load import Load

_ON_TERMINAL_S = 0.5
_ELSE_S = 5.0
_CLEAR_LINE = "\r\x1b[K"


@contextlib.asynccontextmanager
async def shown(load: Load, what: str, every_s: float | None = None) -> AsyncIterator[None]:
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


async def _show(load: Load, what: str, pause_s: float, *, on_terminal: bool) -> None:
    while True:
        await asyncio.sleep(pause_s)
        text = f"{what}: {line(load, time.monotonic())}"
        if on_terminal:
            print(f"{_CLEAR_LINE}{text}", end="", file=sys.stderr, flush=True)
        else:
            say(text)


def line(load: Load, now_s: float) -> str:
    elapsed_s = max(now_s - load.begun_s, 1e-9)
    return (
        f"{elapsed_s:.0f} s, {len(load.answers) - load.failed} answered, {load.failed} failed, "
        f"{load.in_flight} in flight, {load.generated_tokens / elapsed_s:.0f} tokens/s"
    )

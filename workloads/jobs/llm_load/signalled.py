"""Work on an event loop that a signal cancels; as `workloads.runner.interruption` does it outside of one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def until_signalled(work: Coroutine[Any, Any, object]) -> int | None:
    """The number of the signal that cancelled the work, None where it ended by itself.

    After one, all of them are ignored: what was measured is still to be reported.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    seen: list[int] = []

    def interrupt(number: int) -> None:
        if not seen:
            task.cancel()
        seen.append(number)

    before = {number: handler for number in _SIGNALS if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        loop.add_signal_handler(number, interrupt, number)
    try:
        await asyncio.wait([task])
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN if seen else handler)
    if not task.cancelled():
        task.result()
    return seen[0] if seen else None

"""A source in a child process of its own: started, spoken to in JSON lines, and replaced when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any

FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 30.0
LEAVE_S = 1.0
"""So long may a child take to end once it shall, or says that it does; then it is killed, and waited for as long."""
_LINE_LIMIT = 4 * 1024 * 1024

log = logging.getLogger(__name__)


def cannot_run(interpreter: str, error: OSError) -> str:
    return (
        f"cannot run {interpreter}: {error.strerror}; install Wattline where this user may execute it, "
        "such as /opt/wattline, and not in another user's home"
    )


class Worker:
    """Keeps one child going. `on_message` gets each line of the child, decoded, in the event loop."""

    def __init__(self, arguments: list[str], on_message: Callable[[dict[str, Any]], None]) -> None:
        self.restarts = 0
        self._command = [sys.executable, "-P", "-m", *arguments]
        self._on_message = on_message
        self._process: asyncio.subprocess.Process | None = None
        self._last_order: dict[str, Any] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    def order(self, **order: Any) -> None:
        """Tells the child; one that starts later hears the last order."""
        self._last_order = order
        if self._process and self._process.stdin and not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def run(self) -> None:
        """Until cancelled. A child that ends is replaced, the sooner the longer it had lived."""
        backoff_s = FIRST_BACKOFF_S
        loop = asyncio.get_running_loop()
        try:
            while True:
                started = loop.time()
                ended = await self._live()
                backoff_s = FIRST_BACKOFF_S if loop.time() - started > 60 else min(2 * backoff_s, LONGEST_BACKOFF_S)
                if ended:
                    log.warning("%s; it is replaced in %.0f s", ended, backoff_s)
                await asyncio.sleep(backoff_s)
                self.restarts += 1
        finally:
            await self.stop()

    async def _live(self) -> str:
        """Starts one and hears it to its end; how that came, and nothing where the child itself has told why."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LINE_LIMIT
            )
        except OSError as error:
            self._on_message({"gone": [cannot_run(self._command[0], error)]})
            return ""
        if self._last_order:
            self.order(**self._last_order)
        assert self._process.stdout
        while line := await _line(self._process.stdout):
            if not line.endswith(b"\n"):  # the child was killed while it wrote
                break
            message = json.loads(line)
            self._on_message(message)
            if "gone" in message:  # its last: a thread of it that hangs in the driver may keep the pipe open for ever
                await self.stop()
                return ""
        await self.stop()
        how = f"wrote more than {_LINE_LIMIT} bytes in one line" if line is None else _how(self._process.returncode)
        return f"worker {self._process.pid} ({self._command[3]}) {how}"

    async def stop(self) -> None:
        """Ends the child. One that hangs in the driver cannot be waited for and is left to the kernel."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        if process.stdin:
            process.stdin.close()
        for sign in (None, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                if sign:
                    process.send_signal(sign)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), LEAVE_S)
                return
        log.warning("worker %d hangs in a driver call and was left behind", process.pid)


async def _line(stdout: asyncio.StreamReader) -> bytes | None:
    """The next; empty at the end, None where it is longer than the limit."""
    try:
        return await stdout.readline()
    except ValueError:
        return None


def _how(code: int | None) -> str:
    if code is None:
        return "does not end"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was ended by signal {-code}"

"""Supervisor of the NVML worker process: starts it, reads its messages and replaces it when it
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Sequence

from wattline.command_line import module_command
from wattline_exporter.sensors.nvml.messages import (
    MAX_BYTES,
    FrameTooLongError,
    InvalidFrameError,
    encode_order,
    receive_items,
)
from wattline_exporter.sensors.readings import DriverGone, SamplingOrder, WorkerItem

FIRST_BACKOFF_S = 0.25
STEADY_S = 5.0
"""Time after which a worker that ends is replaced soon: an unloaded driver is often loaded again at
once.
"""
MAX_BACKOFF_S = 30.0
EXIT_WITHIN_S = 1.0
"""Time in which a worker must exit once its stdin is closed; then it is killed, and waited for as
long again.
"""

log = logging.getLogger(__name__)


def cannot_run(interpreter: str, error: OSError) -> str:
    """Return the message for a Python interpreter that cannot be started."""
    return (
        f"cannot run {interpreter}: {error.strerror}; install Wattline where this user may execute "
        "it, "
        "such as /opt/wattline, and not in another user's home"
    )


class WorkerSupervisor:
    """Keeps one worker process running. `on_items` is called in the event loop with the items of
    each of its frames.
    """

    def __init__(
        self, arguments: list[str], on_items: Callable[[Sequence[WorkerItem]], None]
    ) -> None:
        self.restarts = 0
        self._command = module_command(*arguments)
        self._on_items = on_items
        self._process: asyncio.subprocess.Process | None = None
        self._last_order: SamplingOrder | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    def send(self, order: SamplingOrder) -> None:
        """Send an order to the worker, and to each one that replaces it until the next order."""
        self._last_order = order
        if self._process and self._process.stdin and not self._process.stdin.is_closing():
            self._process.stdin.write(encode_order(order))

    async def run(self) -> None:
        """Run until cancelled. A worker that ends is replaced, sooner if it had run for longer."""
        backoff_s = FIRST_BACKOFF_S
        loop = asyncio.get_running_loop()
        try:
            while True:
                started = loop.time()
                ended = await self._run_one()
                backoff_s = (
                    FIRST_BACKOFF_S
                    if loop.time() - started > STEADY_S
                    else min(2 * backoff_s, MAX_BACKOFF_S)
                )
                if ended:
                    log.warning("%s; it is replaced in %g s", ended, backoff_s)
                await asyncio.sleep(backoff_s)
                self.restarts += 1
        finally:
            await self.stop()

    async def _run_one(self) -> str:
        """Run one worker to its end. Return how it ended, or an empty text where the worker
        reported the reason.
        """
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=MAX_BYTES,
            )
        except OSError as error:
            self._on_items([DriverGone(cannot_run(self._command[0], error))])
            return ""
        if self._last_order:
            self.send(self._last_order)
        assert self._process.stdout
        problem = ""
        try:
            while (items := await receive_items(self._process.stdout)) is not None:
                self._on_items(items)
                if any(isinstance(item, DriverGone) for item in items):
                    await self.stop()  # a thread that hangs in the driver may keep the pipe open
                    return ""
        except (FrameTooLongError, InvalidFrameError) as error:
            problem = str(error)
        await self.stop()
        how = problem or _describe_exit(self._process.returncode)
        return f"worker {self._process.pid} ({self._command[3]}) {how}"

    async def stop(self) -> None:
        """End the worker. One that hangs in the driver cannot be killed and is left behind."""
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
                await asyncio.wait_for(process.wait(), EXIT_WITHIN_S)
                return
        log.warning("worker %d hangs in a driver call and was left behind", process.pid)


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "does not end"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was ended by signal {-code}"

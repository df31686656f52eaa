"""Forwarding of signals from a runner to its job, exactly once.

Ctrl-C, `kill -- -PGID`, a batch system and systemd signal all processes of the job. `kill PID`
signals only the runner, which then forwards the signal. The kernel does not distinguish the two, so
a sentinel process in the same process group reports the signals that it receives: a signal that
reached the sentinel has also reached the job.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import NoReturn, Self

from wattline_workloads.runner.watchdog import ProcessIdentity

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_SENTINEL_REPORTS_WITHIN_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KERNEL_UNWIND_LIMIT_S = 10.0
"""Longest wait for a running GPU kernel, which can take minutes, after a signal."""
SIGNALLED = 128
"""Exit code of a process that signal 0 ended: signal n gives 128 + n, as in a shell."""


class ForwardedSignals:
    """Handlers of the signals in `FORWARDED`. Signals before `attach` are sent to the job when it
    is attached.

    Enter it in the main thread, before other threads are started.
    """

    def __init__(self) -> None:
        self.received: set[int] = set()
        self._early: list[int] = []
        self._job: subprocess.Popen[bytes] | None = None
        # A signal that is ignored here (nohup, a shell's background job) is also ignored in the
        # job.
        self._signals = [
            number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN
        ]
        self._before = {number: signal.getsignal(number) for number in self._signals}
        self._sentinel = 0
        self._reports = -1

    def __enter__(self) -> Self:
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        try:
            self._start_sentinel()
            for number in self._signals:
                signal.signal(number, self._handle)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.kill(self._sentinel, signal.SIGKILL)
        os.waitpid(self._sentinel, 0)
        os.close(self._reports)

    def attach(self, job: subprocess.Popen[bytes]) -> None:
        self._job = job
        for number in self._early:
            job.send_signal(number)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received.add(number)
        if self._job is None:
            self._early.append(number)
        elif not self._reached_sentinel(number):
            self._job.send_signal(number)

    def _reached_sentinel(self, number: int) -> bool:
        give_up_s = time.monotonic() + _SENTINEL_REPORTS_WITHIN_S
        while (left_s := give_up_s - time.monotonic()) > 0:
            readable, _, _ = select.select([self._reports], [], [], left_s)
            if readable and number in (reported := os.read(self._reports, 64)):
                return True
            if readable and not reported:  # the sentinel was killed
                return False
        return False

    def _start_sentinel(self) -> None:
        self._reports, report_to = os.pipe()
        runner = ProcessIdentity.this_process()
        self._sentinel = os.fork()
        if self._sentinel == 0:
            try:
                _run_sentinel(self._signals, report_to, runner)
            finally:
                os._exit(0)
        os.close(report_to)


def _run_sentinel(signals: list[signal.Signals], report_to: int, runner: ProcessIdentity) -> None:
    """Report signals until the runner ends. Python's C handler writes each signal's number to the
    pipe.
    """
    os.set_blocking(report_to, False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(report_to, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    runner.await_end()


class SignalInterrupt(KeyboardInterrupt):
    """Signal received within `unwind_on_signal`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def unwind_on_signal(at_most_s: float | None = None) -> Iterator[None]:
    """Turn a signal into an exception, so that every `with` block is left; then end the process by
    the same signal.

    Without a signal, the previous handlers are restored. With `at_most_s`, a second signal ends the
    process at once, and so does this timeout after the first signal. Without it, nothing interrupts
    the exit from the `with` blocks.
    """

    def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
        for each in _SIGNALS:  # a second exception would interrupt the unwinding
            signal.signal(each, signal.SIG_IGN if at_most_s is None else signal.SIG_DFL)
        if at_most_s is not None:
            deadline = threading.Timer(at_most_s, os._exit, [SIGNALLED + number])
            deadline.daemon = True
            deadline.start()
        raise SignalInterrupt(number)

    before = {
        number: handler
        for number in _SIGNALS
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    except SignalInterrupt as interruption:
        signal.signal(interruption.number, signal.SIG_DFL)
        os.kill(os.getpid(), interruption.number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Signals on their way through a runner to its job: each reaches the job exactly once.

Ctrl-C, `kill -- -PGID`, a batch system and systemd signal all processes of the job themselves; `kill PID` only the
runner, which then passes it on. The kernel does not tell the two apart, so a sentinel does: a process in the same
group that does nothing but report what reaches it. What reached the sentinel reached the job.
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

PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_SENTINEL_REPORTS_WITHIN_S = 0.1


class PassedSignals:
    """From `with` on no signal of `PASSED` ends this process; those that come before `attach` are kept for the job.

    To be entered in the main thread, before any other thread is started.
    """

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self._early: list[int] = []
        self._job: subprocess.Popen[bytes] | None = None
        # One that is ignored here (nohup, a shell's background job) is ignored in the job, too.
        self._signals = [number for number in PASSED if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.getsignal(number) for number in self._signals}
        self._sentinel = 0
        self._reports = self._lifeline = -1

    def __enter__(self) -> Self:
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        try:
            self._start_sentinel()
            for number in self._signals:
                signal.signal(number, self._arrived)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._lifeline)
        os.waitpid(self._sentinel, 0)
        os.close(self._reports)

    def attach(self, job: subprocess.Popen[bytes]) -> None:
        self._job = job
        for number in self._early:
            job.send_signal(number)

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        self.seen.add(number)
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
            if readable and not reported:  # somebody has killed it
                return False
        return False

    def _start_sentinel(self) -> None:
        self._reports, report_to = os.pipe()
        watched, self._lifeline = os.pipe()
        self._sentinel = os.fork()
        if self._sentinel == 0:
            try:
                os.close(self._lifeline)
                _stand_sentinel(self._signals, report_to, watched)
            finally:
                os._exit(0)
        os.close(report_to)
        os.close(watched)


def _stand_sentinel(signals: list[signal.Signals], report_to: int, lifeline: int) -> None:
    """Until the runner ends, in whatever way: Python's own C handler writes each signal's number to the pipe."""
    os.set_blocking(report_to, False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(report_to, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    with contextlib.suppress(OSError):
        os.read(lifeline, 1)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OF_A_KERNEL_S = 10.0
"""A kernel that is under way may take minutes: whoever asked for the end does not wait for it."""


_SIGNALLED = 128


class Interruption(KeyboardInterrupt):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def unwound_when_signalled(at_most_s: float | None = None) -> Iterator[None]:
    """Within, a signal is an exception, so that every `with` is left; then the process ends by the same signal.

    Where none came, signals do afterwards what they did before. With `at_most_s` a second signal ends the process at
    once, and so does the first where the unwinding takes longer; without, nothing cuts the unwinding short.
    """

    def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
        for each in _SIGNALS:  # an exception of a second one would break the unwinding
            signal.signal(each, signal.SIG_IGN if at_most_s is None else signal.SIG_DFL)
        if at_most_s is not None:
            deadline = threading.Timer(at_most_s, os._exit, [_SIGNALLED + number])
            deadline.daemon = True
            deadline.start()
        raise Interruption(number)

    before = {number: handler for number in _SIGNALS if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    except Interruption as interruption:
        signal.signal(interruption.number, signal.SIG_DFL)
        os.kill(os.getpid(), interruption.number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""A job that unwinds when it is signalled, and still ends by that signal."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

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

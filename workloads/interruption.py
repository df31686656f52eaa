"""A job that unwinds when it is signalled, and still ends by that signal."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption(KeyboardInterrupt):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def unwound_when_signalled() -> Iterator[None]:
    """Within, a signal is an exception, so that every `with` is left; then the process ends by the same signal."""

    def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
        for each in _SIGNALS:  # a second one must not break the unwinding
            signal.signal(each, signal.SIG_IGN)
        raise Interruption(number)

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    except Interruption as interruption:
        signal.signal(interruption.number, signal.SIG_DFL)
        os.kill(os.getpid(), interruption.number)

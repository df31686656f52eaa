"""Ctrl-C before there is anything to clean up: an end without a word."""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130


def end_quietly_when_interrupted() -> None:
    """At once, wherever it is: an exception would show as a traceback while modules are imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else who started it has said otherwise
        signal.signal(signal.SIGINT, _end)


def clean_up_when_interrupted() -> None:
    """By KeyboardInterrupt, as Python does by itself."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    os._exit(INTERRUPTED)

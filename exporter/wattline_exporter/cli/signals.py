"""Handling of SIGINT before the daemon runs: exit code 130 without a traceback."""

from __future__ import annotations

import os
import signal

SIGINT_EXIT_CODE = 130


def exit_on_sigint() -> None:
    """Exit at once on SIGINT, without the traceback of an exception during imports."""
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # else it was changed by the parent
        signal.signal(signal.SIGINT, _end)


def raise_on_sigint() -> None:
    """Restore Python's default, KeyboardInterrupt, so that resources are released."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    os._exit(SIGINT_EXIT_CODE)

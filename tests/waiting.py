"""To wait for what comes to pass, and no longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def eventually(
    found: Callable[[], Value],
    what: str = "what was waited for",
    log: Callable[[], str] = str,
    within_s: float = 60.0,
) -> Value:
    """What `found` gives once that is true. A test that waits in vain fails with `what` and the log."""
    give_up_s = time.monotonic() + within_s
    while not (value := found()):
        assert time.monotonic() < give_up_s, f"not within {within_s:g} s: {what}\n{log()}"
        time.sleep(0.02)
    return value

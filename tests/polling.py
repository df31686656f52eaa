"""Polling until a condition holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def eventually(
    found: Callable[[], Value],
    what: str = "the condition",
    log: Callable[[], str] = str,
    within_s: float = 60.0,
) -> Value:
    """Return the result of `found` once it is true; fail with `what` and the log after the timeout."""
    give_up_s = time.monotonic() + within_s
    while not (value := found()):
        assert time.monotonic() < give_up_s, f"not within {within_s:g} s: {what}\n{log()}"
        time.sleep(0.02)
    return value

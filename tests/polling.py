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
    """Return the result of `found` once it is true; fail with `what` and the log after the timeout.

    An expensive `found` is called a quarter of the time, because the tests share the cores.
    """
    give_up_s = time.monotonic() + within_s
    called_s = time.monotonic()
    while not (value := found()):
        now_s = time.monotonic()
        assert now_s < give_up_s, f"not within {within_s:g} s: {what}\n{log()}"
        time.sleep(min(max(0.02, 3 * (now_s - called_s)), 1.0))
        called_s = time.monotonic()
    return value

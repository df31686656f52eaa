"""Protocol of a meter, as a Python function; needs the standard library only.

The command measures, prints the line `ready`, waits until its stdin ends, and prints one line of
JSON.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


class Notes(logging.Handler):
    """Messages that a library logs at WARNING or above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def examine(
    begin: Callable[[], object], end: Callable[[], Mapping[Any, float]], notes: Notes | None = None
) -> None:
    """Measure from `begin` to `end`, which returns joules by the index of the GPU, or their `sum`.

    The window lasts from the return of `begin` to the call of `end`.
    """
    begin()
    begin_s = boottime()
    if notes:
        notes.texts.clear()
    print("ready", flush=True)
    sys.stdin.read()
    end_s = boottime()
    joules = end()
    answer = {"energy_joules": {str(gpu): float(each) for gpu, each in joules.items()}}
    print(
        json.dumps(
            {**answer, "begin_s": begin_s, "end_s": end_s, "notes": notes.texts if notes else []}
        ),
        flush=True,
    )

"""What became of the clocks since the last look (pure but for what it remembers)."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from exporter.model import boottime

STEP_S = 1.0
"""Less is drift, which the clock's keeper corrects slowly."""


class Moment(NamedTuple):
    """One moment on three clocks: CLOCK_BOOTTIME, Unix time, and CLOCK_MONOTONIC, which the machine's sleep stops."""

    s: float
    at: float
    awake_s: float


def now() -> Moment:
    return Moment(boottime(), time.time(), time.monotonic())


class Wall:
    """`looked_s` is when it last looked (CLOCK_BOOTTIME)."""

    def __init__(self) -> None:
        self.looked_s = -math.inf
        self._last: Moment | None = None

    def look(self, moment: Moment) -> tuple[float, float]:
        """By how much the wall clock was set, and how long the machine slept; 0 for each that did not happen."""
        last, self._last, self.looked_s = self._last, moment, moment.s
        if last is None:
            return 0.0, 0.0
        elapsed_s = moment.s - last.s
        stepped_s, slept_s = moment.at - last.at - elapsed_s, elapsed_s - (moment.awake_s - last.awake_s)
        return stepped_s if abs(stepped_s) > STEP_S else 0.0, slept_s if slept_s > STEP_S else 0.0

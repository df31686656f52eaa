"""When the requests of an open loop are sent: seconds after its begin, whatever the answers take."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Literal

Arrivals = Literal["poisson", "fixed"]


def offsets_s(kind: Arrivals, rate_per_s: float, seed: int) -> Iterator[float]:
    """Without end, rising."""
    if kind == "fixed":
        return (index / rate_per_s for index in itertools.count())
    draw = random.Random(f"arrivals {seed}")  # noqa: S311  # a load, not a secret
    return itertools.accumulate(draw.expovariate(rate_per_s) for _ in itertools.count())

"""Joules between two looks at an energy counter, which may wrap, begin anew or read wrongly (pure)."""

from __future__ import annotations

MOST_W = 4_000.0
"""More than any device draws, where its own limit is not known."""
_SLACK_S = 1.0
"""A counter may be behind by the longest time between two of its updates."""


def counter_step(
    before_j: float, now_j: float, range_j: float | None, elapsed_s: float, most_w: float = MOST_W
) -> float | None:
    """Joules between two looks at a counter; None for a step that no device could have made in the time.

    One that has a range wraps there. One that has none fell because its driver was loaded anew: it counts from 0, so
    what it shows is energy since then.
    """
    step_j = now_j - before_j
    if step_j < 0:
        step_j = now_j if range_j is None else step_j + range_j
    return step_j if is_plausible(step_j, elapsed_s, most_w) else None


def is_plausible(joules: float, elapsed_s: float, most_w: float = MOST_W) -> bool:
    return 0 <= joules <= most_w * (elapsed_s + _SLACK_S)

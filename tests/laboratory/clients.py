"""Starts and lengths of runs, as clients choose them."""

from __future__ import annotations

import random

from tests.exporter.meter.replay import FAST_S, START_S

EDGES = ("at random", "on whole seconds", "with the polls", "with the updates")
"""Kinds of edges; all but the first are whole steps of a second, of a poll, or of an update."""


def draw_edges(
    rng: random.Random, kind: str, seconds: float, update_s: float, phase_s: float
) -> tuple[float, float]:
    """Return the start in seconds of the simulated clock, and the length of a run.

    The length is the whole number of steps next to `seconds`, at least one. `phase_s` is the time
    of an update of the sensor.
    """
    begin_s = START_S + rng.uniform(0, 10)
    steps_s = {"on whole seconds": 1.0, "with the polls": FAST_S, "with the updates": update_s}
    step_s = steps_s.get(kind)
    if step_s is None:
        return begin_s, seconds
    offset_s = phase_s if kind == "with the updates" else 0.0
    first = round((begin_s - offset_s) / step_s)
    return first * step_s + offset_s, max(1, round(seconds / step_s)) * step_s

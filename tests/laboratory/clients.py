"""Runs as clients begin them: their starts, their lengths and their records."""

from __future__ import annotations

import random
from typing import Any

from tests.exporter.meter.replay import FAST_S, START_S
from wattline_exporter.runs.run_record import Cut, RunRecord
from wattline_exporter.sensors.readings import Device

LATEST_S = 10.0
"""Time after START_S until which runs start."""
STARTED_AT = 1.79e9
"""Unix time at which each run starts."""

EDGES = ("at random", "on whole seconds", "with the polls", "with the updates")
"""Kinds of edges; all but the first are whole steps of a second, of a poll, or of an update."""


def draw_edges(
    rng: random.Random, kind: str, seconds: float, update_s: float, phase_s: float
) -> tuple[float, float]:
    """Return the start in seconds of the simulated clock, and the length of a run.

    The length is the whole number of steps next to `seconds`, at least one. `phase_s` is the time
    of an update of the sensor.
    """
    begin_s = START_S + rng.uniform(0, LATEST_S)
    steps_s = {"on whole seconds": 1.0, "with the polls": FAST_S, "with the updates": update_s}
    step_s = steps_s.get(kind)
    if step_s is None:
        return begin_s, seconds
    offset_s = phase_s if kind == "with the updates" else 0.0
    first = round((begin_s - offset_s) / step_s)
    return first * step_s + offset_s, max(1, round(seconds / step_s)) * step_s


def open_run(
    devices: list[Device], begin_s: float, run_id: str = "run", **fields: Any
) -> RunRecord:
    """Return the record of a run whose lease does not end, with further fields."""
    return RunRecord(
        run_id=run_id,
        workload="test",
        labels={},
        request="",
        devices=[*devices],
        gpus=fields.pop("gpus", {}),
        discovers=False,
        begin_s=begin_s,
        started_at=STARTED_AT,
        lease_s=1e9,
        lease_until_s=1e12,
        alive_s=1e12,
        cuts=[Cut(begin_s, None)],
        **fields,
    )

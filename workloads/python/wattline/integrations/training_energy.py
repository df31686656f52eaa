"""Energy of a training so far, as values for its log: joules, and joules per step since the previous value."""

from __future__ import annotations

import time
from collections.abc import Callable

from wattline.runs.run import Run

ENERGY, ENERGY_PER_STEP = "energy_joules", "energy_joules_per_step"
_SHORTEST_S = 1.0
"""Time between two reads; sensors update the energy up to ten times a second."""


class TrainingEnergy:
    """Reads the energy of a run, at most once a second, and at the end."""

    def __init__(self, run: Run, step: int, now: Callable[[], float] = time.monotonic) -> None:
        self._run, self._now = run, now
        self._read_s, self._joules, self._step = -_SHORTEST_S, 0.0, step
        self._values: dict[str, float] = {}

    def values(self, step: int, *, is_last: bool = False) -> dict[str, float]:
        """Return the values at a step, those of the last read if it is too recent; empty without a measurement.

        The last values of a training are always read.
        """
        now_s = self._now()
        is_recent = now_s - self._read_s < _SHORTEST_S or (self._values and step <= self._step)
        if is_recent and not is_last:
            return dict(self._values)
        energy = self._run.energy()
        if energy is None:
            return dict(self._values)
        self._values[ENERGY] = energy.joules
        if step > self._step:
            self._values[ENERGY_PER_STEP] = (energy.joules - self._joules) / (step - self._step)
        self._read_s, self._joules, self._step = now_s, energy.joules, step
        return dict(self._values)

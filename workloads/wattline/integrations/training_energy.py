"""Energy of a training so far, as values for its log: joules, watts, g CO2eq, and joules per
step.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from wattline.runs.run import ActiveRun

ENERGY = "energy_joules"
ENERGY_PER_STEP = "energy_joules_per_step"
POWER = "power_watts"
EMISSIONS = "emissions_grams"
_SHORTEST_S = 1.0
"""Time between two reads; sensors update the energy up to ten times a second."""


class TrainingEnergy:
    """Reads the energy of a run, at most once a second, and at the end.

    Power and energy per step are means since the previous read.
    """

    def __init__(
        self, run: ActiveRun, step: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._run = run
        self._now = now
        self._read_s = -_SHORTEST_S
        self._step = step
        self._joules = 0.0
        self._duration_s = 0.0
        self._values: dict[str, float] = {}

    def values(self, step: int) -> dict[str, float]:
        """Return the values at a step, those of the last read if it is too recent; empty without a
        measurement.
        """
        now_s = self._now()
        if now_s - self._read_s < _SHORTEST_S or (self._values and step <= self._step):
            return dict(self._values)
        energy = self._run.energy()
        if energy is None:
            return dict(self._values)
        self._read_s = now_s
        self._take(step, energy.joules, energy.duration_seconds, energy.emissions_grams)
        return dict(self._values)

    def final_values(self, step: int) -> dict[str, float]:
        """Return the values of the ended run, with its mean power and half-width; empty without a
        measurement.
        """
        final = self._run.metrics()
        if ENERGY in final:
            self._take(step, final[ENERGY], final.get("duration_seconds"), final.get(EMISSIONS))
        return self._values | final

    def _take(
        self, step: int, joules: float, duration_s: float | None, grams: float | None
    ) -> None:
        self._values[ENERGY] = joules
        if step > self._step:
            self._values[ENERGY_PER_STEP] = (joules - self._joules) / (step - self._step)
        if duration_s is not None and duration_s > self._duration_s:
            self._values[POWER] = max(0.0, joules - self._joules) / (duration_s - self._duration_s)
            self._duration_s = duration_s
        if grams is not None:
            self._values[EMISSIONS] = grams
        self._joules = joules
        self._step = step

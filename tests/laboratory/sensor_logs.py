"""Logs of power sensors that sample a part of each update interval."""

from __future__ import annotations

import numpy as np

from tests.laboratory.loads import PowerLoad
from wattline_analyzer.core.samples import Samples, clean

UPDATE_S = 0.1003
WINDOW_S = 0.025
LOG_S = 0.013
"""Sampling interval of `nvidia-smi -lms 10`."""


def sensor_log(load: PowerLoad, duration_s, rng, window_s=WINDOW_S, update_s=UPDATE_S) -> Samples:
    """Log with the sensor's latest update, with noise, about every 13 ms."""
    updated = np.arange(-2, int(duration_s / update_s) + 3) * update_s + rng.random() * update_s
    reading_w = (load.energy_j(updated) - load.energy_j(updated - window_s)) / window_s
    reading_w = np.round(reading_w + rng.normal(0, 0.4, len(reading_w)), 2)
    times = np.cumsum(LOG_S * (1 + 0.15 * rng.random(int(duration_s / LOG_S) + 5))) - 0.02
    times = np.round(times[times <= duration_s + 0.05], 3)
    return clean(times, reading_w[np.searchsorted(updated, times, side="right") - 1])


def integral_w(power: Samples, duration_s):
    during = power.between(0, duration_s)
    return float(np.trapezoid(during.value, during.t) / (during.t[-1] - during.t[0]))

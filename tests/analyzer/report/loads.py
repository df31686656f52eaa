"""Loads of known energy, and power sensors that sample a part of each update interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline_analyzer.core.samples import Samples, clean

UPDATE_S = 0.1003
WINDOW_S = 0.025
LOG_S = 0.013
"""Sampling interval of `nvidia-smi -lms 10`."""


@dataclass(frozen=True)
class PowerLoad:
    """Piecewise constant load: `levels_w[k]` from `edges_s[k]` to the next edge."""

    edges_s: np.ndarray
    levels_w: np.ndarray

    def energy_j(self, t):
        sums = np.concatenate([[0], np.cumsum(np.diff(self.edges_s) * self.levels_w)])
        return np.interp(t, self.edges_s, sums)

    def mean_w(self, duration_s):
        return float(self.energy_j(duration_s) - self.energy_j(0)) / duration_s


def square_wave(period_s, duty, levels_w, duration_s, phase):
    """Square wave between `levels_w` (low, high); `duty` is the share of each period at the high
    level.
    """
    low_w, high_w = levels_w
    starts = (np.arange(-2, int(duration_s / period_s) + 4) + phase) * period_s
    edges = np.append(
        np.stack([starts, starts + duty * period_s], 1).ravel(), starts[-1] + period_s
    )
    return PowerLoad(edges, np.tile([high_w, low_w], len(starts)))


def constant_load(watts, duration_s):
    return PowerLoad(np.array([-1.0, duration_s + 1]), np.array([watts]))


def ramp(first_w, last_w, duration_s):
    return PowerLoad(np.linspace(-1, duration_s + 1, 2_001), np.linspace(first_w, last_w, 2_000))


def telegraph(rng, dwell_s, low_w, high_w, duration_s):
    """Load that jumps between two levels at random times."""
    dwells = rng.exponential(dwell_s, int(4 * duration_s / dwell_s) + 20)
    edges = np.concatenate([[-1], np.cumsum(dwells) - 0.9])
    return PowerLoad(edges, np.where(np.arange(len(dwells)) % 2, low_w, high_w))


def sensor_log(load, duration_s, rng, window_s=WINDOW_S, update_s=UPDATE_S):
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

"""Loads of known energy: for simulated GPUs, and as arrays of steps.

Functions that draw a load take a random generator of the standard library or of numpy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from wattline_exporter.simulation import Constant, Load, Ramp, Recording, Square, Trace

LOW_W, HIGH_W = 72.0, 640.0
BURSTS = Square(LOW_W, HIGH_W, 1.73)
JOB_PERIODS_S = (0.31, 1.73, 7.0, 31.0)
TAIL_S = 10.0
"""Time for which a load with an end continues after the run."""


class Uniform(Protocol):
    """Random generator, of the standard library or of numpy."""

    def uniform(self, low: float, high: float, /) -> float: ...


def log_uniform(rng: Uniform, low: float, high: float) -> float:
    """Return a number whose logarithm is uniform between those of `low` and `high`."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


# -- loads of simulated GPUs


def job_load(rng: random.Random, periods_s: tuple[float, ...] = JOB_PERIODS_S) -> Load:
    """Return a load of a job: constant, or bursts of one of these periods."""
    if rng.random() < 0.5:
        return Constant(rng.uniform(90.0, 690.0))
    period_s = rng.choice(periods_s)
    return Square(
        LOW_W,
        rng.uniform(300.0, 690.0),
        period_s,
        rng.uniform(0.2, 0.8),
        rng.uniform(0.0, period_s),
    )


def generated_load(rng: random.Random, seconds: float) -> Load:
    """Return a constant, rising, periodic or stepwise load for a run of this length."""
    low_w = rng.uniform(20, 300)
    high_w = rng.uniform(low_w + 10, 690)
    kind = rng.random()
    if kind < 0.1:
        return Constant(high_w)
    if kind < 0.2:
        return Ramp(low_w, high_w, seconds + TAIL_S)
    if kind < 0.7:
        return Square(low_w, high_w, log_uniform(rng, 0.01, 60), rng.uniform(0.05, 0.95))
    return steps(rng, low_w, high_w, log_uniform(rng, max(0.01, seconds / 2_000), 20), seconds)


def steps(rng: random.Random, low_w: float, high_w: float, dwell_s: float, seconds: float) -> Trace:
    """Return a load that changes to any power between two at random times, `dwell_s` apart."""
    times_s = [0.0]
    watts = [low_w]
    while times_s[-1] < seconds + TAIL_S:
        times_s.append(times_s[-1] + max(1e-3, rng.expovariate(1 / dwell_s)))
        watts.append(rng.uniform(low_w, high_w))
    return Trace(Recording(tuple(times_s), tuple(watts)))


def wave(rng: random.Random, period_s: float) -> Square:
    """Return bursts of 20 to 70 % of a period, with a random phase."""
    return Square(LOW_W, HIGH_W, period_s, rng.uniform(0.2, 0.7), rng.uniform(0.0, period_s))


def _locked(rng: random.Random, update_s: float) -> Square:
    """Return bursts that keep their phase to the sensor's updates."""
    return wave(rng, update_s * rng.choice([1 / 3, 1 / 2, 1.0, 2.0]))


def _beating(rng: random.Random, update_s: float) -> Square:
    """Return bursts whose phase to the sensor's updates drifts by 0.1 to 10 % in each of them."""
    drift = rng.choice([-1.0, 1.0]) * log_uniform(rng, 0.001, 0.1)
    return wave(rng, update_s * rng.choice([1 / 3, 1 / 2, 1.0]) * (1.0 + drift))


def paused_bursts(
    rng: random.Random, period_s: float, duty: float, rest_s: float, seconds: float
) -> Trace:
    """Return bursts of a share `duty` of each period, for `rest_s` after each pause as long."""
    times_s = [0.0]
    watts = [LOW_W]
    begin_s = rng.uniform(0.01, rest_s)
    while begin_s < seconds + TAIL_S:
        for number in range(math.ceil(rest_s / period_s)):
            start_s = begin_s + number * period_s
            times_s += [start_s, start_s + duty * period_s]
            watts += [HIGH_W, LOW_W]
        begin_s = times_s[-1] + (1 - duty) * period_s + rest_s
    return Trace(Recording(tuple(times_s), tuple(watts)))


def _paused(rng: random.Random, update_s: float, seconds: float) -> Trace:
    """Return bursts that repeat within 2 % of an update or of a whole part of it, with pauses."""
    period_s = update_s * rng.choice([1 / 4, 1 / 3, 1 / 2, 1.0]) * rng.uniform(0.98, 1.02)
    return paused_bursts(rng, period_s, rng.uniform(0.2, 0.7), rng.uniform(0.3, 0.7), seconds)


CLASSES: Mapping[str, Callable[[random.Random, float, float], Load]] = {
    "flat": lambda rng, _update_s, _seconds: Constant(rng.uniform(LOW_W, HIGH_W)),
    "ramp": lambda _rng, _update_s, seconds: Ramp(LOW_W, HIGH_W, seconds + TAIL_S),
    "steps, 0.5 to 20 updates apart": lambda rng, update_s, seconds: steps(
        rng, LOW_W, HIGH_W, update_s * log_uniform(rng, 0.5, 20.0), seconds
    ),
    "wave of 0.1 to 0.9 updates": lambda rng, update_s, _seconds: wave(
        rng, update_s * log_uniform(rng, 0.1, 0.9)
    ),
    "wave of 1.1 to 6 updates": lambda rng, update_s, _seconds: wave(
        rng, update_s * log_uniform(rng, 1.1, 6.0)
    ),
    "wave of 6 to 200 updates": lambda rng, update_s, _seconds: wave(
        rng, update_s * log_uniform(rng, 6.0, 200.0)
    ),
    "wave locked to the updates": lambda rng, update_s, _seconds: _locked(rng, update_s),
    "wave that beats with the updates": lambda rng, update_s, _seconds: _beating(rng, update_s),
    "bursts in step with the updates, with pauses": _paused,
}
"""Draws of a load by the update period of the sensor, and by the length of the run, in seconds."""


# -- loads as arrays


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


def square_wave(period_s, duty, levels_w, duration_s, phase) -> PowerLoad:
    """Square wave between `levels_w` (low, high); `duty` is the share of each period at the high
    level.
    """
    low_w, high_w = levels_w
    starts = (np.arange(-2, int(duration_s / period_s) + 4) + phase) * period_s
    edges = np.append(
        np.stack([starts, starts + duty * period_s], 1).ravel(), starts[-1] + period_s
    )
    return PowerLoad(edges, np.tile([high_w, low_w], len(starts)))


def constant_load(watts, duration_s) -> PowerLoad:
    return PowerLoad(np.array([-1.0, duration_s + 1]), np.array([watts]))


def ramp(first_w, last_w, duration_s) -> PowerLoad:
    return PowerLoad(np.linspace(-1, duration_s + 1, 2_001), np.linspace(first_w, last_w, 2_000))


def telegraph(rng, dwell_s, low_w, high_w, duration_s) -> PowerLoad:
    """Load that jumps between two levels at random times."""
    dwells = rng.exponential(dwell_s, int(4 * duration_s / dwell_s) + 20)
    edges = np.concatenate([[-1], np.cumsum(dwells) - 0.9])
    return PowerLoad(edges, np.where(np.arange(len(dwells)) % 2, low_w, high_w))


def any_wave(
    rng: np.random.Generator, levels: tuple[float, float], seconds: float, shortest_s: float
) -> PowerLoad:
    """Return a square wave with a period from `shortest_s` to a minute."""
    period_s = log_uniform(rng, shortest_s, 60)
    return square_wave(period_s, rng.uniform(0.05, 0.95), levels, seconds, rng.random())


def wave_or_telegraph(
    rng: np.random.Generator, levels: tuple[float, float], seconds: float, shortest_s: float
) -> PowerLoad:
    """Return a load of two levels that change each `shortest_s` to a minute."""
    if rng.random() < 0.5:
        return any_wave(rng, levels, seconds, shortest_s)
    return telegraph(rng, log_uniform(rng, shortest_s, 20), *levels, seconds)

"""Energy from raw samples: counter with limits, integral of power, idle power.

Unlike PromQL's `increase`, nothing is resampled. A counter is interpolated between two samples, and
its limits follow from the possible power in that time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wattline.counter_arrays import counter_steps
from wattline.counters import CounterLimits
from wattline.figures import Figure, sum_of_independent
from wattline_analyzer.core.samples import (
    GAP_FACTOR,
    FloatArray,
    Samples,
    distinct,
    median_spacing_s,
    sample_median,
    sample_quantiles,
)

RUN_AGE_S = 0.4
"""Maximum age of a scraped counter during a run: sensor update (0.1 s), poll and shared rendering.
"""
IDLE_AGE_S = 1.4
"""Maximum age without an active run, when the exporter polls once a second."""
AHEAD_S = 0.05
"""Maximum time by which a value is newer than its scrape's timestamp, the time of the request."""
IDLE_SECONDS = 10.0
SENSOR_S = 0.25
"""Longest time without samples that is not a gap in a log: a sensor updates at most twice in it."""
_SETTLE_S = 3.0
_MOST_CORRELATED = 0.95
_FEWEST_INDEPENDENT = 3.0


@dataclass(frozen=True, slots=True)
class PowerRange:
    """Limits of the mean power over a scrape interval."""

    low_w: float
    high_w: float


ANY_POWER = PowerRange(0.0, 1e9)
"""Range of an unknown power: only the samples limit the energy then."""


@dataclass(frozen=True, slots=True, eq=False)
class MonotonicCounter:
    """Counter that never falls, by the samples that count; arrays (K,).

    `lost_j` is the maximum energy lost in the restarts up to each sample. `restarted` says at which
    samples the counter has restarted since the one before.
    """

    t: FloatArray
    energy_j: FloatArray
    lost_j: FloatArray
    restarted: npt.NDArray[np.bool_]

    @property
    def samples(self) -> Samples:
        return Samples(self.t, self.energy_j)


@dataclass(frozen=True, slots=True)
class Integral:
    """Energy over the `covered_s` seconds of a window that are outside gaps."""

    energy_j: float
    covered_s: float


def power_range(power: Samples, limit_w: float | None) -> PowerRange | None:
    """Return the range from 0 to 1.1 times the power limit, or 1.5 times the highest sample without
    a limit.

    The lowest sample is no lower limit, since scrapes can miss every pause. None if neither power
    nor limit is known.
    """
    highest_w = float(power.value.max()) if len(power) else 0.0
    if limit_w is not None:
        return PowerRange(0.0, max(1.1 * limit_w, highest_w))
    return PowerRange(0.0, 1.5 * highest_w) if len(power) else None


def unwrap(counter: Samples, power: PowerRange, age_s: float = IDLE_AGE_S) -> MonotonicCounter:
    """Return the counter with restarts removed and without late samples.

    `age_s` is the maximum age of a value. At a restart the energy between the sample before and
    the restart is missing.
    """
    steps = counter_steps(
        counter.t, counter.value, CounterLimits(most_rate=power.high_w, age_s=age_s)
    )
    t = counter.t[steps.kept]
    spans_s = np.diff(t, prepend=t[:1])
    missing_j = np.maximum(power.high_w * spans_s - steps.increase, 0.0)
    lost_j = np.where(steps.restarted, missing_j, 0.0)
    rises_j = np.concatenate([counter.value[:1], steps.increase[1:]])
    return MonotonicCounter(t, rises_j.cumsum(), lost_j.cumsum(), steps.restarted)


def restart_times(
    counter: Samples, power: PowerRange, read_age_s: float | None = None
) -> list[float]:
    """Return the times of the first samples after restarts, as `counter_energy` finds them."""
    oldest_s = IDLE_AGE_S if read_age_s is None else read_age_s
    line = unwrap(counter, _widened(counter, power, oldest_s), oldest_s)
    times_s: list[float] = line.t[line.restarted].tolist()
    return times_s


def counter_energy(
    counter: Samples,
    start_s: float,
    end_s: float,
    power: PowerRange,
    read_age_s: float | None = None,
) -> Figure | None:
    """Return the energy in [start_s, end_s], interpolated at the edges, with limits; None without
    samples.

    A sample means that the energy was E_k at an instant of [t_k − age, t_k + 0.05 s]. From there it
    rises by at least low_w and at most high_w, so that each sample limits the energy at each
    instant. The closest limits are used. `read_age_s` is the maximum age of the values of another
    exporter.
    """
    if not len(counter):
        return None
    oldest_s = IDLE_AGE_S if read_age_s is None else read_age_s
    line = unwrap(counter, _widened(counter, power, oldest_s), oldest_s)
    wide = _widened(line.samples, power, oldest_s)
    during_s = RUN_AGE_S if read_age_s is None else read_age_s
    age_s = np.where((line.t > start_s + RUN_AGE_S) & (line.t <= end_s), during_s, oldest_s)
    first, final = (_at(line, edge_s, age_s, wide) for edge_s in (start_s, end_s))
    first_low, first_high = first.limits
    final_low, final_high = final.limits
    low = max(final_low - first_high, 0.0)
    high = max(final_high - first_low, 0.0)
    return Figure(min(max(final.number - first.number, low), high), skewed=(low, high))


def is_plausible_counter(counter: Samples, power: PowerRange) -> bool:
    """Return False for a counter that rises at more than twice the possible power.

    The samples of two times are then mixed, because the wall clock was set back.
    """
    rises_j = np.diff(counter.value)
    spans_s = np.diff(counter.t)
    return not bool((rises_j > 2 * power.high_w * (spans_s + IDLE_AGE_S)).any())


def _widened(counter: Samples, power: PowerRange, oldest_s: float) -> PowerRange:
    """Return the range extended to the counter's own mean powers; the time of a sample is uncertain
    by its age.
    """
    steps_j = np.diff(counter.value)
    steps_s = np.diff(counter.t)
    rising = steps_j >= 0
    if not rising.any():
        return power
    slowest_w = float((steps_j[rising] / (steps_s[rising] + oldest_s)).min())
    fastest_w = float((steps_j[rising] / (steps_s[rising] + oldest_s)).max())
    return PowerRange(min(power.low_w, slowest_w), max(power.high_w, fastest_w))


def _at(line: MonotonicCounter, t_s: float, age_s: FloatArray, power: PowerRange) -> Figure:
    """Return the energy at one instant, interpolated between samples or extrapolated from the
    nearest two.
    """
    since_newest_s = t_s - (line.t + AHEAD_S)
    since_oldest_s = t_s - (line.t - age_s)
    lows = line.energy_j + np.where(since_newest_s >= 0, power.low_w, power.high_w) * since_newest_s
    highs = (
        line.energy_j
        + line.lost_j
        + np.where(since_oldest_s >= 0, power.high_w, power.low_w) * since_oldest_s
    )
    low = float(lows.max())
    high = float(highs.min())
    if low > high:  # the timestamps contradict the range of power: keep both limits
        low, high = high, low
    if line.t[0] <= t_s <= line.t[-1]:
        return Figure(float(np.interp(t_s, line.t, line.energy_j)), skewed=(low, high))
    if len(line.t) < 2:
        return Figure((low + high) / 2, skewed=(low, high))
    near, next_ = (0, 1) if t_s < line.t[0] else (-1, -2)
    pace_w = float((line.energy_j[next_] - line.energy_j[near]) / (line.t[next_] - line.t[near]))
    value_j = float(line.energy_j[near]) + pace_w * (t_s - float(line.t[near]))
    return Figure(min(max(value_j, low), high), skewed=(low, high))


def trapezoid(power: Samples, start_s: float, end_s: float, least_s: float = 0.0) -> Integral:
    """Return ∫P dt over the timestamps in [start_s, end_s], without gaps.

    A gap is longer than 2.5 times the median spacing and longer than `least_s`, since a sensor can
    be read faster than it updates.
    """
    exact = power.exact_in(start_s, end_s)
    if exact:
        return Integral(exact.integral, exact.covered_s)
    spacing_s = median_spacing_s(power)
    if spacing_s is None:
        return Integral(0.0, 0.0)
    return integrate_within(power, start_s, end_s, max(GAP_FACTOR * spacing_s, least_s))


def integrate_within(power: Samples, start_s: float, end_s: float, longest_s: float) -> Integral:
    """Return ∫P dt in [start_s, end_s], without the times of more than `longest_s` between two
    samples.
    """
    inner = power.between(start_s, end_s)
    edges = [t for t in (start_s, end_s) if power.t[0] <= t <= power.t[-1]]
    t = distinct(np.concatenate([inner.t, edges]))
    value_w = np.interp(t, power.t, power.value)
    widths_s = np.diff(t)
    holder = np.clip(np.searchsorted(power.t, t[:-1], side="right"), 1, len(power) - 1)
    close = (power.t[holder] - power.t[holder - 1]) <= longest_s
    energies_j = widths_s * (value_w[1:] + value_w[:-1]) / 2
    return Integral(float(energies_j[close].sum()), float(widths_s[close].sum()))


def idle_power(
    power: Samples, utilization: Samples, windows: list[tuple[float, float]]
) -> Figure | None:
    """Return the median power of the idle windows among `windows`, which have no run; None if none
    is idle.

    A window is used from 3 s after its start, when clocks have dropped. It is idle if it lasts at
    least 10 s, with a median utilization of at most 5 % and a quartile range of at most 10 % of its
    median power. `half` is the half-width of the median's 95 % CI (Student's t, standard error
    1.253 σ/√n, with the number of independent readings), or half the difference between the windows
    if that is larger.
    """
    idle = [
        power.between(start_s + _SETTLE_S, end_s)
        for start_s, end_s in windows
        if _is_idle(power.between(start_s + _SETTLE_S, end_s), utilization.between(start_s, end_s))
    ]
    if not idle:
        return None
    medians_w = [sample_median(window.value) for window in idle]
    mean_w = sum_of_independent(
        Figure(median_w, _median_half_w(window))
        for median_w, window in zip(medians_w, idle, strict=True)
    ).scaled(1 / len(idle))
    half_w = max((max(medians_w) - min(medians_w)) / 2, mean_w.known_half_width)
    return Figure(mean_w.number, half_w)


def _median_half_w(power: Samples) -> float:
    """Return the half-width of the median's 95 % CI, by Student's t for few samples.

    Correlated readings count as fewer: n (1 − r) / (1 + r), with the lag-1 autocorrelation r, whose
    estimate is too low by (1 + 3 r) / n (Kendall, Biometrika 41, 1954).
    """
    # a report without idle windows does not import scipy, which takes 0.3 s of CPU time
    from wattline_analyzer.core.statistics import student_quantile

    count = len(power)
    deviations = power.value - power.value.mean()
    squares = float(deviations @ deviations)
    if squares == 0:
        return 0.0
    r = float(deviations[1:] @ deviations[:-1]) / squares
    r = min(max(r + (1 + 3 * r) / count, 0.0), _MOST_CORRELATED)
    independent = max(count * (1 - r) / (1 + r), _FEWEST_INDEPENDENT)
    variance = squares / count / (1 - 1 / independent)
    return float(
        student_quantile(independent - 1, 0.975) * 1.253 * math.sqrt(variance / independent)
    )


def _spread(power: Samples) -> float:
    """Return the range between the quartiles."""
    low, high = sample_quantiles(power.value, (0.25, 0.75))
    return float(high - low)


def _is_idle(power: Samples, utilization: Samples) -> bool:
    if len(power) < 3 or power.t[-1] - power.t[0] < IDLE_SECONDS:
        return False
    if len(utilization) and sample_median(utilization.value) > 0.05:
        return False
    return _spread(power) <= 0.1 * sample_median(power.value)


def net_energy(energy: Figure, idle: Figure, duration_s: float) -> Figure:
    """Return E − P_idle · T in joules, with the random errors of both."""
    whole = Figure(energy.number, energy.half_width)
    return sum_of_independent([whole, idle.scaled(-duration_s)])

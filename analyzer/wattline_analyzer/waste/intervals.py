"""Intervals between the samples of one GPU, with energy and the range of each signal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wattline.counter_arrays import counter_steps
from wattline_analyzer.core.samples import FloatArray, Samples, sample_median

SHORTEST_S = 10.0
"""Minimum length of an interval: in a shorter one the update of the energy counter distorts the
mean power.
"""
_LONGEST_FACTOR = 2.5
_SHORTEST_GAP_S = 40.0
"""A gap is longer than this and than 2.5 times the median interval: samples 15 s apart may lack
one.
"""

Signals = Mapping[str, Samples]
"""Samples of one GPU by signal: the constants below, and `event:REASON` for the clock event
counters.
"""
ENERGY = "energy"
POWER = "power"
UTILIZATION = "utilization"
MEMORY = "memory"
CLOCK = "clock"
CLOCK_MAX = "clock_max"
LIMIT = "limit"
DEFAULT_LIMIT = "default_limit"
INTENSITY = "intensity"
UNATTRIBUTED = "unattributed"
"""Counter of the energy that is attributed to no run."""
EVENT = "event:"
THROTTLING = tuple(
    f"{EVENT}{reason}"
    for reason in ("hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
)
LOCKED = f"{EVENT}applications_clocks_setting"
REQUIRED = (POWER, UTILIZATION, MEMORY, CLOCK, CLOCK_MAX, LIMIT, DEFAULT_LIMIT, *THROTTLING)


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Intervals without gaps inside: `start_s`, `end_s` in Unix seconds, `energy_j` from the
    counter.

    `low` and `high` are the least and greatest sample of each gauge from start to end, `first` is
    the one at the start, NaN without samples. `event_s` are the seconds of each clock event
    counter, and `unattributed_j` the energy of no run, NaN where unknown.
    """

    start_s: FloatArray
    end_s: FloatArray
    energy_j: FloatArray
    low: Mapping[str, FloatArray]
    high: Mapping[str, FloatArray]
    first: Mapping[str, FloatArray]
    event_s: Mapping[str, FloatArray]
    unattributed_j: FloatArray

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def seconds(self) -> FloatArray:
        return self.end_s - self.start_s

    def mean_of(self, signal: str) -> FloatArray:
        """Return the middle of the range of a gauge."""
        return (self.low[signal] + self.high[signal]) / 2


def intervals(signals: Signals) -> Intervals:
    """Return the intervals between energy samples that are at least `SHORTEST_S` apart.

    Intervals longer than a gap, and those in which the counter restarted, are left out.
    """
    counted = _counted(signals.get(ENERGY, _NO_SAMPLES))
    energy = spaced(counted.total)
    start_s = energy.t[:-1]
    end_s = energy.t[1:]
    if not len(start_s):
        nothing = np.empty(0)
        gauges = dict.fromkeys(_GAUGES, nothing)
        return Intervals(nothing, nothing, nothing, gauges, gauges, gauges, {}, nothing)
    longest_s = max(_LONGEST_FACTOR * sample_median(end_s - start_s), _SHORTEST_GAP_S)
    energy_j = np.diff(energy.value)
    kept = (end_s - start_s <= longest_s) & ~counted.restarted_in(start_s, end_s)
    start_s = start_s[kept]
    end_s = end_s[kept]
    energy_j = energy_j[kept]
    ranges = {name: _range(signals.get(name), start_s, end_s, longest_s) for name in _GAUGES}
    low, high, first = ({name: parts[at] for name, parts in ranges.items()} for at in range(3))
    events = {
        name: _rise(samples, start_s, end_s, longest_s)
        for name, samples in signals.items()
        if name.startswith(EVENT)
    }
    unattributed_j = _rise(signals.get(UNATTRIBUTED, _NO_SAMPLES), start_s, end_s, longest_s)
    return Intervals(start_s, end_s, energy_j, low, high, first, events, unattributed_j)


_NO_SAMPLES = Samples(np.empty(0), np.empty(0))
_GAUGES = (POWER, UTILIZATION, MEMORY, CLOCK, CLOCK_MAX, LIMIT, DEFAULT_LIMIT, INTENSITY)


@dataclass(frozen=True, slots=True, eq=False)
class _CountedSamples:
    """Total of a counter since its first sample, which never falls, and the N times in which it
    restarted: from the last sample before each restart, `before_s` (N,), to `after_s` (N,).
    """

    total: Samples
    before_s: FloatArray
    after_s: FloatArray

    def restarted_in(self, start_s: FloatArray, end_s: FloatArray) -> npt.NDArray[np.bool_]:
        """Return True for the intervals that overlap with a restart: a part is not counted."""
        begun = np.searchsorted(self.before_s, end_s, side="left")
        ended = np.searchsorted(self.after_s, start_s, side="right")
        return begun > ended


def _counted(counter: Samples) -> _CountedSamples:
    steps = counter_steps(counter.t, counter.value)
    t_s = counter.t[steps.kept]
    restarts = np.flatnonzero(steps.restarted)
    total = Samples(t_s, np.cumsum(steps.increase))
    return _CountedSamples(total, t_s[restarts - 1], t_s[restarts])


def spaced(counter: Samples) -> Samples:
    """Return the borders of intervals: the first sample of each period of `SHORTEST_S`, and the
    last sample. Late samples are none of them.
    """
    if len(counter) < 2:
        return counter
    in_time = counter_steps(counter.t, counter.value).kept
    samples = Samples(counter.t[in_time], counter.value[in_time])
    period = np.floor((samples.t - samples.t[0] + 0.5) / SHORTEST_S)
    kept = np.append(True, np.diff(period) > 0)
    last = int(np.flatnonzero(kept)[-1])
    if last < len(samples) - 1 and samples.t[-1] - samples.t[last] >= SHORTEST_S / 2:
        kept[-1] = True
    return Samples(samples.t[kept], samples.value[kept])


def _range(
    samples: Samples | None, start_s: FloatArray, end_s: FloatArray, oldest_s: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the least, greatest and first value from the last sample up to the start to the last
    one up to the end.
    """
    if samples is None or not len(samples):
        unknown = np.full(len(start_s), np.nan)
        return unknown, unknown, unknown
    first = np.searchsorted(samples.t, start_s + _SAME_S, side="right") - 1
    last = np.searchsorted(samples.t, end_s + _SAME_S, side="right") - 1
    known = (
        (first >= 0)
        & (start_s - samples.t[first] <= oldest_s)
        & (end_s - samples.t[last] <= oldest_s)
    )
    first = np.maximum(first, 0)
    values = np.append(samples.value, samples.value[-1])  # an end may be behind the last sample
    borders = np.stack([first, np.maximum(last, first) + 1], axis=1).ravel()
    low = np.minimum.reduceat(values, borders)[::2]
    high = np.maximum.reduceat(values, borders)[::2]
    return (
        np.where(known, low, np.nan),
        np.where(known, high, np.nan),
        np.where(known, values[first], np.nan),
    )


_SAME_S = 0.5
"""Maximum time between two samples of one scrape."""


def _rise(counter: Samples, start_s: FloatArray, end_s: FloatArray, oldest_s: float) -> FloatArray:
    """Return the rise of a counter in each interval, NaN where it restarted or has no sample
    nearby.
    """
    counted = _counted(counter)
    total = counted.total
    if len(total) < 2:
        return np.full(len(start_s), np.nan)
    at = np.interp(np.concatenate([start_s, end_s]), total.t, total.value)
    rise = at[len(start_s) :] - at[: len(start_s)]
    near = (start_s >= total.t[0] - _SAME_S) & (end_s <= total.t[-1] + oldest_s)
    return np.where(near & ~counted.restarted_in(start_s, end_s), rise, np.nan)

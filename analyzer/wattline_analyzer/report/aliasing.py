"""Aliasing of a load with a period close to that of the power sensor.

A sensor that averages the last 25 ms of each 100 ms shows a load of 104 ms as one of 2.6 s; its
error is large until many of these apparent periods have passed. Samples faster than the sensor's
updates reveal it: they repeat with a period of which a small multiple is nearly a whole number of
updates. A load with exactly the sensor's period cannot be detected, since its readings are
constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattline.contract.power_sensors import SensorWindow
from wattline_analyzer.core.run_report import Finding
from wattline_analyzer.core.samples import (
    FloatArray,
    Samples,
    median_spacing_s,
    sample_median,
    sample_quantiles,
)
from wattline_analyzer.core.streaming import FEWEST_UPDATES

LEAST_ERROR = 0.015
"""A smaller error is not reported."""
_MARGIN = 1.4
"""Safety factor: on generated loads, the error is below it times the estimate in 99 % of the
reported cases.
"""
_MOST_UPDATES = 20_000
"""A longer log, or one with a long gap, is not checked: all but the slowest beats average out in
it.
"""
_LEAST_SWING = 0.03
_SHARP = 0.4
"""A beat takes more than two updates from its lowest to its highest value; a slow load may jump."""
_MOST_MULTIPLE = 16
_FEWEST_CYCLES = 8
_HARMONICS = 5
_UNKNOWN = "an unknown part of the time (this GPU model was not metered)"


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """The readings of a sensor, one for each of its updates, and the update period."""

    period_s: float
    value: FloatArray


@dataclass(frozen=True, slots=True)
class Beat:
    """Readings that repeat every `apparent_s`; the relative error of the energy is up to
    `most_ratio`, either way.
    """

    update_s: float
    apparent_s: float
    most_ratio: float


def updates(power: Samples) -> Updates | None:
    """Return the sensor's updates from samples at least twice as fast; None for slower samples."""
    changed = np.flatnonzero(np.diff(power.value) != 0) + 1
    if power.exact or len(changed) < FEWEST_UPDATES:  # a downsampled series lacks updates
        return None
    times = power.t[changed]
    period_s = sample_median(np.diff(times))
    if period_s < 2 * sample_median(np.diff(power.t)):
        return None
    first_s = float(times[0])
    for _ in range(3):  # number the changes by updates, then fit the update period
        number = np.concatenate([[0], np.maximum(np.rint(np.diff(times) / period_s), 1).cumsum()])
        if number[-1] > _MOST_UPDATES:
            return None
        period_s, first_s = (float(x) for x in np.polyfit(number, times, 1))
    middles = first_s + period_s * (np.arange(int(number[-1])) + 0.5)
    at = np.clip(np.searchsorted(power.t, middles, side="right") - 1, 0, None)
    return Updates(period_s, power.value[at])


def find_beat(power: Samples) -> Beat | None:
    """Return the strongest beat; None without one, and where the samples are too slow (`updates` is
    None).
    """
    readings = updates(power)
    if readings is None:
        return None
    found = [
        beat
        for beat in (_slow(readings), _fast(readings))
        if beat and beat.most_ratio > LEAST_ERROR
    ]
    worst = max(found, key=lambda beat: beat.most_ratio, default=None)
    return replace(worst, most_ratio=_MARGIN * worst.most_ratio) if worst else None


def _swing_ratio(value: FloatArray) -> float:
    """Return the range between the 2nd and the 98th percentile, relative to the mean."""
    low, high = sample_quantiles(value, (0.02, 0.98))
    mean = float(value.mean())
    return float(high - low) / mean if mean > 0 else 0.0


def _error_ratio(value: FloatArray, multiple: int, cycles: float) -> float:
    """Return the error of a square wave of which this harmonic appears as `cycles` slow ones.

    The amplitude is 2/π of the swing over the number of the harmonic. An incomplete sine leaves at
    most 1/(π · cycles) of its amplitude.
    """
    amplitude = 2 / math.pi * _swing_ratio(value) / multiple
    return amplitude * min(1.0, 1 / (math.pi * cycles)) if cycles > 0 else amplitude


def _slow(readings: Updates) -> Beat | None:
    """Find readings that change smoothly, as no load does except by a beat.

    The longest stretch without a jump is used; start and end of a run are jumps, too.
    """
    jumps = (
        np.flatnonzero(np.abs(np.diff(readings.value)) > _SHARP * float(np.ptp(readings.value))) + 1
    )
    value = max(np.split(readings.value, jumps), key=len)
    count = len(value)
    if count < max(FEWEST_UPDATES, len(readings.value) / 2) or _swing_ratio(value) < _LEAST_SWING:
        return None
    if _is_monotonic(value):
        return None
    frequency = _strongest(_without_trend(value), 1 / count, 0.12)
    if frequency is None or _explained(value - value.mean(), frequency, 2) < 0.7:
        return None
    return Beat(
        readings.period_s, readings.period_s / frequency, _error_ratio(value, 1, frequency * count)
    )


def _fast(readings: Updates) -> Beat | None:
    """Find readings that repeat within a few updates, of which a harmonic may be close to the
    sensor's period.
    """
    value = readings.value
    count = len(readings.value)
    if count < 2 * _FEWEST_CYCLES or _swing_ratio(value) < _LEAST_SWING:
        return None
    level = _without_trend(value)
    frequency = _strongest(level, _FEWEST_CYCLES / count, 0.5)
    if frequency is None:
        return None
    frequency = _refined(level, frequency)
    if _explained(level, frequency, _HARMONICS) < 0.7 or _explained(level, frequency, 1) < 0.15:
        return None
    worst = max(
        _error_ratio(
            value, multiple, abs(multiple * frequency - round(multiple * frequency)) * count
        )
        for multiple in range(2, _MOST_MULTIPLE)
    )
    return Beat(readings.period_s, readings.period_s / frequency, worst)


def _without_trend(value: FloatArray) -> FloatArray:
    number = np.arange(len(value))
    level: FloatArray = value - np.polyval(np.polyfit(number, value, 1), number)
    return level


def _is_monotonic(value: FloatArray) -> bool:
    """Return True for a ramp or a warm-up: no wave of a whole cycle ends so far from its start."""
    few = max(len(value) // 20, 1)
    smooth = np.convolve(value, np.full(few, 1 / few), "valid")
    return float(abs(smooth[-1] - smooth[0])) > 0.6 * float(np.abs(np.diff(smooth[::few])).sum())


def _strongest(level: FloatArray, lowest: float, highest: float) -> float | None:
    """Return the frequency of the strongest spectral line, in cycles per update."""
    padded = 8 * 2 ** math.ceil(math.log2(len(level)))
    frequencies = np.fft.rfftfreq(padded)
    strength = np.abs(np.fft.rfft(level * np.hanning(len(level)), padded)) ** 2
    strength[(frequencies < lowest) | (frequencies > highest)] = 0
    at = int(np.argmax(strength))
    return float(frequencies[at]) if strength[at] > 0 else None


def _refined(level: FloatArray, frequency: float) -> float:
    step = 0.5 / len(level)
    best = (_explained(level, frequency, _HARMONICS), frequency)
    while step > 0.02 / len(level):
        around = [best[1] - step, best[1] + step]
        best = max([best, *((_explained(level, f, _HARMONICS), f) for f in around if 0 < f <= 0.5)])
        step /= 2
    return best[1]


def _explained(level: FloatArray, frequency: float, harmonics: int) -> float:
    """Return the share of the variance that a wave of this frequency explains."""
    phases = 2 * np.pi * frequency * np.outer(np.arange(len(level)), np.arange(1, harmonics + 1))
    waves = np.hstack([np.cos(phases), np.sin(phases), np.ones((len(level), 1))])
    fitted = waves @ np.linalg.lstsq(waves, level, rcond=1e-6)[0]
    return 1 - float((level - fitted).var() / level.var())


def aliasing_findings(
    subject: str, beat: Beat | None, sensor: SensorWindow | None, power: Samples, *, counted: bool
) -> list[Finding]:
    """Return found or possible aliasing; `counted` says that the energy is a counter's, not an
    integral of power.
    """
    if sensor and sensor.seen_ratio >= 1:
        return []
    part = (
        f"{1_000 * sensor.window_s:.0f} of each {1_000 * sensor.update_s:.0f} ms"
        if sensor
        else _UNKNOWN
    )
    if beat:
        text = (
            f"aliasing: the readings, one each {beat.update_s:.3f} s, repeat every "
            f"{beat.apparent_s:.3g} s, as for a "
            f"load with a period close to the sensor's, which samples {part}: the integral of "
            "power has an error of up "
            f"to {100 * beat.most_ratio:.0f} % either way, even if it agrees with other figures; "
            "repeat the run at "
            "random delays, or change the load's period (batch size)"
        )
        return [Finding("warning", "aliasing", subject, text)]
    if counted or not len(power) or updates(power):
        return []
    spacing_s = median_spacing_s(power) or 0.0
    if power.exact and sensor and 2 * spacing_s <= sensor.update_s:
        why = "this log is too long to check it"
        remedy = "import a part of it (analyzer import --start, --end)"
    else:
        why = f"samples {spacing_s:.3g} s apart are too slow"
        remedy = "log faster (nvidia-smi -lms 10)"
    text = (
        f"its sensor samples {part}; whether the load's period is close to that is unknown "
        f"({why}). If it is, the "
        f"error of the energy may be large; {remedy}, or repeat at random delays"
    )
    return [Finding("note", "aliasing_unknown", subject, text)]

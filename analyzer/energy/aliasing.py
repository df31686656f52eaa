"""Does a load's period sit near the sensor's, so that the sensor sees the same part of it again and again? Pure.

A board's sensor that averages the last 25 ms of each 100 ms follows a load of 104 ms as if it were one of 2.6 s, and is
off until that apparent period has gone by many times. Readings that come faster than the sensor updates tell: they
repeat with a period of which a small multiple is nearly a whole number of updates. What they cannot tell is a load that
stands still against the sensor: it reads as a steady one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from analyzer.energy.checks import Finding
from analyzer.model.samples import FloatArray, Samples, median_spacing_s
from exporter.contract.power_sensors import SensorWindow

LEAST_ERROR = 0.015
"""An error that could be no greater is not told."""
_MARGIN = 1.4
"""On generated loads that are told, the error stays below so many times what the readings suggest in 99 of 100."""
_FEWEST_UPDATES = 40
_MOST_UPDATES = 20_000
"""Of a longer log, or one with a long hole in it, nothing is told: by then all but the slowest beats average out."""
_LEAST_SWING = 0.03
_SHARP = 0.4
"""A load that beats goes from its lowest to its highest in more than two updates; one that is slow may jump."""
_MOST_MULTIPLE = 16
_FEWEST_CYCLES = 8
_HARMONICS = 5
_UNKNOWN = "all or a part of the time, which is not known of this card"


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """A sensor's readings, one for each of its updates, and how far these are apart."""

    period_s: float
    value: FloatArray


@dataclass(frozen=True, slots=True)
class Beat:
    """Readings repeat every `apparent_s`; the energy may be off by up to `most_ratio` of itself, either way."""

    update_s: float
    apparent_s: float
    most_ratio: float


def updates(power: Samples) -> Updates | None:
    """From samples that come at least twice as fast as the sensor updates; None where they do not."""
    changed = np.flatnonzero(np.diff(power.value) != 0) + 1
    if power.exact or len(changed) < _FEWEST_UPDATES:  # of a series that was thinned, updates are missing
        return None
    times = power.t[changed]
    period_s = float(np.median(np.diff(times)))
    if period_s < 2 * float(np.median(np.diff(power.t))):
        return None
    first_s = float(times[0])
    for _ in range(3):  # which update each change was, and by that how far they are apart
        number = np.concatenate([[0], np.maximum(np.rint(np.diff(times) / period_s), 1).cumsum()])
        if number[-1] > _MOST_UPDATES:
            return None
        period_s, first_s = (float(x) for x in np.polyfit(number, times, 1))
    middles = first_s + period_s * (np.arange(int(number[-1])) + 0.5)
    at = np.clip(np.searchsorted(power.t, middles, side="right") - 1, 0, None)
    return Updates(period_s, power.value[at])


def find(power: Samples) -> Beat | None:
    """None where nothing speaks of it, also where the samples are too slow to tell (`updates` is None then)."""
    seen = updates(power)
    if seen is None:
        return None
    found = [beat for beat in (_slow(seen), _fast(seen)) if beat and beat.most_ratio > LEAST_ERROR]
    worst = max(found, key=lambda beat: beat.most_ratio, default=None)
    return replace(worst, most_ratio=_MARGIN * worst.most_ratio) if worst else None


def _swing_ratio(value: FloatArray) -> float:
    """Between the lowest and the highest, of the mean."""
    low, high = np.percentile(value, [2, 98])
    mean = float(value.mean())
    return float(high - low) / mean if mean > 0 else 0.0


def _error_ratio(value: FloatArray, multiple: int, cycles: float) -> float:
    """Of a square wave, that harmonic of which goes by as `cycles` slow ones: 2/π of the swing, over its number.

    A sine that is cut off somewhere leaves at most 1/(π · cycles) of its amplitude.
    """
    amplitude = 2 / math.pi * _swing_ratio(value) / multiple
    return amplitude * min(1.0, 1 / (math.pi * cycles)) if cycles > 0 else amplitude


def _slow(seen: Updates) -> Beat | None:
    """Readings that wax and wane smoothly: no load jumps so little from one update to the next, unless it beats.

    Judged over the longest stretch without a jump, which a run's begin and end are too.
    """
    jumps = np.flatnonzero(np.abs(np.diff(seen.value)) > _SHARP * float(np.ptp(seen.value))) + 1
    value = max(np.split(seen.value, jumps), key=len)
    count = len(value)
    if count < max(_FEWEST_UPDATES, len(seen.value) / 2) or _swing_ratio(value) < _LEAST_SWING:
        return None
    if _goes_one_way(value):
        return None
    frequency = _strongest(_without_trend(value), 1 / count, 0.12)
    if frequency is None or _explained(value - value.mean(), frequency, 2) < 0.7:
        return None
    return Beat(seen.period_s, seen.period_s / frequency, _error_ratio(value, 1, frequency * count))


def _fast(seen: Updates) -> Beat | None:
    """Readings that repeat within a few updates: a harmonic of theirs may stand still against the sensor."""
    value, count = seen.value, len(seen.value)
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
        _error_ratio(value, multiple, abs(multiple * frequency - round(multiple * frequency)) * count)
        for multiple in range(2, _MOST_MULTIPLE)
    )
    return Beat(seen.period_s, seen.period_s / frequency, worst)


def _without_trend(value: FloatArray) -> FloatArray:
    number = np.arange(len(value))
    level: FloatArray = value - np.polyval(np.polyfit(number, value, 1), number)
    return level


def _goes_one_way(value: FloatArray) -> bool:
    """A ramp, or a card that warms up: no wave of a whole cycle ends as far from its begin."""
    few = max(len(value) // 20, 1)
    smooth = np.convolve(value, np.full(few, 1 / few), "valid")
    return float(abs(smooth[-1] - smooth[0])) > 0.6 * float(np.abs(np.diff(smooth[::few])).sum())


def _strongest(level: FloatArray, lowest: float, highest: float) -> float | None:
    """The frequency of the strongest line, in cycles an update."""
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
    """The part of the variance that a wave of this frequency explains."""
    phases = 2 * np.pi * frequency * np.outer(np.arange(len(level)), np.arange(1, harmonics + 1))
    waves = np.hstack([np.cos(phases), np.sin(phases), np.ones((len(level), 1))])
    fitted = waves @ np.linalg.lstsq(waves, level, rcond=1e-6)[0]
    return 1 - float((level - fitted).var() / level.var())


def findings(
    subject: str, found: Beat | None, seen: SensorWindow | None, power: Samples, *, counted: bool
) -> list[Finding]:
    """`counted` says that the energy is a counter's and not the power's integral."""
    if seen and seen.seen_ratio >= 1:
        return []
    part = f"{1_000 * seen.window_s:.0f} of each {1_000 * seen.update_s:.0f} ms" if seen else _UNKNOWN
    if found:
        text = (
            f"aliasing: its readings, one each {found.update_s:.3f} s, repeat every {found.apparent_s:.3g} s as those "
            f"of a load whose period is near the sensor's do, which sees {part}: the integral of power may be off by "
            f"up to {100 * found.most_ratio:.0f} % either way, however well it agrees with other figures; repeat the "
            "run at random delays, or change the load's period (batch size)"
        )
        return [Finding("warning", "aliasing", subject, text)]
    if counted or not len(power) or updates(power):
        return []
    spacing_s = median_spacing_s(power) or 0.0
    if power.exact and seen and 2 * spacing_s <= seen.update_s:
        why, remedy = "this log is too long to look for it", "import a part of it (analyzer import --start, --end)"
    else:
        why, remedy = f"samples {spacing_s:.3g} s apart do not tell", "log faster (nvidia-smi -lms 10)"
    text = (
        f"its sensor sees {part}, and whether the load's period is near that is not known ({why}): if it is, the "
        f"energy may be far off; {remedy}, or repeat at random delays"
    )
    return [Finding("note", "aliasing_unknown", subject, text)]

"""When to start a run so that it emits least, by a forecast of carbon intensity. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.carbon.intensity import PastSlot
from analyzer.model.interval import JOULES_PER_KWH
from analyzer.model.samples import FloatArray

CLEAR_RATIO = 0.05
"""Forecasts are no better than that: what saves less makes no clear difference."""
_TOUCH_S = 1.0
"""Slots that are closer than this have no hole between them."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """`slots` do not overlap; `made_s` is when the provider told it, None where nobody says."""

    provider: str
    region: str
    basis: str
    slots: tuple[PastSlot, ...]
    made_s: float | None = None

    @property
    def end_s(self) -> float:
        return max(slot.end_s for slot in self.slots)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a run draws: joules in each of its parts, one after the other; `boundary` names what is counted."""

    durations_s: tuple[float, ...]
    energies_j: tuple[float, ...]
    boundary: str

    @property
    def duration_s(self) -> float:
        return math.fsum(self.durations_s)

    @property
    def energy_j(self) -> float:
        return math.fsum(self.energies_j)


@dataclass(frozen=True, slots=True)
class Start:
    at_s: float
    mass_g: float


@dataclass(frozen=True, slots=True)
class Starts:
    """`every` start that the forecast covers, by time; `now` is the first of them, None where it is not covered.

    `wanted_until_s` is the last start that was asked for.
    """

    forecast: Forecast
    profile: Profile
    asked_s: float
    wanted_until_s: float
    every: tuple[Start, ...]
    now: Start | None

    @property
    def best(self) -> Start:
        """The earliest of the best."""
        return min(self.every, key=lambda start: start.mass_g)

    @property
    def worst(self) -> Start:
        return max(self.every, key=lambda start: start.mass_g)

    @property
    def saved_ratio(self) -> float | None:
        """Of the grams of a start now; None where those are not known."""
        if self.now is None:
            return None
        return 1 - self.best.mass_g / self.now.mass_g if self.now.mass_g > 0 else 0.0

    @property
    def clear(self) -> bool:
        return self.saved_ratio is not None and self.saved_ratio >= CLEAR_RATIO

    @property
    def cut_short(self) -> bool:
        """The forecast ends before the run would, for some of the starts that were asked for."""
        return self.forecast.end_s + _TOUCH_S < self.wanted_until_s + self.profile.duration_s


class NoStartError(Exception):
    """The forecast covers no start at all; the text says why."""


def starts(forecast: Forecast, profile: Profile, now_s: float, within_s: float, step_s: float) -> Starts:
    """Now, and each multiple of the step (of Unix time) within the time asked for. Raises NoStartError."""
    first = math.floor(now_s / step_s) + 1
    count = max(math.floor((now_s + within_s) / step_s) - first + 1, 0)
    times_s = np.array([now_s, *(step_s * (first + n) for n in range(count))])
    masses_g, covered = _masses(forecast.slots, profile, times_s)
    every = tuple(Start(float(t), float(g)) for t, g in zip(times_s[covered], masses_g[covered], strict=True))
    if not every:
        raise NoStartError(_why_none(forecast, profile, now_s))
    now = every[0] if covered[0] else None
    return Starts(forecast, profile, now_s, now_s + within_s, every, now)


def _masses(
    slots: Sequence[PastSlot], profile: Profile, times_s: FloatArray
) -> tuple[FloatArray, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Grams of each start, and whether the forecast has all of its time.

    Intensity and power are constant in parts, so both integrals over time are broken lines.
    """
    ordered = sorted(slots, key=lambda slot: slot.start_s)
    edges_s = np.array([edge_s for slot in ordered for edge_s in (slot.start_s, slot.end_s)])
    lengths_s = np.array([slot.end_s - slot.start_s for slot in ordered])
    known_s = np.repeat(np.concatenate([[0.0], lengths_s.cumsum()]), 2)[1:-1]
    weights = lengths_s * np.array([slot.grams_per_kwh for slot in ordered])
    weighed = np.repeat(np.concatenate([[0.0], weights.cumsum()]), 2)[1:-1]
    at_s = times_s[:, None] + np.concatenate([[0.0], np.cumsum(profile.durations_s)])
    intensities = np.diff(np.interp(at_s, edges_s, weighed), axis=1) / np.array(profile.durations_s)
    masses_g = intensities @ np.array(profile.energies_j) / JOULES_PER_KWH
    held_s = np.interp(at_s[:, -1], edges_s, known_s) - np.interp(at_s[:, 0], edges_s, known_s)
    return masses_g, held_s >= profile.duration_s - _TOUCH_S


def _why_none(forecast: Forecast, profile: Profile, now_s: float) -> str:
    left_h = (forecast.end_s - now_s) / 3_600
    if left_h <= 0:
        return f"the forecast ended {-left_h:.1f} h ago"
    if left_h * 3_600 < profile.duration_s:
        return f"the forecast ends in {left_h:.1f} h, before a run of {profile.duration_s / 3_600:.1f} h would"
    return "the forecast has holes, so that it covers no start as a whole"

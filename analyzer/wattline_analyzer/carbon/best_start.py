"""The start of least emissions for a run, by a forecast of carbon intensity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattline.figures import JOULES_PER_KWH
from wattline_analyzer.core.emissions import PastSlot
from wattline_analyzer.core.run_report import Boundary
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.core.timeline import EnergyTracks, RunTimes

CLEAR_RATIO = 0.05
"""The accuracy of forecasts: a smaller saving is no clear difference."""
_TOUCH_S = 1.0
"""The longest time between slots that is no gap."""
_MOST_MISSING = 0.1
"""Share of a run of some seconds that the forecast may lack."""
_PART_S = 300.0
_MOST_PARTS = 1_000


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast; `slots` do not overlap, `issued_s` is its time of issue, None where unknown."""

    provider: str
    region: str
    basis: str
    slots: tuple[PastSlot, ...]
    issued_s: float | None = None

    @property
    def end_s(self) -> float:
        return max(slot.end_s for slot in self.slots)


@dataclass(frozen=True, slots=True)
class Profile:
    """The energy of a run in each of its consecutive parts; `boundary` names the components."""

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
    """The starts that the forecast covers, by time.

    `now` is the first of `every`, None where the forecast does not cover it; `wanted_until_s` is
    the last requested start.
    """

    forecast: Forecast
    profile: Profile
    asked_s: float
    wanted_until_s: float
    every: tuple[Start, ...]
    now: Start | None

    @property
    def best(self) -> Start:
        """The earliest start of least emissions."""
        return min(self.every, key=lambda start: start.mass_g)

    @property
    def worst(self) -> Start:
        return max(self.every, key=lambda start: start.mass_g)

    @property
    def saved_ratio(self) -> float | None:
        """The saving relative to a start now; None where its emissions are unknown."""
        if self.now is None:
            return None
        return 1 - self.best.mass_g / self.now.mass_g if self.now.mass_g > 0 else 0.0

    @property
    def clear(self) -> bool:
        return self.saved_ratio is not None and self.saved_ratio >= CLEAR_RATIO

    @property
    def cut_short(self) -> bool:
        """The forecast ends before the end of the run for some of the requested starts."""
        return self.forecast.end_s + _TOUCH_S < self.wanted_until_s + self.profile.duration_s


class NoStartError(Exception):
    """The forecast covers no start; the text has the cause."""


def starts(
    forecast: Forecast, profile: Profile, now_s: float, within_s: float, step_s: float
) -> Starts:
    """Return the starts now and at each multiple of the step (of Unix time). Raises
    NoStartError.
    """
    first = math.floor(now_s / step_s) + 1
    count = max(math.floor((now_s + within_s) / step_s) - first + 1, 0)
    times_s = np.array([now_s, *(step_s * (first + n) for n in range(count))])
    masses_g, covered = _masses(forecast.slots, profile, times_s)
    every = tuple(
        Start(float(t), float(g)) for t, g in zip(times_s[covered], masses_g[covered], strict=True)
    )
    if not every:
        raise NoStartError(_why_none(forecast, profile, now_s))
    now = every[0] if covered[0] else None
    return Starts(forecast, profile, now_s, now_s + within_s, every, now)


def _masses(
    slots: Sequence[PastSlot], profile: Profile, times_s: FloatArray
) -> tuple[FloatArray, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Return the emissions of each start, and whether the forecast covers its time.

    Intensity and power are piecewise constant, so that their integrals over time are piecewise
    linear.
    """
    ordered = sorted(slots, key=lambda slot: slot.start_s)
    edges_s = np.array([edge_s for slot in ordered for edge_s in (slot.start_s, slot.end_s)])
    lengths_s = np.array([slot.end_s - slot.start_s for slot in ordered])
    known_s = np.repeat(np.concatenate([[0.0], lengths_s.cumsum()]), 2)[1:-1]
    weights = lengths_s * np.array([slot.grams_per_kwh for slot in ordered])
    weighted = np.repeat(np.concatenate([[0.0], weights.cumsum()]), 2)[1:-1]
    at_s = times_s[:, None] + np.concatenate([[0.0], np.cumsum(profile.durations_s)])
    intensities = np.diff(np.interp(at_s, edges_s, weighted), axis=1) / np.array(
        profile.durations_s
    )
    masses_g = intensities @ np.array(profile.energies_j) / JOULES_PER_KWH
    covered_s = np.interp(at_s[:, -1], edges_s, known_s) - np.interp(at_s[:, 0], edges_s, known_s)
    return masses_g, covered_s >= profile.duration_s - min(
        _TOUCH_S, _MOST_MISSING * profile.duration_s
    )


def _why_none(forecast: Forecast, profile: Profile, now_s: float) -> str:
    left_h = (forecast.end_s - now_s) / 3_600
    if left_h <= 0:
        return f"the forecast ended {-left_h:.1f} h ago"
    if left_h * 3_600 < profile.duration_s:
        return (
            f"the forecast ends in {left_h:.1f} h, before a run of "
            f"{profile.duration_s / 3_600:.1f} h would"
        )
    return "the forecast has gaps, so that it covers no start completely"


def power_profile(times: RunTimes, boundary: Boundary, tracks: EnergyTracks) -> Profile | None:
    """Return the energy of a finished run at `boundary` in parts of five minutes; None without a
    duration.

    The energy of a device without samples is spread evenly.
    """
    if times.duration_s <= 0:
        return None
    count = min(max(math.ceil(times.duration_s / _PART_S), 1), _MOST_PARTS)
    edges_s = times.started_at_s + np.linspace(0.0, times.duration_s, count + 1)
    parts_j = np.zeros(count)
    for instance, window in sorted(times.windows.items()):
        on_s = np.clip(edges_s, window.start_s, window.end_s)
        for component in boundary.components:
            for track in tracks.get((instance, component), ()):
                parts_j += np.diff(track.values(on_s))
    duration_s = times.duration_s / count
    return Profile((duration_s,) * count, tuple(float(part) for part in parts_j), boundary.name)

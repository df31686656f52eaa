"""Deep-idle power of a GPU, and the uncertainty of the energy above it."""

from __future__ import annotations

import math

from wattline.contract.power_sensors import IDLE_LEVEL_RATIO
from wattline.figures import NORMAL_95, Figure, sum_of_independent

OLDEST_S = 1.1
"""Longest age of the energy in a sample: exporters poll an idle GPU once a second, and sensors
update each 0.1 s.
"""
_REPORTED_RATIO = 0.02
"""Half-width of the exporter's idle power as a ratio, if it is the mean of one window of 10 s only.
"""
_LEAST_IDLE_S = 60.0
"""Minimum time at deep idle from which the mean power is the deep-idle power."""
_MUCH_LOWER = 0.9


def edges_half_j(power_w: float, spans: int) -> float:
    """Return the 95 % half-width of the energy that a counter gives for a number of spans at one
    power.

    The energy at each end of a span is up to `OLDEST_S` old. The difference of two such ages,
    independent and uniform, has the variance `OLDEST_S`² / 6.
    """
    return NORMAL_95 * OLDEST_S * power_w * math.sqrt(spans / 6)


def latest_on_lowest_level(values_w: list[float]) -> float:
    """Return the latest of the idle powers that an exporter reported, of those on the lowest level.

    The first values are means of few windows, and less accurate.
    """
    highest_w = min(values_w) * (1 + IDLE_LEVEL_RATIO)
    return [watts for watts in values_w if watts <= highest_w][-1]


def deep_idle_power(
    seconds: float, energy_j: float, spans: int, reported_w: float | None
) -> Figure | None:
    """Return the mean power of the time at deep idle, or the exporter's idle power if that is much
    lower.

    The exporter's value may be from an earlier time. None if neither is known.
    """
    reported = None if reported_w is None else Figure(reported_w, _REPORTED_RATIO * reported_w)
    if seconds < _LEAST_IDLE_S:
        return reported
    mean_w = energy_j / seconds
    if reported is not None and reported.number < _MUCH_LOWER * mean_w:
        return reported
    return Figure(mean_w, edges_half_j(mean_w, spans) / seconds)


def waste_half_j(energy_j: float, seconds: float, spans: int, idle: Figure) -> float | None:
    """Return the 95 % half-width of an energy minus that of the same time at deep idle."""
    energy = Figure(energy_j, edges_half_j(energy_j / seconds, spans))
    return sum_of_independent([energy, idle.scaled(-seconds)]).half_width

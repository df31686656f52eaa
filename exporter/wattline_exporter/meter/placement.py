"""Placement of a slow counter's energy within its steps by means of the power readings (pure)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from wattline_exporter.meter.interpolation import EnergyPoint
from wattline_exporter.meter.uncertainty import (
    LONG_SLACK_S,
    bridge_tolerance_j,
    power_shift_j,
    scaled_step_j,
    unexplained_step_j,
    unread_j,
    update_time_j,
)
from wattline_exporter.sensors.readings import Poll

LONG_STEP_S = 0.25
"""Step of a counter from which on power readings are better than the step alone: two updates of a
power sensor.
"""
MAX_RATIO = 1.25
"""Largest ratio of a step's energy to that of the power for which the power shows the shape of the
load.
"""


class PowerCurve(NamedTuple):
    """Integral of power at the times when the power was drawn; each power is known to ±
    `slack_s`.
    """

    times_s: list[float]
    joules: list[float]
    powers_w: list[float]
    slack_s: float

    @property
    def known_s(self) -> float:
        """Time of the latest poll, until which the last power is assumed."""
        return self.times_s[-1] + self.slack_s

    def joules_at(self, t_s: float) -> float:
        right = min(max(bisect_right(self.times_s, t_s), 1), len(self.times_s) - 1)
        begin_s = self.times_s[right - 1]
        end_s = self.times_s[right]
        latest_s = self.known_s if right == len(self.times_s) - 1 else end_s
        share = (min(max(t_s, begin_s), latest_s) - begin_s) / (end_s - begin_s)
        return self.joules[right - 1] + share * (self.joules[right] - self.joules[right - 1])

    def error_j(self, begin_s: float, end_s: float) -> float:
        """Return the largest error of the energy between two instants, from unknown times of the
        power's changes.
        """
        first = bisect_left(self.times_s, begin_s - self.slack_s)
        last = bisect_right(self.times_s, end_s + self.slack_s)
        powers: list[float] = []
        spacings_s = [0.0]
        for a, b in pairwise(range(max(first - 1, 0), min(last + 1, len(self.times_s)))):
            spacing_s = self.times_s[b] - self.times_s[a]
            powers.append((self.joules[b] - self.joules[a]) / spacing_s)
            if self.times_s[b] > begin_s and self.times_s[a] < end_s:
                spacings_s.append(spacing_s)
        if first <= 1:  # no earlier pair shows the power from which the first one starts
            powers.append(self.powers_w[0])
        if last + 1 >= len(self.times_s):
            powers.append(self.powers_w[-1])
        if not powers:
            return 0.0
        return power_shift_j(max(powers) - min(powers), self.slack_s, max(spacings_s))


def power_curve(polls: Sequence[Poll], lag_s: float, slack_s: float) -> PowerCurve | None:
    """Return the integral of the displayed power, `lag_s` before the polls; None where there are
    fewer than two.
    """
    known = [
        (poll.after_s - lag_s, watts) for poll in polls if (watts := poll.display_w) is not None
    ]
    if len(known) < 2:
        return None
    joules = [0.0]
    for (a_s, a_w), (b_s, b_w) in pairwise(known):
        joules.append(joules[-1] + (a_w + b_w) / 2 * (b_s - a_s))
    return PowerCurve([t_s for t_s, _ in known], joules, [watts for _, watts in known], slack_s)


def place_energy(
    points: Sequence[EnergyPoint], t_s: float, curve: PowerCurve | None, most_w: float
) -> tuple[float, float] | None:
    """Return the joules at `t_s` and their half-width, with the energy of a long step placed as the
    power flowed.

    After the last point, the energy of the power is added to the counter. After the last power, up
    to `most_w` may flow. Return None if the step is short, or if the power does not explain it.
    """
    right = bisect_right(points, t_s, key=lambda point: point.t_s)
    if curve is None or right == 0 or curve.times_s[0] > points[right - 1].t_s:
        return None
    left = points[right - 1]
    since_j = curve.joules_at(t_s) - curve.joules_at(left.t_s)
    error_j = curve.error_j(left.t_s, t_s)
    if right == len(points):
        if t_s - left.t_s < LONG_STEP_S:
            return None
        half_width_j = (
            error_j
            + update_time_j(left.slack_s, since_j / (t_s - left.t_s), most_w)
            + bridge_tolerance_j(since_j)
            + unread_j(max(0.0, t_s - curve.known_s), most_w)
        )
        return left.joules + since_j, half_width_j
    if points[right].t_s - left.t_s < LONG_STEP_S:
        return None
    return _place_in_step(left, points[right], t_s, curve, most_w)


def _place_in_step(
    left: EnergyPoint, after: EnergyPoint, t_s: float, curve: PowerCurve, most_w: float
) -> tuple[float, float] | None:
    """Return the joules between two points and their half-width; None where the power does not
    explain the step.
    """
    since_j = curve.joules_at(t_s) - curve.joules_at(left.t_s)
    left_error_j = curve.error_j(left.t_s, t_s)
    step_j = after.joules - left.joules
    step_s = after.t_s - left.t_s
    curve_j = curve.joules_at(after.t_s) - curve.joules_at(left.t_s)
    rest_j = curve_j - since_j
    step_w = step_j / step_s
    right_error_j = curve.error_j(t_s, after.t_s)
    if (
        max(left.slack_s, after.slack_s) > LONG_SLACK_S
    ):  # the step may be longer or shorter than it seems
        since_error_j = unread_j(left.slack_s, most_w) + bridge_tolerance_j(since_j) + left_error_j
        rest_error_j = unread_j(after.slack_s, most_w) + bridge_tolerance_j(rest_j) + right_error_j
        estimates = [
            (left.joules + since_j, since_error_j),
            (after.joules - rest_j, rest_error_j),
        ]
        joules, half_width_j = min(estimates, key=lambda estimate: estimate[1])
        half_width_j += unexplained_step_j(step_j, curve_j, left.slack_s + after.slack_s, most_w)
        if (
            t_s >= left.t_s + left.slack_s
        ):  # before that, the energy of `left` may not have been reached
            joules = max(joules, left.joules)
        if t_s <= after.t_s - after.slack_s:
            joules = min(joules, after.joules)
        return joules, half_width_j
    if not 1 / MAX_RATIO < step_j / max(curve_j, 1e-9) < MAX_RATIO:
        return None
    joules = left.joules + step_j * since_j / curve_j
    most_j = max(joules - left.joules, after.joules - joules)
    shift_j = min(left_error_j, right_error_j)
    half_width_j = scaled_step_j(shift_j, step_j / curve_j, since_j, rest_j, most_j)
    return joules, half_width_j + update_time_j(max(left.slack_s, after.slack_s), step_w, most_w)

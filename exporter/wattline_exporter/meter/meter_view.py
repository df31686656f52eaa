"""Energy of one device at past instants, from its latest polls."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattline_exporter.meter.interpolation import (
    NEIGHBOURHOOD_S,
    EnergyLine,
    EnergyPoint,
    PowerLimits,
    ShownPower,
)
from wattline_exporter.meter.placement import LONG_STEP_S, PowerCurve, place_energy, power_curve
from wattline_exporter.meter.sensor_clock import AVERAGING_S
from wattline_exporter.meter.totals import MeteredPoll
from wattline_exporter.meter.uncertainty import (
    SHORT_WINDOW_S,
    EnergyMark,
    averaging_j,
    bridged_instant_j,
    fast_load_j,
    hidden_shape_j,
    raised_j,
    unplaced_j,
)

BRIDGED_S = 1.0
"""Longest time between polls that is never a gap: power is interpolated in between."""


@dataclass(frozen=True, slots=True)
class SensorState:
    """Sensors of a device at its latest poll."""

    has_counter: bool
    """True if the counter has a trusted value now; else, after `counted_s`, the energies are
    integrals of power.
    """
    resolves_updates: bool
    """True if the sensors update slowly enough that the time of an update matters."""
    uses_instant_power: bool
    shows_shape: bool
    """True if the instantaneous power has been seen to have a shorter window than an update of the
    counter. Else its readings may be means over a whole update, which hide the load inside it.
    """
    power_update_s: float
    """Longest time between two updates of the power."""
    unmeasured_share: float
    limit_w: float
    limits: PowerLimits
    """The highest power is that up to which energy may have flowed while nothing was measured."""
    counted_s: float
    """Time of the counter's latest trusted value."""
    pending_j: float
    """Largest error of the energy since then."""
    bridge_error_j: float
    """Largest error at one instant after the counter's latest value, from which delayed power
    continues.
    """
    settled_s: float
    """Time up to which the polls show the energy; any power may have flowed since."""


Doubt = Callable[[float], tuple[float, float]]
"""Returns two energies in joules for an instant: the doubt about the energy, and what to add to
the unseen energy.
"""


class MeterView:
    """Energy at past instants. It is valid until the next poll."""

    def __init__(
        self,
        polls: list[MeteredPoll],
        points: Sequence[EnergyPoint],
        doubt_j: Doubt,
        sensors: SensorState,
    ) -> None:
        self._polls = polls
        self._doubt_j = doubt_j
        self._times = [item.poll.after_s for item in polls]
        self._points, self._line = points, EnergyLine(points)
        self._sensors = sensors
        self._curve: PowerCurve | None = None

    def energy_at(self, t_s: float) -> tuple[float, float]:
        """Return the joules at `t_s` and their half-width."""
        polls = self._polls
        times = self._times
        sensors = self._sensors
        nearby = slice(
            bisect_left(times, t_s - NEIGHBOURHOOD_S), bisect_right(times, t_s + NEIGHBOURHOOD_S)
        )
        known_w = [
            power_w for item in polls[nearby] if (power_w := item.poll.display_w) is not None
        ]
        right = bisect_right(times, t_s)
        before = polls[max(0, right - 1)].totals
        is_silent = self._is_silent(right)
        is_polled = not is_silent and t_s <= sensors.settled_s
        shows_shape = self._shows_shape(t_s)
        placed = self._placed(t_s) if is_polled else None
        window_j = self._window_j(known_w, shows_shape=shows_shape)
        if placed:
            joules, half_width_j = placed
            half_width_j += window_j
        else:
            joules, half_width_j = self._line.at(
                t_s,
                ShownPower(
                    known_w,
                    polls[-1].poll.instant_w is not None,
                    sensors.limits,
                    is_polled,
                    self._is_counted(t_s),
                    shows_shape,
                    window_j,
                ),
            )
        short_j = raised_j(joules, before.energy_j)
        joules += short_j
        half_width_j += short_j
        if known_w and not self._is_counted(t_s) and polls[-1].poll.average_w is not None:
            half_width_j += averaging_j(known_w)
        if t_s > sensors.counted_s:
            half_width_j += bridged_instant_j(sensors.pending_j, sensors.bridge_error_j)
        if not is_silent:
            half_width_j += unplaced_j(before, polls[self._next_known(right)].totals)
        return joules, half_width_j + self._doubt_j(t_s)[0]

    def mark(self, t_s: float) -> EnergyMark:
        """Return the energy mark at `t_s`."""
        polls = self._polls
        times = self._times
        right = bisect_right(times, t_s)
        before = polls[max(0, right - 1)].totals
        after = polls[min(right, len(polls) - 1)].totals
        is_inside = 0 < right < len(polls)
        share = (t_s - times[right - 1]) / (times[right] - times[right - 1]) if is_inside else 0.0
        unseen_j = share * (after.unseen_j - before.unseen_j) if self._is_silent(right) else 0.0
        joules, half_width_j = self.energy_at(t_s)
        return EnergyMark(
            joules,
            half_width_j,
            before.variance_j2,
            before.integrated_j + share * (after.integrated_j - before.integrated_j),
            before.covered_s + share * (after.covered_s - before.covered_s),
            before.resets,
            self._sensors.unmeasured_share,
            self._sensors.limit_w,
            before.unseen_j + unseen_j + self._doubt_j(t_s)[1],
        )

    def _is_silent(self, right: int) -> bool:
        """Return whether no polls, or none for a long time, are around the instants before poll
        `right`.
        """
        times = self._times
        return not 0 < right < len(times) or times[right] - times[right - 1] > BRIDGED_S

    def _is_counted(self, t_s: float) -> bool:
        """Return whether the energy at `t_s` is the counter's."""
        return self._sensors.has_counter or t_s <= self._sensors.counted_s

    def _shows_shape(self, t_s: float) -> bool:
        """Return whether the readings show the load between two updates around `t_s`."""
        return self._sensors.shows_shape or not self._is_counted(t_s)

    def _shows_no_part(self, t_s: float) -> bool:
        """Return whether the power updates too slowly to show the parts of a long step at `t_s`,
        though it is polled often enough.
        """
        right = bisect_right(self._times, t_s)
        is_inside = 0 < right < len(self._times)
        is_gap = is_inside and self._times[right] - self._times[right - 1] > LONG_STEP_S
        return not is_gap and self._sensors.power_update_s > LONG_STEP_S

    def _next_known(self, index: int) -> int:
        """Return the index of the first poll from `index` on whose counter is trusted; it shows
        errors before it.
        """
        last = len(self._polls) - 1
        while self._sensors.has_counter and index < last and self._polls[index].counted_j is None:
            index += 1
        return min(index, last)

    def _placed(self, t_s: float) -> tuple[float, float] | None:
        """Return the joules at an instant within a long step of the counter and their half-width;
        else None.
        """
        points = self._points
        if not (self._is_counted(t_s) and self._sensors.resolves_updates):
            return None
        if not self._shows_shape(t_s) and self._shows_no_part(t_s):
            return None
        right = bisect_right(points, t_s, key=lambda point: point.t_s)
        end_s = points[right].t_s if right < len(points) else t_s
        if right == 0 or end_s - points[right - 1].t_s <= LONG_STEP_S:
            return None
        return place_energy(points, t_s, self._power_curve(), self._sensors.limits.most_w)

    def _power_curve(self) -> PowerCurve | None:
        if self._curve is None:
            polls = [item.poll for item in self._polls]
            window_s = (
                SHORT_WINDOW_S if any(poll.instant_w is not None for poll in polls) else AVERAGING_S
            )
            lag_s = (window_s + self._sensors.power_update_s) / 2
            self._curve = power_curve(polls, lag_s, lag_s)
        return self._curve

    def _window_j(self, powers_w: Sequence[float], *, shows_shape: bool) -> float:
        """Return the error at one instant, of a load that switches faster than the window of the
        power: a part of an update, or the whole of one.
        """
        sensors = self._sensors
        if not (powers_w and sensors.resolves_updates):
            return 0.0
        if shows_shape:
            return fast_load_j(powers_w, uses_instant_power=sensors.uses_instant_power)
        mean_w = math.fsum(powers_w) / len(powers_w)
        return hidden_shape_j(mean_w, *sensors.limits, sensors.power_update_s)

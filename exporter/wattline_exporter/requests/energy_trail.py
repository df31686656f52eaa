"""Energy of a device in the past, also at times whose polls are no longer kept."""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from wattline_exporter.meter.meter import DeviceMeter

if TYPE_CHECKING:  # numpy is imported with the first request
    from wattline_exporter.requests.division.arrays import FloatArray

STEP_S = 0.25
"""Time between two energies, two or more updates of the usual sensors."""
PAUSE_S = 3.0
"""Time without polls in which no energy is kept: a GPU is polled each second, or faster."""
MARGIN_S = 0.5
"""Time from the first poll that is kept to the first instant at which the polls around it are
known.
"""


class TrailPart(NamedTuple):
    """Energies at K rising times, with their half-widths."""

    times_s: array[float]
    joules: array[float]
    half_j: array[float]

    @classmethod
    def empty(cls) -> TrailPart:
        return cls(array("d"), array("d"), array("d"))

    @classmethod
    def unpacked(cls, body: bytes) -> TrailPart:
        """Return the energies in the stored form. Raises ValueError for a damaged one."""
        values = array("d")
        values.frombytes(body)
        if sys.byteorder == "big":
            values.byteswap()
        count, left = divmod(len(values), len(cls._fields))
        if left:
            raise ValueError(f"energies of a GPU are damaged: {len(values)} numbers")
        return cls(*(values[at * count : (at + 1) * count] for at in range(len(cls._fields))))

    def packed(self) -> bytes:
        """Return all times, all energies and all half-widths as little endian doubles."""
        values = self.times_s + self.joules + self.half_j
        if sys.byteorder == "big":
            values.byteswap()
        return values.tobytes()

    def moved(self, seconds: float) -> TrailPart:
        """Return the energies at times that are later by `seconds`, to the millisecond."""
        times_s = array("d", [round(each + seconds, 3) for each in self.times_s])
        return self._replace(times_s=times_s)

    def plus(self, other: TrailPart) -> TrailPart:
        """Return the energies with those of another part that are later."""
        last_s = self.times_s[-1] if self.times_s else -math.inf
        first = bisect_right(other.times_s, last_s)
        return TrailPart(*(own + new[first:] for own, new in zip(self, other, strict=True)))


class EnergyTrail:
    """Energies of a device at multiples of STEP_S of CLOCK_BOOTTIME, read after the polls of their
    time have settled, up to now.

    The power between two energies that are further apart is a mean: the device was not polled then,
    or its polls were discarded before they were read. `known` has energies that a previous
    exporter read.
    """

    def __init__(self, meter: DeviceMeter, known: TrailPart | None = None) -> None:
        self._meter = meter
        self._known = known or TrailPart.empty()
        self.saved_s = self.last_s
        """Last instant whose energy is saved."""

    @property
    def is_polled(self) -> bool:
        """True once the device was polled, by this exporter or the one before."""
        return self._meter.latest is not None or bool(self._known.times_s)

    @property
    def begin_s(self) -> float:
        """First instant whose energy is kept, inf without any."""
        return self._known.times_s[0] if self._known.times_s else math.inf

    @property
    def last_s(self) -> float:
        """Last instant whose energy is kept, -inf without any."""
        return self._known.times_s[-1] if self._known.times_s else -math.inf

    @property
    def _polls_from_s(self) -> float:
        """Time from which the polls are kept; without any, the last instant that was read."""
        polls = self._meter.polls
        if not polls:
            return self.last_s
        return polls[0].poll.after_s + (MARGIN_S if polls.has_discarded(-math.inf) else 0.0)

    def read(self, now_s: float) -> None:
        """Keep the energies since the last one, up to the time that has settled."""
        latest = self._meter.latest
        if latest is None:
            return
        until_s = min(now_s - self._meter.settling_s(), latest.after_s)
        polls_s = [item.poll.after_s for item in self._meter.polls]
        from_s = max(self.last_s + STEP_S, self._polls_from_s)
        pauses = [each for each in pairwise(polls_s) if _is_pause(*each)]
        for step in range(math.ceil(from_s / STEP_S), math.floor(until_s / STEP_S) + 1):
            t_s = step * STEP_S
            if not any(begin_s < t_s < end_s for begin_s, end_s in pauses):
                self._add(t_s)

    def _add(self, t_s: float) -> None:
        joules, half_j = self._meter.energy_at(t_s)
        self._known.times_s.append(t_s)
        self._known.joules.append(joules)
        self._known.half_j.append(half_j)

    def forget(self, before_s: float) -> None:
        """Forget the energies before an instant, but for the last one of them."""
        first = bisect_right(self._known.times_s, before_s) - 1
        if first > 0:
            for each in self._known:
                del each[:first]

    def after(self, t_s: float) -> TrailPart:
        """Return the energies after an instant."""
        first = bisect_right(self._known.times_s, t_s)
        return TrailPart(*(each[first:] for each in self._known))

    def pauses_s(self, since_s: float) -> Iterable[tuple[float, float]]:
        """Yield begin and end of the times that end after an instant and have a mean power only."""
        times_s = self._known.times_s
        for begin_s, end_s in pairwise(times_s[max(0, bisect_right(times_s, since_s) - 1) :]):
            if _is_pause(begin_s, end_s):
                yield begin_s, end_s

    def energy_at(self, times_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the energy at rising instants (K,), and its half-widths, by the polls as far as
        they are kept.
        """
        import numpy as np

        polls_from_s = self._polls_from_s
        new = int(np.searchsorted(times_s, polls_from_s))
        found = [self._meter.energy_at(t_s) for t_s in times_s[new:].tolist()]
        new_j, new_half_j = np.array(found).reshape(-1, 2).T
        if not new:
            return new_j, new_half_j
        old_j, old_half_j = self._energy_before_polls(times_s[:new], polls_from_s)
        return np.append(old_j, new_j), np.append(old_half_j, new_half_j)

    def _energy_before_polls(
        self, times_s: FloatArray, polls_from_s: float
    ) -> tuple[FloatArray, FloatArray]:
        """Interpolate the energies that were read. Where two are further apart than STEP_S, the
        power between them was 0 to the most that the device can have.
        """
        import numpy as np

        known_s, known_j, known_half_j = (np.array(each) for each in self._known)
        until = int(np.searchsorted(known_s, polls_from_s))
        joules, half_j = self._meter.energy_at(polls_from_s)
        known_s = np.append(known_s[:until], polls_from_s)
        known_j = np.maximum.accumulate(np.append(known_j[:until], joules))
        known_half_j = np.append(known_half_j[:until], half_j)
        found_j = np.interp(times_s, known_s, known_j)
        found_half_j = np.interp(times_s, known_s, known_half_j)
        if until:
            end = np.clip(np.searchsorted(known_s, times_s), 1, until)
            begin_s = known_s[end - 1]
            end_s = known_s[end]
            begin_j = known_j[end - 1]
            end_j = known_j[end]
            most_w = self._meter.most_w
            above_j = np.minimum(end_j, begin_j + most_w * (times_s - begin_s)) - found_j
            below_j = found_j - np.maximum(begin_j, end_j - most_w * (end_s - times_s))
            is_wide = (times_s > begin_s) & (end_s > begin_s + 1.5 * STEP_S)
            doubt_j = np.maximum(np.maximum(above_j, below_j), 0.0)
            found_half_j = found_half_j + np.where(is_wide, doubt_j, 0.0)
        return found_j, found_half_j


def _is_pause(begin_s: float, end_s: float) -> bool:
    return end_s > begin_s + PAUSE_S


def pause_overlaps_s(
    trails: Iterable[EnergyTrail], begins_s: FloatArray, ends_s: FloatArray
) -> FloatArray:
    """Return the seconds between N begins and ends in which a device has a mean power only."""
    import numpy as np

    total_s = np.zeros(len(begins_s))
    if not len(begins_s):
        return total_s
    until_s = -math.inf
    first_s = float(begins_s.min())
    for begin_s, end_s in sorted(each for trail in trails for each in trail.pauses_s(first_s)):
        own_s = max(begin_s, until_s)  # without the time of another device
        total_s += np.maximum(np.minimum(ends_s, end_s) - np.maximum(begins_s, own_s), 0.0)
        until_s = max(until_s, end_s)
    return total_s

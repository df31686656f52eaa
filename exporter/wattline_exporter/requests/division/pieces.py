"""Exact integrals over slots for many overlapping intervals, in linear time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


def amounts_at(
    index: IntArray | npt.NDArray[np.int32], amount: FloatArray, length: int
) -> FloatArray:
    """Return the sums of the amounts by index, (length,)."""
    return np.bincount(index, amount, minlength=length).astype(np.float64)


def time_order(t_s: FloatArray) -> IntArray:
    """Return the order of N times: a radix sort by 65,536 parts of their range, then one within
    these parts.
    """
    first_s, last_s = t_s.min(), t_s.max()
    parts = ((t_s - first_s) * (65_535 / max(last_s - first_s, 1e-9))).astype(np.uint16)
    roughly = np.argsort(parts, kind="stable")
    order: IntArray = roughly[np.argsort(t_s[roughly], kind="stable")]
    return order


def shared_joules(
    edges_s: FloatArray, power_w: FloatArray, begin_s: FloatArray, end_s: FloatArray
) -> FloatArray:
    """Return the energy of N intervals within the edges: at each instant, they share the power of
    the slot equally.

    `power_w` (K,) is the power of the K slots.
    """
    joules, (first_s, last_s) = np.zeros(len(begin_s)), (edges_s[0], edges_s[-1])
    (kept,) = np.nonzero((begin_s < end_s) & (begin_s < last_s) & (end_s > first_s))
    begin_s, end_s = begin_s[kept], end_s[kept]
    begins, ends = (
        begin_s > first_s,
        end_s < last_s,
    )  # instants within the edges; only these are sorted
    inner_begins_s, inner_ends_s = begin_s[begins], end_s[ends]
    counts = len(edges_s), len(inner_begins_s), len(inner_ends_s)
    t_s = np.concatenate([edges_s, inner_begins_s, inner_ends_s])
    order = time_order(t_s)
    change = np.repeat(np.array([0, 1, -1], dtype=np.int32), counts)
    number = np.cumsum(change[order], dtype=np.int32)[:-1] + (len(kept) - counts[1])
    slot = np.cumsum(order < counts[0], dtype=np.int32)[:-1] - 1
    watts = np.where(number > 0, power_w.take(slot, mode="clip"), 0.0) / np.maximum(number, 1)
    total_j = np.empty(len(t_s))
    total_j[order] = np.concatenate([[0.0], np.cumsum(watts * np.diff(t_s[order]))])
    edges_j, begins_j, ends_j = np.split(total_j, np.cumsum(counts[:2]))
    shared_j = np.full(len(kept), edges_j[-1])
    shared_j[ends] = ends_j
    shared_j[begins] -= begins_j
    joules[kept] = shared_j
    return joules


def with_slots(loads: FloatArray, slots: int) -> FloatArray:
    """Return the loads with slots of 0 up to their number."""
    return np.pad(loads, ((0, 0), (0, max(0, slots - loads.shape[1]))))


@dataclass(frozen=True, slots=True)
class Pieces:
    """Intervals of requests within the slots; `first` and `final` are the slots of their begin and
    end.
    """

    request: IntArray
    begin_s: FloatArray
    end_s: FloatArray
    first: IntArray
    final: IntArray

    @classmethod
    def within(
        cls, edges_s: FloatArray, begin_s: FloatArray, end_s: FloatArray, request: IntArray
    ) -> Pieces:
        """Return the parts of the intervals that lie in the slots."""
        begin, end = np.maximum(begin_s, edges_s[0]), np.minimum(end_s, edges_s[-1])
        kept = end > begin
        begin, end = begin[kept], end[kept]
        last_slot = len(edges_s) - 2
        return cls(
            request[kept],
            begin,
            end,
            np.clip(np.searchsorted(edges_s, begin, side="right") - 1, 0, last_slot),
            np.clip(np.searchsorted(edges_s, end, side="left") - 1, 0, last_slot),
        )

    def totals(
        self, edges_s: FloatArray, rate: FloatArray, slope: FloatArray | None = None
    ) -> FloatArray:
        """Return the integral over each slot of the sum of all rates.

        `rate` has the rate of each piece at its begin, `slope` its rise per second.
        """
        slots = len(edges_s) - 1
        rise = np.zeros_like(rate) if slope is None else slope
        inner_rate = self._between(rate - rise * self.begin_s, slots)
        inner_rise = self._between(rise, slots)
        widths, middles = np.diff(edges_s), (edges_s[1:] + edges_s[:-1]) / 2
        total = widths * (inner_rate + inner_rise * middles)
        same = self.first == self.final
        for slot, begin, end in (
            (self.first, self.begin_s, np.minimum(self.end_s, edges_s[self.first + 1])),
            (self.final, edges_s[self.final], np.where(same, edges_s[self.final], self.end_s)),
        ):
            mean = rate + rise * ((begin + end) / 2 - self.begin_s)
            total += amounts_at(slot, mean * (end - begin), slots)
        total[self.counts(slots) == 0] = 0.0  # instead of the rounding errors of the sums
        return total

    def counts(self, slots: int) -> IntArray:
        """Return the number of pieces in each slot, (slots,)."""
        change = np.bincount(self.first, minlength=slots + 1) - np.bincount(
            self.final + 1, minlength=slots + 1
        )
        number: IntArray = np.cumsum(change)[:slots]
        return number

    def whole_counts(self, edges_s: FloatArray) -> IntArray:
        """Return the number of pieces that last for the whole of each slot."""
        slots = len(edges_s) - 1
        first = self.first + (self.begin_s > edges_s[self.first])
        after = self.final + (self.end_s >= edges_s[self.final + 1])
        kept = after > first
        change = np.bincount(first[kept], minlength=slots + 1) - np.bincount(
            after[kept], minlength=slots + 1
        )
        number: IntArray = np.cumsum(change)[:slots]
        return number

    def _between(self, amount: FloatArray, slots: int) -> FloatArray:
        """Return for each slot the sum of the amounts of the pieces that fill it."""
        filled = self.final > self.first + 1
        change = amounts_at(self.first[filled] + 1, amount[filled], slots + 1)
        change -= amounts_at(self.final[filled], amount[filled], slots + 1)
        summed: FloatArray = np.cumsum(change)[:slots]
        return summed


class Density:
    """A density that is constant in each slot, integrated over pieces."""

    def __init__(self, edges_s: FloatArray, per_second: FloatArray) -> None:
        self._edges_s, self._density = edges_s, per_second
        self._integral = np.concatenate([[0.0], np.cumsum(per_second * np.diff(edges_s))])
        self._moment = np.concatenate([[0.0], np.cumsum(per_second * np.diff(edges_s**2) / 2)])

    def integral(self, pieces: Pieces) -> FloatArray:
        """Return the integral of the density over each piece."""
        return self._integral_to(pieces.final, pieces.end_s) - self._integral_to(
            pieces.first, pieces.begin_s
        )

    def moment(self, pieces: Pieces) -> FloatArray:
        """Return the integral over each piece of the density times the time since the piece's
        begin.
        """
        moment = self._moment_to(pieces.final, pieces.end_s) - self._moment_to(
            pieces.first, pieces.begin_s
        )
        result: FloatArray = moment - pieces.begin_s * self.integral(pieces)
        return result

    def _integral_to(self, slot: IntArray, t: FloatArray) -> FloatArray:
        result: FloatArray = self._integral[slot] + self._density[slot] * (t - self._edges_s[slot])
        return result

    def _moment_to(self, slot: IntArray, t: FloatArray) -> FloatArray:
        result: FloatArray = (
            self._moment[slot] + self._density[slot] * (t**2 - self._edges_s[slot] ** 2) / 2
        )
        return result

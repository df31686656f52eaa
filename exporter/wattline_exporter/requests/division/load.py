"""Load of a server in slots of time: prefill tokens, attended context and decode steps of the
requests in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wattline_exporter.requests.division.pace import Pace, PrefillClock, pace_of, union
from wattline_exporter.requests.division.pieces import (
    Density,
    FloatArray,
    IntArray,
    Mask,
    Pieces,
    amounts_at,
    shared_joules,
)
from wattline_exporter.requests.division.spans import (
    EDGE_FACTOR,
    LEAST_PHASE_S,
    LEAST_PREFILLED_S,
    LEAST_TOKEN_S,
    EnergySlots,
    RequestSpans,
    token_rate,
)

TERMS = ("prefill_token", "context_token", "decode_step", "generated_token")
"""Terms of the energy model: a prefilled token, a token of context that a generated token attends
to, a step of all requests in progress, which they share equally, and a generated token.
"""
BLOCK_SLOTS = 2_048
SCATTER_FACTOR, PLACE_RATIO = 0.45, 0.32
"""Standard error of a request's energy in a slot, as parts of the difference to the model and, if
all of its requests begin or end in it, of its mean share.
"""
_LEAST_MODELLED = 1e-4
"""Least part of the energy of a slot that the model has to explain; less may be rounding errors of
its terms.
"""


@dataclass(frozen=True, slots=True)
class DividedEnergy:
    """Joules of N requests: dynamic energy of prefill and decode, and idle energy by time in
    flight.
    """

    prefill_j: FloatArray
    decode_j: FloatArray
    idle_j: FloatArray

    @property
    def dynamic_j(self) -> FloatArray:
        return self.prefill_j + self.decode_j


class LoadBlock:
    """Requests within up to BLOCK_SLOTS slots. Times are relative to the first edge, so that no
    digits are lost.

    Decodes are on a clock that is slower during prefills, on which the tokens of a request are
    generated evenly.
    """

    def __init__(
        self, spans: RequestSpans, pace: Pace, slots: EnergySlots, first: int, final: int
    ) -> None:
        origin_s = slots.edges_s[first]
        edges_s = slots.edges_s[first : final + 1] - origin_s
        near = np.flatnonzero(
            (spans.ended_s > origin_s) & (spans.arrived_s < origin_s + edges_s[-1])
        )
        all_spans, spans = spans, spans.take(near)
        arrived_s, started_s = (
            spans.arrived_s - origin_s,
            spans.prefill_starts_s(pace.prefill_speed) - origin_s,
        )
        begun_s = np.maximum(spans.first_token_s - origin_s, started_s)
        ended_s = np.maximum(spans.ended_s - origin_s, begun_s)
        index = np.arange(len(near))
        self.requests = near
        """Positions of the block's requests, (n,)."""
        self.final = final
        """Slot after the last one of the block."""
        self.ended = spans.ended_s <= slots.edges_s[final]
        """Mask of the requests that end in the block, (n,)."""
        self.slots = slice(first, final)
        """Positions of the block's slots."""
        self._edges_s, self._widths_s = edges_s, np.diff(edges_s)
        self._flight = Pieces.within(edges_s, arrived_s, ended_s, index)
        self._prefill = Pieces.within(edges_s, started_s, begun_s, index)
        prefill_rate = token_rate(spans.prefilled_tokens, begun_s - started_s, LEAST_PREFILLED_S)
        self._prefill_rate = prefill_rate[self._prefill.request]
        self.covered_s = union_s(arrived_s, ended_s, edges_s)
        """Seconds of each slot in which a request is in flight, (K,)."""
        clock = _prefill_clock(all_spans, spans, pace, origin_s)
        self._paced_s, begun_s, ended_s = (
            clock.paced_s(times_s, pace.slowdown) for times_s in (edges_s, begun_s, ended_s)
        )
        paced_widths_s = np.diff(self._paced_s)
        self._slowdown = pace.slowdown
        self._decode = Pieces.within(self._paced_s, begun_s, ended_s, index)
        rate = token_rate(
            np.maximum(spans.generated_tokens - 1.0, 0.0), ended_s - begun_s, LEAST_TOKEN_S
        )
        rate = rate[self._decode.request]
        before = rate * (self._decode.begin_s - begun_s[self._decode.request])
        self._token_rate = rate
        self._context_rate = rate * (spans.prompt_tokens[self._decode.request] + before)
        self._context_slope = rate**2
        self._in_flight_s = self._flight.totals(edges_s, np.ones(len(self._flight.request)))
        self._idle_w = slots.idle_j[self.slots] / self._widths_s
        decoding_s = self._decode.totals(self._paced_s, np.ones(len(rate)))
        prefilling_s = self._prefill.totals(edges_s, np.ones(len(self._prefill.request)))
        self._active_s = decoding_s + (1.0 - pace.slowdown) * prefilling_s
        tokens = self._decode.totals(self._paced_s, rate)
        steps = steps_of(tokens, decoding_s, prefilling_s, paced_widths_s, pace)
        self.terms = np.column_stack(
            [
                self._prefill.totals(edges_s, self._prefill_rate),
                self._decode.totals(self._paced_s, self._context_rate, self._context_slope),
                steps,
                tokens,
            ]
        )
        """Amount of each term in each slot, (K, 4)."""

    @property
    def busy(self) -> Mask:
        """Mask of the slots with a request in flight, (K,)."""
        return self._in_flight_s >= LEAST_PHASE_S

    @property
    def flight_s(self) -> float:
        """Time in flight within the slots, summed over the requests."""
        return float(self._in_flight_s.sum())

    def dynamic_j(self, slots: EnergySlots) -> FloatArray:
        """Return the energy above idle of the requests in each slot, (K,)."""
        return np.where(
            self.busy, slots.dynamic_j(self._widths_s - self.covered_s, self.slots), 0.0
        )

    def divide(
        self, slots: EnergySlots, joules_of: FloatArray, like: FloatArray | None = None
    ) -> DividedEnergy:
        """Divide the energy of the slots among the requests of the block; `joules_of` (4,) are the
        joules of TERMS.

        In each slot the dynamic energy is divided as the model says, scaled to the energy that was
        measured; where the model `like` (4,) has no load, by the time in flight. By default, it is
        the same.
        """
        dynamic_j = self.dynamic_j(slots)
        modelled = modelled_slots(self.terms @ (joules_of if like is None else like), dynamic_j)
        scale = quotient(dynamic_j, np.where(modelled, self.terms @ joules_of, 0.0))
        unmodelled_j = np.where(modelled, 0.0, dynamic_j)
        waiting = Density(self._edges_s, quotient(unmodelled_j, self._in_flight_s))
        count = len(self.requests)
        prefill_j, decode_j = self._modelled(joules_of, scale)
        prefill_j += _by_request(self._flight, waiting.integral(self._flight), count)
        return DividedEnergy(prefill_j, decode_j, self._shared_idle_j)

    @cached_property
    def _shared_idle_j(self) -> FloatArray:
        """Idle energy of each request, (n,): at each instant, the requests in flight have equal
        parts of the power.
        """
        flight = self._flight
        joules = shared_joules(self._edges_s, self._idle_w, flight.begin_s, flight.end_s)
        return _by_request(flight, joules, len(self.requests))

    def scatter_j2(self, slots: EnergySlots, joules_of: FloatArray) -> FloatArray:
        """Return the variance of each request's energy by the scaling to the measured energies,
        (n,).

        That of each slot counts with the request's share of the modelled energy.
        """
        model_j = self.terms @ joules_of
        dynamic_j = self.dynamic_j(slots)
        counts, whole = self._flight.counts(len(model_j)), self._flight.whole_counts(self._edges_s)
        variance_j2 = slot_variance_j2(dynamic_j, model_j, counts, whole)
        modelled_j = np.where(modelled_slots(model_j, dynamic_j), model_j, 0.0)
        prefill, decode = self._modelled(joules_of, quotient(variance_j2, modelled_j))
        return np.maximum(prefill + decode, 0.0)

    def meter_j2(self, slots: EnergySlots, shares: DividedEnergy) -> FloatArray:
        """Return the variance of each request's energy by errors of the meter, (n,).

        A request has its share of the errors at its begin and at its end, which are independent,
        and of the noise in each of its slots. One within a slot has a part of that slot.
        """
        if not slots.noise_j and slots.edge_half_j is None:
            return np.zeros(len(self.requests))
        flight, count = self._flight, len(self.requests)
        joules, idle_j = slots.joules[self.slots], slots.idle_j[self.slots]
        variance_j2 = (flight.final - flight.first + 1) * slots.noise_j**2
        if slots.edge_half_j is not None:
            half_j = slots.edge_half_j[self.slots.start : self.slots.stop + 1]
            near_j2 = slot_edges_j2(joules, idle_j, half_j, self.covered_s / self._widths_s)
            variance_j2 += np.where(flight.begin_s > self._edges_s[0], near_j2[flight.first], 0.0)
            variance_j2 += np.where(flight.end_s < self._edges_s[-1], near_j2[flight.final], 0.0)
        part = quotient(flight.end_s - flight.begin_s, self.covered_s[flight.first])
        part = np.where(flight.first == flight.final, np.minimum(part, 1.0), 1.0)
        meter = Density(self._edges_s, np.maximum(joules, 0.0) / self._widths_s)
        meter_j = _by_request(flight, meter.integral(flight), count)
        share = np.minimum(quotient(shares.dynamic_j + shares.idle_j, meter_j), 1.0)
        return share**2 * _by_request(flight, part**2 * variance_j2, count)

    def _modelled(self, joules_of: FloatArray, scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the modelled joules of prefill and decode of each request, times the scale of each
        slot (K,).
        """
        prefill = Density(self._edges_s, scale * joules_of[0])
        context = Density(self._paced_s, scale * joules_of[1])
        token = Density(self._paced_s, scale * joules_of[3])
        step_w = quotient(scale * joules_of[2] * self.terms[:, 2], self._active_s)
        step, paced_step = (
            Density(self._edges_s, (1.0 - self._slowdown) * step_w),
            Density(self._paced_s, step_w),
        )
        count = len(self.requests)
        prefill_j = _by_request(
            self._prefill,
            self._prefill_rate * prefill.integral(self._prefill) + step.integral(self._prefill),
            count,
        )
        decode_j = _by_request(
            self._decode,
            self._context_rate * context.integral(self._decode)
            + self._context_slope * context.moment(self._decode)
            + self._token_rate * token.integral(self._decode)
            + paced_step.integral(self._decode),
            count,
        )
        return prefill_j, decode_j


def load_blocks(
    spans: RequestSpans, slots: EnergySlots, pace: Pace | None = None
) -> Iterator[LoadBlock]:
    """Yield the load of consecutive slots, block by block; `pace` is the server's, if it is
    known.
    """
    pace = pace or pace_of(spans)
    total = len(slots.joules)
    for first in range(0, total, BLOCK_SLOTS):
        yield LoadBlock(spans, pace, slots, first, min(first + BLOCK_SLOTS, total))


def _prefill_clock(
    spans: RequestSpans, near: RequestSpans, pace: Pace, origin_s: float
) -> PrefillClock:
    """Return the clock of all prefills during the requests `near`."""
    if not pace.slowdown or not len(near):
        return PrefillClock(np.empty(0), np.empty(0))
    first_s, last_s = near.arrived_s.min(), near.ended_s.max()
    during = spans.take(
        np.flatnonzero((spans.first_token_s > first_s) & (spans.arrived_s < last_s))
    )
    return PrefillClock(
        during.prefill_starts_s(pace.prefill_speed) - origin_s, during.first_token_s - origin_s
    )


def _by_request(pieces: Pieces, amount: FloatArray, count: int) -> FloatArray:
    return amounts_at(pieces.request, amount, count)


def steps_of(
    tokens: FloatArray,
    decoding_s: FloatArray,
    prefilling_s: FloatArray,
    widths_s: FloatArray,
    pace: Pace,
) -> FloatArray:
    """Return the steps in each slot; decodes and widths are on the clock of decode.

    Steps of prefills are as frequent on this clock, which runs slower then. Without a slowdown,
    they are not known.
    """
    if not pace.slowdown:
        return quotient(tokens, decoding_s) * np.minimum(decoding_s, widths_s)
    rate = np.where(decoding_s > 0.0, quotient(tokens, decoding_s), pace.steps_per_s)
    steps: FloatArray = rate * np.minimum(
        decoding_s + (1.0 - pace.slowdown) * prefilling_s, widths_s
    )
    return steps


def modelled_slots(model_j: FloatArray, dynamic_j: FloatArray) -> Mask:
    """Return the mask of the slots whose energy the model explains, except for a factor."""
    result: Mask = model_j > _LEAST_MODELLED * dynamic_j
    return result


def slot_variance_j2(
    dynamic_j: FloatArray, model_j: FloatArray, counts: IntArray, whole: IntArray
) -> FloatArray:
    """Return the variance of the energy of the requests in each slot; of a single request, the
    energy is known.

    The difference to the model may be that of one request. The order of those that begin or end
    within a slot, all but `whole` of them, decides how many share each step.
    """
    count = np.maximum(counts, 1)
    place_j2 = (PLACE_RATIO * dynamic_j / count) ** 2 * (1.0 - whole / count)
    one_j2 = (SCATTER_FACTOR * (dynamic_j - model_j)) ** 2 + place_j2
    result: FloatArray = one_j2 * (1.0 - 1.0 / count)
    return result


def slot_edges_j2(
    joules: FloatArray, idle_j: FloatArray, half_j: FloatArray, busy: FloatArray
) -> FloatArray:
    """Return the variance of the meter at an edge of each slot, by the half-widths of the edges (K
    + 1).

    `busy` (K,) is the part of each slot with requests: with this probability, the power at an edge
    is theirs.
    """
    ratio = quotient(idle_j + quotient(joules - idle_j, busy), joules)
    near_j2 = np.maximum(half_j[1:], half_j[:-1]) ** 2 * np.maximum(ratio**2 * busy, 1.0)
    result: FloatArray = EDGE_FACTOR**2 * near_j2
    return result


def quotient(amount: FloatArray, divisor: FloatArray) -> FloatArray:
    """Return amount / divisor, 0 where the divisor is 0."""
    return np.divide(amount, divisor, out=np.zeros_like(amount), where=divisor > 0.0)


def union_s(begin_s: FloatArray, end_s: FloatArray, edges_s: FloatArray) -> FloatArray:
    """Return the seconds of each slot in which an interval holds."""
    begins_s, ends_s = union(begin_s, end_s)
    pieces = Pieces.within(edges_s, begins_s, ends_s, np.arange(len(begins_s)))
    return pieces.totals(edges_s, np.ones(len(pieces.request)))

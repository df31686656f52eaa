"""Loads of slots, and energies of requests as integrals over them.

A request enters twice: as load of the slots when it is reported, and when it is divided, as the
difference of running integrals at its arrival, first token and end. Requests in progress cost
nothing, however many slots they last.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from wattline.figures import NORMAL_95
from wattline_exporter.requests.division.arrays import (
    FloatArray,
    IntArray,
    Mask,
    amounts_at,
    quotient,
    time_order,
)
from wattline_exporter.requests.division.half_widths import ERRORS
from wattline_exporter.requests.division.model import OTHER_FIT, EnergyModel
from wattline_exporter.requests.division.pace import Pace, RequestPhases, SlotEdges, union_s
from wattline_exporter.requests.division.spans import EDGE_FACTOR, LEAST_PHASE_S, EnergySlots

LOADS = 8
PREFILL, CONTEXT, TOKENS, DECODING_S, PREFILLING_S, FLIGHT_S, COUNT, FILLED = range(LOADS)
"""Rows of the load of slots: prefilled tokens, tokens of context, generated tokens, seconds of
decode on its clock, of prefill, and in flight, the number of requests, and of those that last for
the whole slot.
"""
_LOADS_OF = {
    PREFILLING_S: [[PREFILL], [PREFILLING_S]],
    DECODING_S: [[CONTEXT], [TOKENS], [DECODING_S]],
    FLIGHT_S: [[each] for each in range(LOADS)],
}
"""Rows of the loads in each phase, by the row of its time."""
_SCATTER = 1 + ERRORS
_VARIANTS = _SCATTER + 1
"""Sums of joules: of the fit, its signed errors, and the variance of the scaling."""
SCATTER_FACTOR = 0.45
PLACE_RATIO = 0.32
"""Standard error of a request's energy in a slot, as parts of the difference to the model and, if
all of its requests begin or end in it, of its mean share.
"""
_LEAST_MODELLED = 1e-4
"""Least part of the energy of a slot that the model has to explain; less may be rounding errors of
its terms.
"""
_KINDS = 6
"""Joules per prefilled token, second of prefill, second in flight, and on the clock of decode, per
token of context, generated token and second.
"""
_REAL = 3 * _VARIANTS
_METER, _EDGE, _COVERED, _NOISE = (_KINDS * _VARIANTS + k for k in range(4))
RATES = _KINDS * _VARIANTS + 4
"""Joules per load of each variant, power, variance of edges, time with requests, and variance of
the noise per second.
"""
_LOAD_OF_KIND = PREFILL, PREFILLING_S, FLIGHT_S, CONTEXT, TOKENS, DECODING_S
"""Rows of the loads of the kinds of joules."""


class _Instants:
    """Instants (N,) in seconds since the first edge, by slot."""

    def __init__(self, t_s: FloatArray, edges_s: FloatArray, slot: IntArray) -> None:
        self.slot = slot
        self._edges_s = edges_s
        self.edge_s = edges_s.take(slot)
        self.into_s = t_s - self.edge_s

    @cached_property
    def moment(self) -> FloatArray:
        """Integral of the time from the begin of the slot to the instant."""
        return self.into_s * (self.edge_s + self.into_s / 2)

    def steps(self, rate: FloatArray | None = None) -> FloatArray:
        """Return for each slot the integral of rates that hold from the instants on; None for 1
        each.
        """
        widths_s = np.diff(self._edges_s)
        slots = len(self._edges_s) - 1
        left_s = widths_s.take(self.slot) - self.into_s
        within = amounts_at(self.slot, left_s if rate is None else rate * left_s, slots)
        risen = np.bincount(self.slot, rate, minlength=slots).astype(np.float64)
        return within + widths_s * (np.cumsum(risen) - risen)

    def ramps(self, slope: FloatArray) -> FloatArray:
        """Return for each slot the integral of slope · t from the instants on."""
        slots = len(self._edges_s) - 1
        full = np.diff(self._edges_s**2) / 2
        within = amounts_at(self.slot, slope * (full.take(self.slot) - self.moment), slots)
        risen = amounts_at(self.slot, slope, slots)
        return within + full * (np.cumsum(risen) - risen)


class _Points:
    """Instants of the phases, by slot. Instants at the last edge are in a slot after it, without
    width.

    An instant is in the same slot on both clocks: that of decode is slower, but does not stop.
    """

    def __init__(self, phases: RequestPhases, edges: SlotEdges) -> None:
        def at(t_s: FloatArray) -> _Instants:
            return _Instants(t_s, edges.real_s, edges.slots_at(t_s))

        self.arrived, self.started = at(phases.arrived_s), at(phases.started_s)
        self.begun, self.ended = at(phases.begun_s), at(phases.ended_s)
        self.decode_begun = _Instants(phases.decode_begun_s, edges.paced_s, self.begun.slot)
        self.decode_ended = _Instants(phases.decode_ended_s, edges.paced_s, self.ended.slot)


def slot_loads(phases: RequestPhases, edges: SlotEdges) -> FloatArray:
    """Return the loads (8, K) of requests that end before the last edge of K slots."""
    at = _Points(phases, edges)
    rate = phases.token_rate
    at_edge = phases.token_rate * phases.context
    slope = phases.token_rate**2
    context = at.decode_begun.steps(at_edge) - at.decode_ended.steps(at_edge)
    context += at.decode_begun.ramps(slope) - at.decode_ended.ramps(slope)
    counts, filled = _counts(at.arrived, at.ended, edges.count)
    loads = np.array(
        [
            at.started.steps(phases.prefill_rate) - at.begun.steps(phases.prefill_rate),
            context,
            at.decode_begun.steps(rate) - at.decode_ended.steps(rate),
            at.decode_begun.steps() - at.decode_ended.steps(),
            at.started.steps() - at.begun.steps(),
            at.arrived.steps() - at.ended.steps(),
            counts,
            filled,
        ]
    )
    for seconds, rows in _LOADS_OF.items():  # instead of the rounding errors of the sums
        loads[rows, loads[seconds] < LEAST_PHASE_S] = 0.0
    np.maximum(loads, 0.0, out=loads)
    return loads


def _counts(arrived: _Instants, ended: _Instants, slots: int) -> tuple[IntArray, IntArray]:
    """Return for each slot the number of requests in flight, and of those that last for the whole
    slot.
    """
    first_whole = arrived.slot + (arrived.into_s > 0)
    after = ended.slot + (ended.into_s > 0)
    lasts = ended.edge_s + ended.into_s > arrived.edge_s + arrived.into_s
    whole = ended.slot > first_whole
    in_flight, filled = (
        np.bincount(first[kept], minlength=slots + 1)
        - np.bincount(final[kept], minlength=slots + 1)
        for first, final, kept in ((arrived.slot, after, lasts), (first_whole, ended.slot, whole))
    )
    return np.cumsum(in_flight)[:slots], np.cumsum(filled)[:slots]


def load_terms(loads: FloatArray, edges: SlotEdges) -> FloatArray:
    """Return the terms of the model (K, 4) of slots with these loads."""
    phases = loads[TOKENS], loads[DECODING_S], loads[PREFILLING_S]
    steps = steps_of(*phases, np.diff(edges.paced_s), edges.pace)
    return np.column_stack([loads[PREFILL], loads[CONTEXT], steps, loads[TOKENS]])


def covered_s(
    loads: FloatArray, flights_s: tuple[FloatArray, FloatArray], edges: SlotEdges
) -> FloatArray:
    """Return the seconds of each slot in which a request is in flight, of the begins and ends of
    all such requests.
    """
    if ((loads[COUNT] > 0) == (loads[FILLED] > 0)).all():
        return np.where(loads[COUNT] > 0, np.diff(edges.real_s), 0.0)
    return union_s(*flights_s, edges.real_s)


def joules_per_load(
    loads: FloatArray,
    edges: SlotEdges,
    slots: EnergySlots,
    covered: FloatArray,
    model: EnergyModel | None,
) -> FloatArray:
    """Return the joules per load in each slot, (RATES, K)."""
    terms = load_terms(loads, edges)
    busy = loads[COUNT] > 0
    idle_j = slots.idle_j
    flight_s = loads[FLIGHT_S]
    dynamic_j = np.where(busy, slots.dynamic_j(slots.widths_s - covered), 0.0)
    rates = np.zeros((_KINDS, _VARIANTS, len(dynamic_j)))
    speed = 1.0 - edges.pace.slowdown
    per_active = quotient(terms[:, 2], loads[DECODING_S] + speed * loads[PREFILLING_S])

    def scaled(joules_of: FloatArray, scale: FloatArray, rest_j: FloatArray) -> FloatArray:
        prefill, context, step, token = (scale * each for each in joules_of)
        step = step * per_active
        return np.array([prefill, speed * step, quotient(rest_j, flight_s), context, token, step])

    def shares(joules_of: FloatArray, modelled: Mask) -> FloatArray:
        scale = quotient(dynamic_j, np.where(modelled, terms @ joules_of, 0.0))
        return scaled(joules_of, scale, np.where(modelled, 0.0, dynamic_j))

    if model is None:
        rates[:, 0] = shares(np.zeros(4), np.zeros(len(busy), dtype=bool))
        rates[:, ERRORS] = rates[:, 0] / NORMAL_95  # a request may have nothing
    else:
        best_j = terms @ model.joules_of
        other_j = terms @ model.fits[OTHER_FIT]
        modelled = modelled_slots(best_j, dynamic_j)
        of_fits = np.array([shares(each, modelled) for each in model.fits])
        of_fits[OTHER_FIT] = shares(model.fits[OTHER_FIT], modelled_slots(other_j, dynamic_j))
        rates[:, 0] = of_fits[0]
        rates[:, 1:_SCATTER] = np.moveaxis(model.errors(of_fits), 0, 1)
        variance_j2 = slot_variance_j2(dynamic_j, best_j, loads[COUNT], loads[FILLED])
        scale = quotient(variance_j2, np.where(modelled, best_j, 0.0))
        rates[:, _SCATTER] = scaled(model.joules_of, scale, np.zeros_like(scale))
    meter_w = np.maximum(slots.joules, 0.0) / slots.widths_s
    half_j = np.zeros(len(meter_w) + 1) if slots.edge_half_j is None else slots.edge_half_j
    others_of = [
        meter_w,
        slot_edges_j2(slots.joules, idle_j, half_j, covered / slots.widths_s),
        covered,
        slots.noise_j**2 / slots.widths_s,
    ]
    return np.concatenate([rates.reshape(_KINDS * _VARIANTS, -1), others_of])


def phase_joules(rates: FloatArray, loads: FloatArray) -> FloatArray:
    """Return the energy above idle of loads (8, K) in each slot, by joules per load (RATES, K): of
    prefill and of decode, each of the fit and its signed errors, (2, 1 + ERRORS, K).
    """
    of_kinds = rates[: _KINDS * _VARIANTS].reshape(_KINDS, _VARIANTS, -1)[:, :_SCATTER]
    joules = of_kinds * loads[[*_LOAD_OF_KIND], np.newaxis]
    result: FloatArray = joules.reshape(2, _KINDS // 2, _SCATTER, -1).sum(axis=1)
    return result


class SummedEnergy(NamedTuple):
    """Joules of N requests: above idle of both phases, signed errors (ERRORS, N), variances by the
    scaling and by the meter, and the energy of all slots of each request.
    """

    prefill_j: FloatArray
    decode_j: FloatArray
    errors_j: FloatArray
    scatter_j2: FloatArray
    meter_j2: FloatArray
    most_j: FloatArray


class RunningIntegrals:
    """Integrals of joules per load (RATES, K) from the first edge of K slots on."""

    def __init__(self, rates: FloatArray, edges: SlotEdges) -> None:
        self._edges = edges
        none = np.zeros((RATES, 1))
        self._rates = np.concatenate([rates, none], axis=1)
        widths_s = np.repeat([np.diff(edges.real_s)], RATES, axis=0)
        widths_s[_REAL:_METER] = np.diff(edges.paced_s)
        self._sums = np.concatenate([none, np.cumsum(rates * widths_s, axis=1)], axis=1)
        moments = np.cumsum(
            rates[_REAL : _REAL + _VARIANTS] * np.diff(edges.paced_s**2) / 2, axis=1
        )
        self._moments = np.concatenate([none[:_VARIANTS], moments], axis=1)
        self._is_used = [bool(each.any()) for each in rates]

    def energy(self, phases: RequestPhases, idle_j: FloatArray) -> SummedEnergy:
        """Return the energies of requests up to the last edge; `idle_j` (N,) are their idle
        energies.
        """
        at = _Points(phases, self._edges)
        at_edge = phases.token_rate * phases.context
        slope = phases.token_rate**2
        joules = np.zeros((_VARIANTS, len(phases.ended_s)))
        prefill_j = np.zeros(len(phases.ended_s))
        for v in range(_VARIANTS):
            prefill, prefilling, flight, context, token, decoding = (
                v + _VARIANTS * k for k in range(_KINDS)
            )
            total = joules[v]
            if self._is_used[prefill]:
                total += phases.prefill_rate * self._between(prefill, at.started, at.begun)
            if self._is_used[prefilling]:
                total += self._between(prefilling, at.started, at.begun)
            if self._is_used[flight]:
                total += self._between(flight, at.arrived, at.ended)
            if v == 0:
                prefill_j = total.copy()
            if self._is_used[decoding]:
                total += self._between(decoding, at.decode_begun, at.decode_ended)
            if self._is_used[context]:
                total += at_edge * self._between(context, at.decode_begun, at.decode_ended)
                total += slope * (
                    self._moment(v, at.decode_ended) - self._moment(v, at.decode_begun)
                )
            if self._is_used[token]:
                total += phases.token_rate * self._between(token, at.decode_begun, at.decode_ended)
        np.maximum(prefill_j, 0.0, out=prefill_j)  # of rounding errors
        decode_j = np.maximum(joules[0] - prefill_j, 0.0)
        first = at.arrived.slot
        after = at.ended.slot + (at.ended.into_s > 0.0)
        final = np.maximum(after - 1, first)
        error_j2 = np.where(phases.is_cut, 0.0, self._rates[_EDGE].take(first))
        error_j2 += np.where(phases.is_open, 0.0, self._rates[_EDGE].take(final))
        error_j2 += self._sums[_NOISE].take(after) - self._sums[_NOISE].take(first)
        part = quotient(phases.ended_s - phases.arrived_s, self._rates[_COVERED].take(first))
        error_j2 *= np.where(first == final, np.minimum(part, 1.0), 1.0) ** 2
        share = quotient(joules[0] + idle_j, self._between(_METER, at.arrived, at.ended))
        meter_j2 = np.minimum(share, 1.0) ** 2 * error_j2
        most_j = self._sums[_METER].take(after) - self._sums[_METER].take(first)
        scatter_j2 = np.maximum(joules[_SCATTER], 0.0)
        return SummedEnergy(prefill_j, decode_j, joules[1:_SCATTER], scatter_j2, meter_j2, most_j)

    def _between(self, row: int, begin: _Instants, end: _Instants) -> FloatArray:
        return self._to(row, end) - self._to(row, begin)

    def _to(self, row: int, instants: _Instants) -> FloatArray:
        sums = self._sums[row].take(instants.slot)
        rates = self._rates[row].take(instants.slot)
        result: FloatArray = sums + rates * instants.into_s
        return result

    def _moment(self, variant: int, instants: _Instants) -> FloatArray:
        rates = self._rates[_REAL + variant].take(instants.slot)
        result: FloatArray = self._moments[variant].take(instants.slot) + rates * instants.moment
        return result


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


def shared_joules(
    edges_s: FloatArray, power_w: FloatArray, begin_s: FloatArray, end_s: FloatArray
) -> FloatArray:
    """Return the energy of N intervals within the edges: at each instant, they share the power of
    the slot equally.

    `power_w` (K,) is the power of the K slots.
    """
    joules = np.zeros(len(begin_s))
    first_s = edges_s[0]
    last_s = edges_s[-1]
    (kept,) = np.nonzero((begin_s < end_s) & (begin_s < last_s) & (end_s > first_s))
    begin_s = begin_s[kept]
    end_s = end_s[kept]
    begins, ends = (
        begin_s > first_s,
        end_s < last_s,
    )  # instants within the edges; only these are sorted
    inner_begins_s = begin_s[begins]
    inner_ends_s = end_s[ends]
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

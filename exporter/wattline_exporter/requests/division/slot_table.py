"""Loads of equal slots, and energies of requests as integrals over them.

A request enters twice: as load of the slots when it is reported, and when it is divided, as the
difference of running integrals at its arrival, first token and end. Requests in progress cost
nothing, however many slots they last.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from wattline.figures import NORMAL_95
from wattline_exporter.requests.division.load import (
    DividedEnergy,
    modelled_slots,
    quotient,
    slot_edges_j2,
    slot_variance_j2,
    steps_of,
    union_s,
)
from wattline_exporter.requests.division.model import OTHER_FIT, EnergyModel
from wattline_exporter.requests.division.pace import RequestPhases, SlotEdges
from wattline_exporter.requests.division.pieces import FloatArray, IntArray, Mask, amounts_at
from wattline_exporter.requests.division.spans import LEAST_PHASE_S, EnergySlots
from wattline_exporter.requests.division.sums import FLOOR_RATIO, guess_j2, variances

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
_VARIANTS = 6
"""Sums of joules: the fit, its variant, slopes of its three terms, and the variance of the scaling.
"""
_SCATTER = 5
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
        self.slot, self._edges_s = slot, edges_s
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
        widths_s, slots = np.diff(self._edges_s), len(self._edges_s) - 1
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
        width_s = edges.real_s[1] if edges.count else 1.0

        def at(t_s: FloatArray) -> _Instants:
            return _Instants(
                t_s, edges.real_s, np.minimum((t_s / width_s).astype(np.intp), edges.count)
            )

        self.arrived, self.started = at(phases.arrived_s), at(phases.started_s)
        self.begun, self.ended = at(phases.begun_s), at(phases.ended_s)
        self.decode_begun = _Instants(phases.decode_begun_s, edges.paced_s, self.begun.slot)
        self.decode_ended = _Instants(phases.decode_ended_s, edges.paced_s, self.ended.slot)


def slot_loads(phases: RequestPhases, edges: SlotEdges) -> FloatArray:
    """Return the loads (8, K) of requests that end before the last edge of K slots."""
    at = _Points(phases, edges)
    rate, at_edge, slope = (
        phases.token_rate,
        phases.token_rate * phases.context,
        phases.token_rate**2,
    )
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
    first_whole, after = arrived.slot + (arrived.into_s > 0), ended.slot + (ended.into_s > 0)
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
    terms, busy, idle_j, flight_s = (
        load_terms(loads, edges),
        loads[COUNT] > 0,
        slots.idle_j,
        loads[FLIGHT_S],
    )
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
        rates[:, :2] = shares(np.zeros(4), np.zeros(len(busy), dtype=bool))[:, np.newaxis]
    else:
        best_j, other_j = terms @ model.joules_of, terms @ model.fits[OTHER_FIT]
        modelled = modelled_slots(best_j, dynamic_j)
        best = shares(model.joules_of, modelled)
        rates[:, 0], rates[:, 1] = (
            best,
            shares(model.fits[OTHER_FIT], modelled_slots(other_j, dynamic_j)),
        )
        for k, (raised, step) in enumerate(
            zip(model.fits[OTHER_FIT + 1 :], model.steps, strict=True), start=2
        ):
            rates[:, k] = (shares(raised, modelled) - best) / step
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


def joules_of_loads(rates: FloatArray, loads: FloatArray) -> FloatArray:
    """Return the energy above idle of loads (8, K) in each slot, by joules per load (RATES, K)."""
    joules: FloatArray = (rates[: _KINDS * _VARIANTS : _VARIANTS] * loads[[*_LOAD_OF_KIND]]).sum(0)
    return joules


class SummedEnergy(NamedTuple):
    """Joules of N requests: of the fit, of its variants (4, N), and squares of the errors of slots
    and edges (N,).

    `most_j` (N,) is the energy of all slots of each request.
    """

    best: DividedEnergy
    variants_j: FloatArray
    scatter_j2: FloatArray
    meter_j2: FloatArray
    most_j: FloatArray

    def dynamic_half_widths_j(self, model: EnergyModel | None, guessed: FloatArray) -> FloatArray:
        """Return the half-widths of the energies above idle, (N,); without a model, such an energy
        may be 0.

        `guessed` (N,) is the part of guesses of first tokens, see `guess_j2`.
        """
        dynamic_j = self.best.dynamic_j
        model_j2 = (dynamic_j / NORMAL_95) ** 2
        if model:
            first_j, *slopes = self.variants_j
            rows = np.array([dynamic_j, first_j, *(dynamic_j + slope for slope in slopes)])
            model_j2 = (
                variances(rows, model.covariance, np.ones(len(slopes)))
                + (FLOOR_RATIO * dynamic_j) ** 2
            )
        model_j2 += guess_j2(dynamic_j, guessed)
        half_j: FloatArray = NORMAL_95 * np.sqrt(model_j2 + self.scatter_j2 + self.meter_j2)
        return half_j


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
        """Return the energies of requests that ended before the last edge; `idle_j` (N,) are their
        idle energies.
        """
        at = _Points(phases, self._edges)
        at_edge, slope = phases.token_rate * phases.context, phases.token_rate**2
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
        best = DividedEnergy(prefill_j, np.maximum(joules[0] - prefill_j, 0.0), idle_j.copy())
        first, after = at.arrived.slot, at.ended.slot + (at.ended.into_s > 0.0)
        final = np.maximum(after - 1, first)
        error_j2 = np.where(phases.is_cut, 0.0, self._rates[_EDGE].take(first))
        error_j2 += self._rates[_EDGE].take(final)
        error_j2 += self._sums[_NOISE].take(after) - self._sums[_NOISE].take(first)
        part = quotient(phases.ended_s - phases.arrived_s, self._rates[_COVERED].take(first))
        error_j2 *= np.where(first == final, np.minimum(part, 1.0), 1.0) ** 2
        share = quotient(joules[0] + best.idle_j, self._between(_METER, at.arrived, at.ended))
        meter_j2 = np.minimum(share, 1.0) ** 2 * error_j2
        most_j = self._sums[_METER].take(after) - self._sums[_METER].take(first)
        return SummedEnergy(
            best, joules[1:_SCATTER], np.maximum(joules[_SCATTER], 0.0), meter_j2, most_j
        )

    def _between(self, row: int, begin: _Instants, end: _Instants) -> FloatArray:
        return self._to(row, end) - self._to(row, begin)

    def _to(self, row: int, instants: _Instants) -> FloatArray:
        sums, rates = self._sums[row].take(instants.slot), self._rates[row].take(instants.slot)
        result: FloatArray = sums + rates * instants.into_s
        return result

    def _moment(self, variant: int, instants: _Instants) -> FloatArray:
        rates = self._rates[_REAL + variant].take(instants.slot)
        result: FloatArray = self._moments[variant].take(instants.slot) + rates * instants.moment
        return result

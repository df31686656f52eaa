"""Division of a server's energy among its requests, while it runs and for files.

Slots are divided once no request in them can still be reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from wattline_exporter.requests.division.arrays import FloatArray, IntArray, Mask
from wattline_exporter.requests.division.columns import HeldRows, as_items
from wattline_exporter.requests.division.fit import is_separable
from wattline_exporter.requests.division.half_widths import (
    ERRORS,
    FLOOR_RATIO,
    ROLE_RATIO,
    Energies,
    group_half_widths_j,
    half_widths_j,
)
from wattline_exporter.requests.division.loads import (
    COUNT,
    DECODING_S,
    FLIGHT_S,
    LOADS,
    PREFILLING_S,
    RATES,
    RunningIntegrals,
    SummedEnergy,
    covered_s,
    joules_per_load,
    load_terms,
    phase_joules,
    shared_joules,
    slot_loads,
    with_slots,
)
from wattline_exporter.requests.division.model import (
    FIT_SLOTS,
    MIN_FIT_SLOTS,
    EnergyModel,
    Estimates,
    FitSlots,
    Role,
)
from wattline_exporter.requests.division.pace import (
    UNKNOWN_PACE,
    DecodeClock,
    RequestPhases,
    SlotEdges,
    pace_of,
    union_s,
)
from wattline_exporter.requests.division.spans import (
    EnergySlots,
    QuietPower,
    RequestSpans,
    rising_joules,
)
from wattline_exporter.requests.division.totals import DivisionTotals, EnergyPart

SLOT_S = 0.25
"""Width of a slot, two or more updates of the usual sensors."""
FIT_EVERY_S = 5.0
FIT_EVERY_SHARE = 0.1
"""Time between two fits, at least, and relative to the time of the slots in a fit."""
COMPARED_AT_ONCE = 64
"""Most requests of one call whose estimates are compared with their energies."""
_MOST_BLOCK_SLOTS = 20 * FIT_SLOTS
"""Most slots of a file that are divided at once, of which few have requests."""
_COLUMNS = 14
_ESTIMATED_J = 11
_IDLE_J = 12
_GUESSED = 13
"""Number of columns: those of `RequestPhases.of`, the joules estimated at the report, or NaN, the
idle energy so far, and 1 if the first token is a guess, else 0.
"""


@dataclass(frozen=True, slots=True)
class DividedRequests:
    """Energies of requests that are final, by keys of the caller.

    `missing_s` (N,) is the time of each one before the first slot that it could be divided in.
    `separable` is the mask of those whose energies of prefill and decode can be stated,
    `idle_known` of those whose idle power was measured.
    """

    keys: np.ndarray
    energies: Energies
    missing_s: FloatArray
    separable: Mask
    idle_known: Mask

    @property
    def prefill_j(self) -> FloatArray:
        return self.energies.prefill_j

    @property
    def decode_j(self) -> FloatArray:
        return self.energies.decode_j

    @property
    def idle_j(self) -> FloatArray:
        return self.energies.idle_j

    @property
    def total_j(self) -> FloatArray:
        return self.energies.total_j

    @property
    def half_j(self) -> FloatArray:
        return half_widths_j(self.energies)


class Division:
    """Requests of one server and its energy. Times are seconds of one clock.

    Requests become final in the order in which they were added. After each division, the energies
    of all requests and `rest_j` add up to `measured_j`. `key_type` is the type of the caller's
    keys. All slots have the width `slot_s`, or without `is_regular` any width, usually this one.
    `role` is the phase for which the devices work; None for both.
    """

    def __init__(
        self,
        key_type: npt.DTypeLike = np.int64,
        slot_s: float = SLOT_S,
        *,
        is_regular: bool = True,
        role: Role | None = None,
    ) -> None:
        self._slot_s = slot_s
        self._is_regular = is_regular
        self._role: Role | None = role
        self._held, self._keys = (
            HeldRows(np.empty((_COLUMNS, 0))),
            HeldRows(np.empty(0, dtype=key_type)),
        )
        self._counted = 0
        """Requests whose load is in the slots; the later ones were added since the last division.
        """
        self.edges_s, self._joules, self._edge_half_j = np.empty(0), np.empty(0), np.empty(0)
        self._decode = DecodeClock()
        self._loads = np.zeros((2 * LOADS, 0))
        """Loads of the slots that are not divided: of all requests, and of those whose first token
        is a guess.
        """
        self._rates = np.zeros((RATES, 0))
        """Joules per load of the slots before them."""
        self._begins_s = np.empty(0)
        """Begins of the slots in `_rates`."""
        self._pace = UNKNOWN_PACE
        self.measured_j = self.rest_j = self._divided_j = 0.0
        self.idle_j = self._guessed_j = self._other_j = 0.0
        """Idle energy of the divided slots, energy above idle of guessed first tokens, and the part
        of that energy that may be of other work."""
        self._phases_j = np.zeros((2, 1 + ERRORS))
        """Energies above idle of prefill and decode in the divided slots, with signed errors."""
        self._divided: list[EnergySlots] = []
        """Slots that were divided since `take_divided`."""
        self._assumed_until_s = -np.inf  # the end of the last slot with an assumed idle power
        self._start_fit()

    def _start_fit(self) -> None:
        """Fit the model to slots from now on."""
        self._fit_slots = FitSlots(self._slot_s, self._role)
        self._quiet = QuietPower(FIT_SLOTS)
        self._estimates = Estimates()
        self._held.values[_ESTIMATED_J] = np.nan
        self._fitted_s = -np.inf
        self.other_ratio = 0.0
        self._separable = False
        self.model: EnergyModel | None = None
        self._starts_s = np.inf
        """Time from which slots are in the fit."""

    def use_role(self, role: Role | None) -> None:
        """Divide the slots that are not divided yet by the model of a role."""
        if role != self._role:
            self._role = role
            self._start_fit()

    def fit_from(self, from_s: float) -> None:
        """Fit the model again, to slots from an instant on: other devices are measured since
        then.
        """
        self._starts_s = from_s

    def __len__(self) -> int:
        return len(self._keys)

    def add(
        self, spans: RequestSpans, keys: np.ndarray, untimed: Mask | np.bool_ = np.False_
    ) -> None:
        """Add requests that ended, by keys of the caller (N,); the mask has those whose first token
        is a guess.
        """
        if len(spans):
            for row, column in zip(self._held.append(len(spans)), fields(spans), strict=False):
                row[:] = getattr(spans, column.name)
            self._held.values[_IDLE_J, -len(spans) :] = 0.0
            self._held.values[_GUESSED, -len(spans) :] = untimed
            self._held.values[_ESTIMATED_J, -len(spans) :] = self._first_estimates(spans)
            as_items(self._keys.append(len(spans)))[:] = as_items(keys)

    def held(self) -> tuple[np.ndarray, RequestSpans]:
        """Return the keys and spans of the requests that are not final."""
        return self._keys.values, RequestSpans(*self._held.values[:6])

    def take_all(self) -> np.ndarray:
        """Remove all requests that are not final; return their keys. Their energy becomes a part of
        the rest.
        """
        self.rest_j += self.open_j
        keys = self._keys.first(len(self._keys))
        self._remove(len(keys))
        return keys

    @property
    def open_j(self) -> float:
        """Divided energy of the requests that are not final."""
        held = slice(0, self._counted)
        found = self._energy(held)
        idle_j = self._held.values[_IDLE_J, held]
        return float(found.prefill_j.sum() + found.decode_j.sum() + idle_j.sum())

    def extend(self, edges_s: FloatArray, joules: FloatArray, half_j: FloatArray) -> None:
        """Add slots: the energies up to each of the edges with half-widths. The first edge begins
        the first slot.
        """
        if not len(self.edges_s):
            self._divided_j = float(joules[0])
        self.edges_s, self._joules = (
            np.append(self.edges_s, edges_s),
            np.append(self._joules, joules),
        )
        self._edge_half_j = np.append(self._edge_half_j, half_j)

    def measure_again(
        self,
        energy_at: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
        from_s: float = -np.inf,
    ) -> None:
        """Replace the energies of the slots from an instant on that are not divided yet, with their
        half-widths.
        """
        first = max(0, int(np.searchsorted(self.edges_s, from_s, side="right")) - 1)
        if len(self.edges_s) > first:
            joules, half_j = energy_at(self.edges_s[first:])
            self._joules[first:] = self._joules[first] + joules - joules[0]
            self._edge_half_j[first:] = half_j

    @property
    def last_j(self) -> float:
        """Energy up to the last edge."""
        return float(self._joules[-1]) if len(self._joules) else 0.0

    @property
    def last_edge_s(self) -> float | None:
        return float(self.edges_s[-1]) if len(self.edges_s) else None

    def lowest_w(self) -> float:
        """Return the lowest mean power of about a second among the slots that are not divided
        yet.
        """
        powers_w = (self._joules[4:] - self._joules[:-4]) / (self.edges_s[4:] - self.edges_s[:-4])
        return max(0.0, float(powers_w.min(initial=np.inf)))

    @property
    def divided_s(self) -> float:
        """Time up to which the energy is divided."""
        return float(self.edges_s[0]) if len(self.edges_s) else -np.inf

    def divide(
        self,
        until_s: float,
        idle_w: float | FloatArray,
        *,
        idle_known: bool = True,
        at_end: bool = False,
    ) -> DividedRequests:
        """Divide the slots that ended up to `until_s`, with one idle power or one for each; return
        final requests, `at_end` also those that end later.
        """
        if self.divided_s >= self._starts_s:
            self._start_fit()
        count = int(np.searchsorted(self.edges_s, until_s, side="right")) - 1
        if count >= 1:
            joules = rising_joules(self._joules, self._divided_j)[: count + 1]
            half_j = self._edge_half_j[: count + 1]
            idle_w = np.broadcast_to(idle_w, len(self.edges_s) - 1)[:count]
            slots = EnergySlots(
                self.edges_s[: count + 1], np.diff(joules), idle_w, half_j, idle_known
            )
            every_s = max(FIT_EVERY_S, FIT_EVERY_SHARE * self._slot_s * len(self._fit_slots))
            is_due = slots.edges_s[-1] - self._fitted_s >= every_s
            if is_due and len(self):
                self._pace = pace_of(self.held()[1])
            self._count_loads(float(slots.edges_s[-1]), count)
            self._divide_slots(slots, is_due=is_due)
            self._begins_s = np.append(self._begins_s, self.edges_s[:count])
            self.edges_s = self.edges_s[count:]
            self._joules = self._joules[count:]
            self._edge_half_j = self._edge_half_j[count:]
            self._divided_j = float(joules[-1])
        return self._take_final(at_end=at_end)

    @property
    def totals(self) -> DivisionTotals:
        return DivisionTotals.of(self._phases_j, self._guessed_j, self._other_j, self.model)

    def take_divided(self) -> list[EnergySlots]:
        """Return the slots that were divided since the last call."""
        divided = self._divided
        self._divided = []
        return divided

    def forget_divided(self) -> None:
        """Start `take_divided` and `totals` with the next slots: those so far were divided before,
        by a previous exporter.
        """
        self._divided = []
        self._guessed_j = 0.0
        self._other_j = 0.0
        self._phases_j[:] = 0.0

    def estimate(self, spans: RequestSpans) -> tuple[FloatArray, FloatArray] | None:
        """Return the likely joules of requests by the model, and their half-widths; None without a
        model or energy.

        It needs no energy of the time of the requests, and takes the mean number of requests in
        progress.
        """
        if self.model is None or not self.measured_j:
            return None
        return self._estimates.of(spans, self.model, self._fit_slots.steps_per_token)

    def _slot_edges(self, edges_s: FloatArray) -> SlotEdges:
        real_s = edges_s - edges_s[0]
        if self._is_regular:  # without the rounding errors of the times
            real_s = self._slot_s * np.arange(len(edges_s), dtype=np.float64)
        paced_s = self._decode.paced_s(edges_s[0] + real_s)
        width_s = self._slot_s if self._is_regular else None
        return SlotEdges(real_s, paced_s - paced_s[0], self._pace, width_s)

    def _edges_after(self, until_s: float) -> FloatArray:
        """Return the edges of the slots that are not divided, to the first one after an instant:
        slots that have no energy yet have the usual width.
        """
        edges_s = self.edges_s[: int(np.searchsorted(self.edges_s, until_s, side="right")) + 1]
        last_s = float(edges_s[-1])
        more = max(0, int((until_s - last_s) / self._slot_s) + 1) if until_s >= last_s else 0
        new_s = last_s + self._slot_s * np.arange(1, more + 1, dtype=np.float64)
        return np.append(edges_s, new_s)

    def _phases(self, chosen: slice | IntArray, edge_s: float) -> RequestPhases:
        paced_edge_s = float(self._decode.paced_s(np.array([edge_s]))[0])
        return RequestPhases.of(self._held.values[:, chosen], edge_s, paced_edge_s)

    def _count_loads(self, until_s: float, slots: int) -> None:
        """Add the load of new requests that arrived until then to the slots from the first one that
        is not divided.

        Later ones wait, since the clock of decode is fixed up to their ends.
        """
        (due,) = np.nonzero(self._held.values[0, self._counted :] < until_s)
        if len(due):
            new = slice(self._counted, self._counted + int(due[-1]) + 1)
            columns = self._held.values[:, new]
            _, spans = self.held()
            ends_s = float(max(columns[2].max(), until_s))
            begin_s = min(self.divided_s, float(columns[0].min()))
            self._decode.extend(spans, self._pace, begin_s, ends_s + 1.0)
            columns[6] = RequestSpans(*columns[:6]).prefill_starts_s(self._pace.prefill_speed)
            columns[7] = self.divided_s
            columns[8] = self._decode.paced_s(np.maximum(columns[1], columns[6]))
            columns[9] = self._decode.paced_s(columns[2])
            columns[10] = self._decode.paced_s(np.array([self.divided_s]))
            edges = self._slot_edges(self._edges_after(ends_s))
            self._loads = with_slots(self._loads, edges.count)
            self._loads[:LOADS, : edges.count] += slot_loads(
                self._phases(new, self.divided_s), edges
            )
            (guessed,) = np.nonzero(columns[_GUESSED])
            if len(guessed):
                self._loads[LOADS:, : edges.count] += slot_loads(
                    self._phases(new.start + guessed, self.divided_s), edges
                )
            self._counted = new.stop
        self._loads = with_slots(self._loads, slots)

    def _divide_slots(self, slots: EnergySlots, *, is_due: bool) -> None:
        """Divide slots, from the first one that is not divided on."""
        all_loads, self._loads = np.split(self._loads, [len(slots.joules)], axis=1)
        loads = all_loads[:LOADS]
        guessed_loads = all_loads[LOADS:]
        edges = self._slot_edges(slots.edges_s)
        terms = load_terms(loads, edges)
        busy = loads[COUNT] > 0
        flights_s = RequestPhases.flights_s(self._held.values[:, : self._counted], self.divided_s)
        covered = covered_s(loads, flights_s, edges)
        slots = self._quiet.add(slots, busy)
        dynamic_j = np.where(busy, slots.dynamic_j(slots.widths_s - covered), 0.0)
        prefill_ratio = edges.pace.prefill_ratio(loads[DECODING_S], loads[PREFILLING_S])
        self._fit_slots.add(
            terms[busy], prefill_ratio[busy], dynamic_j[busy], slots.idle_j[busy], covered[busy]
        )
        self._assumed_until_s = (
            self._assumed_until_s if slots.idle_known else float(slots.edges_s[-1])
        )
        self.other_ratio = self._fit_slots.other_ratio(slots.other_limit_w)
        model = self._fit_slots.fit() if is_due else None
        self.model = model or self.model
        rates = joules_per_load(loads, edges, slots, covered, self.model)
        guessed_j = phase_joules(rates, guessed_loads)[:, 0].sum(axis=0)
        self._fit_slots.add_guessed(guessed_j[busy])
        if model:
            self._fitted_s = float(slots.edges_s[-1])
            self._separable = self._fit_slots.is_separable(model, self.other_ratio)
        self._guessed_j += float(guessed_j.sum())
        self._other_j += self.other_ratio * float(dynamic_j.sum())
        self._phases_j += phase_joules(rates, loads).sum(axis=-1)
        self._divided.append(slots)
        self.idle_j += float(slots.idle_j.sum())
        self._rates = np.concatenate([self._rates, rates], axis=1)
        self.measured_j += float(slots.joules.sum())
        idle_j = shared_joules(edges.real_s, slots.idle_j / slots.widths_s, *flights_s)
        self._held.values[_IDLE_J, : self._counted] += idle_j
        self._estimates.add(float(loads[FLIGHT_S].sum()), float(idle_j.sum()))
        self.rest_j += float((slots.joules - dynamic_j).sum() - idle_j.sum())

    def _energy(self, chosen: slice) -> SummedEnergy:
        """Return the energies of requests up to the end of the divided slots."""
        edges_s = np.append(self._begins_s, self.edges_s[:1])
        edges = self._slot_edges(edges_s if len(edges_s) else np.zeros(1))
        phases = self._phases(chosen, float(edges_s[0]) if len(edges_s) else 0.0).until(edges)
        integrals = RunningIntegrals(self._rates, edges)
        return integrals.energy(phases, self._held.values[_IDLE_J, chosen])

    def _take_final(self, *, at_end: bool) -> DividedRequests:
        """Remove the first requests that ended in divided slots, `at_end` all that began in them;
        return their energies.
        """
        latest_s = np.maximum.accumulate(self._held.values[2, : self._counted])
        count = int(np.searchsorted(latest_s, self.divided_s, side="right"))
        final = slice(0, self._counted if at_end else count)
        found = self._energy(final)
        held = self._held.values[:, final].copy()
        arrived_s = held[0]
        ended_s = held[2]
        idle_j = held[_IDLE_J]
        is_known = arrived_s >= self._assumed_until_s
        missing_s = np.maximum(held[7] - arrived_s, 0.0)
        divided = DividedRequests(
            self._keys.first(final.stop),
            self._energies(found, idle_j, held[_GUESSED], is_known).with_missing(
                missing_s, ended_s - arrived_s
            ),
            missing_s,
            separable=is_known & self._separable if self._role is None else ended_s > arrived_s,
            idle_known=is_known,
        )
        if final.stop:
            self._estimates.compare(held[_ESTIMATED_J], divided.total_j)
            self._remove(final.stop)
        return divided

    def _energies(
        self, found: SummedEnergy, idle_j: FloatArray, guessed: FloatArray, is_known: Mask
    ) -> Energies:
        """Return the energies of N requests: by role, all energy above idle is of its phase.

        `guessed` (N,) is 1 if the first token is a guess, else 0, `is_known` the mask of those
        with a measured idle power.
        """
        dynamic_j = found.prefill_j + found.decode_j
        none = np.zeros(len(idle_j))
        return Energies(
            prefill_j={None: found.prefill_j, "prefill": dynamic_j, "decode": none}[self._role],
            decode_j={None: found.decode_j, "prefill": none, "decode": dynamic_j}[self._role],
            idle_j=idle_j,
            errors_j=found.errors_j,
            scatter_j2=found.scatter_j2,
            meter_j2=found.meter_j2,
            guessed_j=guessed * dynamic_j,
            beside_guesses_j=self._fit_slots.guessed_ratio * dynamic_j,
            known_idle_j=np.where(is_known, idle_j, 0.0),
            limit_j=self.other_ratio * dynamic_j + np.where(is_known, 0.0, idle_j),
            most_j=found.most_j,
            floor_ratio=FLOOR_RATIO if self._role is None else ROLE_RATIO,
        )

    def _remove(self, count: int) -> None:
        """Remove the first requests, and the rates of slots before all others."""
        self._held.remove(count)
        self._keys.remove(count)
        self._counted = max(0, self._counted - count)
        columns = self._held.values[:, : self._counted]
        first_s = float(np.maximum(columns[0], columns[7]).min(initial=self.divided_s))
        ends_s = np.append(self._begins_s[1:], self.edges_s[:1])
        unused = int(np.searchsorted(ends_s, first_s, side="right"))
        self._begins_s = self._begins_s[unused:]
        self._rates = self._rates[:, unused:]
        self._decode.forget(float(self._begins_s[0]) if len(self._begins_s) else self.divided_s)

    def _first_estimates(self, spans: RequestSpans) -> FloatArray:
        """Return the estimates of some new requests, NaN for the others."""
        joules = np.full(len(spans), np.nan)
        some = slice(None, None, 1 + len(spans) // COMPARED_AT_ONCE)
        if estimated := self.estimate(spans.take(some)):
            joules[some] = estimated[0]
        return joules


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


@dataclass(frozen=True, slots=True)
class RequestEnergies:
    """Joules of N requests. `unassigned_j` is the energy of the slots less that of their time with
    requests.

    `half_j` are the half-widths of the 95 % intervals of `dynamic_j`, `idle_half_j` is the one of
    `idle_j`. `prefill` and `decode` are the totals of all requests, None where the data cannot
    separate them. `context_token` is the energy of a token of context that a generated token
    attends to, None if it is not significant. `joules_of` (4,) are the fitted joules of the terms.
    `group_half_j` (G,) are the half-widths of the energies of groups, `total_half_j` is the one of
    all requests together. `other_half_j` is the part of all half-widths by work that no request
    reports. `idle_known` (N,) is the mask of those whose idle power was measured.
    """

    divided: DividedEnergy
    half_j: FloatArray
    group_half_j: FloatArray
    total_half_j: float
    unassigned_j: float
    measured_j: float
    idle_j: float
    idle_half_j: float
    prefill: EnergyPart | None
    decode: EnergyPart | None
    context_token: EnergyPart | None
    joules_of: FloatArray
    other_half_j: float
    idle_known: Mask

    @property
    def dynamic_j(self) -> FloatArray:
        return self.divided.dynamic_j

    @property
    def total_j(self) -> FloatArray:
        """Energy of each request with its share of the idle energy."""
        return self.divided.dynamic_j + self.divided.idle_j


def divide_all(
    spans: RequestSpans,
    slots: EnergySlots,
    *,
    role: Role | None = None,
    untimed: Mask | None = None,
    groups: npt.NDArray[np.int32] | None = None,
) -> RequestEnergies:
    """Return the energy of each request, by a `Division` that has blocks of up to FIT_SLOTS slots
    with requests.

    `untimed` (N,) is the mask of those whose first token is not known. `groups` (N,) are the
    numbers of groups whose half-widths are returned, one group of all requests by default. `role`
    is the phase for which the devices work; None for both. Raises ValueError with less than
    MIN_FIT_SLOTS slots that have requests.
    """
    busy = union_s(spans.arrived_s, spans.ended_s, slots.edges_s) > 0.0
    if np.count_nonzero(busy) < MIN_FIT_SLOTS:
        raise ValueError(
            f"{np.count_nonzero(busy)} samples of energy during requests, at least {MIN_FIT_SLOTS} "
            "are needed"
        )
    groups = np.zeros(len(spans), dtype=np.int32) if groups is None else groups
    count = int(groups.max(initial=-1)) + 1
    divided = DividedEnergy(*np.zeros((3, len(spans))))
    half_j = np.zeros(len(spans))
    group_sums: Energies | None = None
    file = _File(spans, slots, untimed)
    division = Division(np.intp, file.slot_s, is_regular=False, role=role)
    for found in file.divide(division, busy):
        energies = found.energies
        at = found.keys
        divided.prefill_j[at] = energies.prefill_j
        divided.decode_j[at] = energies.decode_j
        divided.idle_j[at] = energies.idle_j
        half_j[at] = half_widths_j(energies)
        sums = energies.by_group(groups[at], count)
        group_sums = sums if group_sums is None else group_sums.plus(sums)
    assert group_sums is not None, "a file has slots"
    assert division.model is not None, "enough slots have requests"
    totals = division.totals
    prefill, decode = totals.phases(slots.idle_ratio * float(divided.idle_j.sum()))
    separable = slots.idle_known and is_separable(
        division.model.windows, (prefill.joules, decode.joules), (prefill.half_j, decode.half_j)
    )
    whole = group_sums.by_group(np.zeros(count, dtype=np.intp), 1)
    states_context = slots.idle_known and role != "prefill"
    return RequestEnergies(
        divided=divided,
        half_j=half_j,
        group_half_j=group_half_widths_j(group_sums),
        total_half_j=float(group_half_widths_j(whole)[0]),
        unassigned_j=division.rest_j,
        measured_j=float(slots.joules.sum()),
        idle_j=division.idle_j,
        idle_half_j=slots.idle_ratio * division.idle_j,
        prefill=prefill if separable else None,
        decode=decode if separable else None,
        context_token=totals.context_token() if states_context else None,
        joules_of=division.model.joules_of,
        other_half_j=totals.other_j,
        idle_known=np.full(len(spans), slots.idle_known),
    )


class _File:
    """Requests and slots that are all known, in seconds since the first edge, which have more
    digits.
    """

    def __init__(self, spans: RequestSpans, slots: EnergySlots, untimed: Mask | None) -> None:
        self.slot_s = float(np.median(slots.widths_s))
        self._slots = slots
        self._spans = spans
        self._untimed = untimed
        self._origin_s = float(slots.edges_s[0])
        self._edges_s = slots.edges_s - self._origin_s
        self._order: IntArray | None = None
        """Positions of the requests in the order of arrival, None if it is theirs."""
        self._arrived_s = spans.arrived_s
        if (spans.arrived_s[1:] < spans.arrived_s[:-1]).any():
            self._order = np.argsort(spans.arrived_s, kind="stable")
            self._arrived_s = spans.arrived_s[self._order]
        self._added = 0

    def divide(self, division: Division, busy: Mask) -> Iterator[DividedRequests]:
        """Yield the final requests of each block, by their positions; `busy` (K,) are the slots
        with requests.
        """
        slots = self._slots
        edges_s = self._edges_s
        total_j = np.append(0.0, np.cumsum(slots.joules))
        none = np.zeros(len(edges_s))
        division.extend(edges_s, total_j, none if slots.edge_half_j is None else slots.edge_half_j)
        idle_w = np.broadcast_to(slots.idle_w, len(slots.joules))
        first = 0
        latest_s = 0.0
        for end in _block_ends(busy):
            until_s = float(edges_s[end])
            latest_s = max(latest_s, self._add(division, until_s))
            self._add(division, latest_s)
            yield division.divide(
                until_s,
                idle_w[first:],
                idle_known=slots.idle_known,
                at_end=end == len(slots.joules),
            )
            first = end

    def _add(self, division: Division, until_s: float) -> float:
        """Add the requests in the time of the slots that arrive before an instant; return the
        latest of their ends.
        """
        end = int(np.searchsorted(self._arrived_s, until_s + self._origin_s))
        at = np.arange(self._added, max(self._added, end))
        at = at if self._order is None else self._order[at]
        self._added = max(self._added, end)
        inside = self._spans.ended_s[at] > self._origin_s
        at = at[inside & (self._spans.arrived_s[at] < self._slots.edges_s[-1])]
        spans = self._spans.take(at)
        moved = replace(
            spans,
            arrived_s=spans.arrived_s - self._origin_s,
            first_token_s=spans.first_token_s - self._origin_s,
            ended_s=spans.ended_s - self._origin_s,
        )
        division.add(moved, at, np.False_ if self._untimed is None else self._untimed[at])
        return float(moved.ended_s.max(initial=0.0))


def _block_ends(busy: Mask) -> Iterator[int]:
    """Yield the ends of blocks of slots that have about the same number of slots with requests, up
    to FIT_SLOTS, and at least MIN_FIT_SLOTS.
    """
    number = np.cumsum(busy)
    blocks = -(-int(number[-1]) // FIT_SLOTS)
    each = int(number[-1]) / blocks
    end = 0
    while end < len(busy):
        before = int(number[end - 1]) if end else 0
        full, enough = np.searchsorted(number, (before + each, before + MIN_FIT_SLOTS)) + 1
        end = min(int(full), max(end + _MOST_BLOCK_SLOTS, int(enough)), len(busy))
        yield end

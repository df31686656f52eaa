"""Division of a server's energy while it runs: slots are divided once no request in them can still
be reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from wattline_exporter.requests.division.columns import HeldRows, as_items
from wattline_exporter.requests.division.model import FIT_SLOTS, EnergyModel, Estimates, FitSlots
from wattline_exporter.requests.division.pace import (
    UNKNOWN_PACE,
    DecodeClock,
    RequestPhases,
    SlotEdges,
    pace_of,
)
from wattline_exporter.requests.division.pieces import (
    FloatArray,
    IntArray,
    Mask,
    shared_joules,
    with_slots,
)
from wattline_exporter.requests.division.slot_table import (
    COUNT,
    DECODING_S,
    FLIGHT_S,
    LOADS,
    PREFILLING_S,
    RATES,
    RunningIntegrals,
    SummedEnergy,
    covered_s,
    joules_of_loads,
    joules_per_load,
    load_terms,
    slot_loads,
)
from wattline_exporter.requests.division.spans import (
    EnergySlots,
    QuietPower,
    RequestSpans,
    rising_joules,
)
from wattline_exporter.requests.division.sums import DividedRequests, whole_half_widths_j

SLOT_S = 0.25
"""Width of a slot, two or more updates of the usual sensors."""
FIT_EVERY_S, FIT_EVERY_SHARE = 5.0, 0.1
"""Time between two fits, at least, and relative to the time of the slots in a fit."""
FIRST_S = 30.0
"""Time for which slots wait for all requests in them, until the durations of requests are known."""
LEAST_WAIT_S, DURATIONS = 5.0, 1.5
"""A slot is divided LEAST_WAIT_S and DURATIONS times the longest duration after its end."""
PACE_SAMPLES = 2
"""Groups of requests for the pace of the server: those in progress are of the same minute."""
COMPARED_AT_ONCE = 64
"""Most requests of one call whose estimates are compared with their energies."""
_COLUMNS, _ESTIMATED_J, _IDLE_J, _GUESSED = 14, 11, 12, 13
"""Number of columns: those of `RequestPhases.of`, the joules estimated at the report, or NaN, the
idle energy so far, and 1 if the first token is a guess, else 0.
"""


class StreamingDivision:
    """Requests of one server and its energy. Times are seconds of one clock, `window_s` the longest
    wait of a slot.

    Requests become final in the order in which they were added. After each division, the energies
    of all requests and `rest_j` add up to `measured_j`. `key_type` is the type of the caller's
    keys. All slots have the width `slot_s`.
    """

    def __init__(
        self, window_s: float, key_type: npt.DTypeLike = np.int64, slot_s: float = SLOT_S
    ) -> None:
        self._window_s, self._slot_s = window_s, slot_s
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
        self._pace, self._first_s, self._longest_s = UNKNOWN_PACE, np.inf, 0.0
        self.measured_j = self.rest_j = self._divided_j = 0.0
        self._assumed_until_s = -np.inf  # the end of the last slot with an assumed idle power
        self._start_fit()

    def _start_fit(self) -> None:
        """Fit the model to slots from now on."""
        self._fit_slots, self._quiet = FitSlots(self._slot_s), QuietPower(FIT_SLOTS)
        self._estimates = Estimates()
        self._held.values[_ESTIMATED_J] = np.nan
        self._fitted_s, self._other_ratio, self._separable = -np.inf, 0.0, False
        self.model: EnergyModel | None = None
        self._starts_s = np.inf
        """Time from which slots are in the fit."""

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
            self._first_s = min(self._first_s, float(spans.ended_s.min()))
            self._longest_s = max(self._longest_s, float((spans.ended_s - spans.arrived_s).max()))

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
        best = self._energy(slice(0, self._counted)).best
        return float(best.dynamic_j.sum() + best.idle_j.sum())

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

    @property
    def _base_s(self) -> float:
        """Begin of the first slot in the table of rates."""
        return self.divided_s - self._slot_s * self._rates.shape[1]

    def wait_s(self, now_s: float) -> float:
        """Return the time for which a slot waits: no known duration makes a longer one likely."""
        wait_s = LEAST_WAIT_S + DURATIONS * self._longest_s
        return min(
            self._window_s, max(wait_s, FIRST_S) if now_s < self._first_s + 2 * FIRST_S else wait_s
        )

    def divide(
        self,
        until_s: float,
        idle_w: float | FloatArray,
        *,
        idle_known: bool = True,
    ) -> DividedRequests:
        """Divide the slots that ended up to `until_s`, with one idle power or one for each; return
        final requests.
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
                self._pace = pace_of(self.held()[1], PACE_SAMPLES)
            self._count_loads(float(slots.edges_s[-1]), count)
            self._divide_slots(slots, is_due=is_due)
            self.edges_s, self._joules = self.edges_s[count:], self._joules[count:]
            self._edge_half_j, self._divided_j = self._edge_half_j[count:], float(joules[-1])
        return self._take_final()

    def estimate(self, spans: RequestSpans) -> tuple[FloatArray, FloatArray] | None:
        """Return the likely joules of requests by the model, and their half-widths; None without a
        model or energy.

        It needs no energy of the time of the requests, and takes the mean number of requests in
        progress.
        """
        if self.model is None or not self.measured_j:
            return None
        return self._estimates.of(spans, self.model, self._fit_slots.steps_per_token)

    def _slot_edges(self, begin_s: float, slots: int) -> SlotEdges:
        real_s: FloatArray = self._slot_s * np.arange(slots + 1, dtype=np.float64)
        paced_s = self._decode.paced_s(begin_s + real_s)
        return SlotEdges(real_s, paced_s - paced_s[0], self._pace)

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
            columns, (_, spans) = self._held.values[:, new], self.held()
            ends_s = float(max(columns[2].max(), until_s))
            self._decode.extend(spans, self._pace, self.divided_s, ends_s + 1.0)
            columns[6] = RequestSpans(*columns[:6]).prefill_starts_s(self._pace.prefill_speed)
            columns[7] = self.divided_s
            columns[8] = self._decode.paced_s(np.maximum(columns[1], columns[6]))
            columns[9] = self._decode.paced_s(columns[2])
            columns[10] = self._decode.paced_s(np.array([self.divided_s]))
            edges = self._slot_edges(
                self.divided_s, int((ends_s - self.divided_s) / self._slot_s) + 2
            )
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
        all_loads, self._loads = np.split(self._loads, [len(slots.joules)], axis=1)
        loads, guessed_loads = all_loads[:LOADS], all_loads[LOADS:]
        edges = self._slot_edges(self.divided_s, len(slots.joules))
        terms, busy = load_terms(loads, edges), loads[COUNT] > 0
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
        self._other_ratio = self._fit_slots.other_ratio(slots.other_limit_w)
        model = self._fit_slots.fit() if is_due else None
        self.model = model or self.model
        rates = joules_per_load(loads, edges, slots, covered, self.model)
        self._fit_slots.add_guessed(joules_of_loads(rates, guessed_loads)[busy])
        if model:
            self._fitted_s = float(slots.edges_s[-1])
            self._separable = self._fit_slots.is_separable(model, self._other_ratio)
        self._rates = np.concatenate([self._rates, rates], axis=1)
        self.measured_j += float(slots.joules.sum())
        idle_j = shared_joules(edges.real_s, slots.idle_j / slots.widths_s, *flights_s)
        self._held.values[_IDLE_J, : self._counted] += idle_j
        self._estimates.add(float(loads[FLIGHT_S].sum()), float(idle_j.sum()))
        self.rest_j += float((slots.joules - dynamic_j).sum() - idle_j.sum())

    def _energy(self, chosen: slice) -> SummedEnergy:
        """Return the energies of requests up to the end of the divided slots."""
        edges = self._slot_edges(self._base_s, self._rates.shape[1])
        phases = self._phases(chosen, self._base_s).until(edges)
        return RunningIntegrals(self._rates, edges).energy(
            phases, self._held.values[_IDLE_J, chosen]
        )

    def _take_final(self) -> DividedRequests:
        """Remove the first requests that ended in divided slots, and return their energies."""
        latest_s = np.maximum.accumulate(self._held.values[2, : self._counted])
        count = int(np.searchsorted(latest_s, self.divided_s, side="right"))
        final = slice(0, count)
        energy, held = self._energy(final), self._held.values[:, final]
        best, dynamic_j, arrived_s = energy.best, energy.best.dynamic_j, held[0]
        is_known = arrived_s >= self._assumed_until_s
        guessed = np.maximum(held[_GUESSED], self._fit_slots.guessed_ratio)
        half_j = energy.dynamic_half_widths_j(self.model, guessed)
        half_j = whole_half_widths_j(half_j, dynamic_j, best.idle_j, is_known, self._other_ratio)
        half_j = np.minimum(half_j, energy.most_j)
        missing_s, separable = np.maximum(held[7] - arrived_s, 0.0), is_known & self._separable
        keys = self._keys.first(count)
        found = DividedRequests(
            keys, best.prefill_j, best.decode_j, best.idle_j, half_j, missing_s, separable
        )
        found = found.with_missing(held[2] - arrived_s)
        if count:
            self._estimates.compare(held[_ESTIMATED_J], found.total_j)
            self._remove(count)
        return found

    def _remove(self, count: int) -> None:
        """Remove the first requests, and the rates of slots before all others."""
        self._held.remove(count)
        self._keys.remove(count)
        self._counted = max(0, self._counted - count)
        columns = self._held.values[:, : self._counted]
        first_s = float(np.maximum(columns[0], columns[7]).min(initial=self.divided_s))
        self._rates = self._rates[:, max(0, int((first_s - self._base_s) / self._slot_s)) :]
        self._decode.forget(self._base_s)

    def _first_estimates(self, spans: RequestSpans) -> FloatArray:
        """Return the estimates of some new requests, NaN for the others."""
        joules, some = (
            np.full(len(spans), np.nan),
            slice(None, None, 1 + len(spans) // COMPARED_AT_ONCE),
        )
        if estimated := self.estimate(spans.take(some)):
            joules[some] = estimated[0]
        return joules

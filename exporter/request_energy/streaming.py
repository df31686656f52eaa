"""Division of a server's energy while it runs: slots are divided once no request in them can still be reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from exporter.request_energy.fit import SEPARATE_TOKENS, SHARED_STEP, is_separable
from exporter.request_energy.load import LoadBlock, load_blocks
from exporter.request_energy.model import MIN_FIT_SLOTS, EnergyModel, fit_model
from exporter.request_energy.pace import UNKNOWN_PACE, pace_of
from exporter.request_energy.pieces import FloatArray
from exporter.request_energy.spans import IDLE_RATIO, EnergySlots, RequestSpans
from exporter.request_energy.sums import SCATTER_FACTOR, half_widths

FIT_SLOTS = 1_200
"""Most slots with requests in a fit, five minutes of slots of 0.25 s."""
FIT_EVERY_S = 5.0
FIRST_S = 30.0
"""Time for which slots wait for all requests in them, until the durations of requests are known."""
LEAST_WAIT_S, DURATIONS = 5.0, 1.5
"""A slot is divided LEAST_WAIT_S and DURATIONS times the longest duration after its end."""
LEAST_RATIO = 0.3
"""Least half-width of an estimate, relative to it."""
PACE_SAMPLES = 2
"""Groups of requests for the pace of the server: those in progress are of the same minute."""
_PARTS = 10
"""Sums of each request: prefill, decode, idle, variance of the scaling, error of the edges, two variants, and slopes
of three terms."""


@dataclass(frozen=True, slots=True)
class DividedRequests:
    """Joules of requests that are final. `missing_s` is the time of each one without a measured energy."""

    keys: np.ndarray
    prefill_j: FloatArray
    decode_j: FloatArray
    idle_j: FloatArray
    half_j: FloatArray
    missing_s: FloatArray
    separable: bool

    @property
    def total_j(self) -> FloatArray:
        return self.prefill_j + self.decode_j + self.idle_j


class StreamingDivision:
    """Requests of one server and its energy. Times are seconds of one clock, `window_s` the longest wait of a slot.

    After each division, the energies of all requests and `rest_j` add up to `measured_j`. `key_type` is the type of the
    caller's keys.
    """

    def __init__(self, window_s: float, key_type: npt.DTypeLike = np.int64) -> None:
        self._window_s = window_s
        self._spans = RequestSpans(*np.empty((6, 0)))
        self._added: list[tuple[RequestSpans, np.ndarray]] = []
        self._keys = np.empty(0, dtype=key_type)
        self._missing_s = np.empty(0)
        self._sums = np.zeros((_PARTS, 0))
        self._edges_s, self._joules, self._edge_half_j = np.empty(0), np.empty(0), np.empty(0)
        self._terms, self._dynamic_j = np.empty((0, 4)), np.empty(0)
        self._fitted_s, self._pace = -np.inf, UNKNOWN_PACE
        self._first_s, self._longest_s = np.inf, 0.0
        self._flight_s = self._shared_idle_j = 0.0
        self._error_ratio = LEAST_RATIO
        self.model: EnergyModel | None = None
        self.measured_j = self.rest_j = 0.0
        self.separable = False

    def __len__(self) -> int:
        return len(self._keys) + sum(len(keys) for _, keys in self._added)

    def add(self, spans: RequestSpans, keys: np.ndarray) -> None:
        """Add requests that ended, by keys of the caller (N,)."""
        if len(spans):
            self._added.append((spans, keys))
            self._first_s = min(self._first_s, float(spans.ended_s.min()))
            self._longest_s = max(self._longest_s, float((spans.ended_s - spans.arrived_s).max()))

    def held(self) -> tuple[np.ndarray, RequestSpans]:
        """Return the keys and spans of the requests that are not final."""
        self._join_added()
        return self._keys, self._spans

    def take_all(self) -> np.ndarray:
        """Remove all requests that are not final; return their keys. Their energy becomes a part of the rest."""
        self._join_added()
        self.rest_j += float(self._sums[:3].sum())
        return self._take(np.ones(len(self._keys), dtype=bool)).keys

    def _join_added(self) -> None:
        """Join the requests added since the last division, all at once since this copies those that are held."""
        if not self._added:
            return
        added, self._added = self._added, []
        known_s = self._edges_s[0] if len(self._edges_s) else -np.inf
        count = sum(len(keys) for _, keys in added)
        columns = [_columns(spans) for spans, _ in added]
        self._spans = RequestSpans(
            *(np.concatenate(each) for each in zip(_columns(self._spans), *columns, strict=True))
        )
        self._keys = np.concatenate([self._keys, *(keys for _, keys in added)])
        missing_s = np.maximum(known_s - self._spans.arrived_s[-count:], 0.0)
        self._missing_s = np.append(self._missing_s, missing_s)
        self._sums = np.column_stack([self._sums, np.zeros((_PARTS, count))])

    def extend(self, edges_s: FloatArray, joules: FloatArray, half_j: FloatArray) -> None:
        """Add slots: the energies up to each of the edges with half-widths. The first edge begins the first slot."""
        self._edges_s, self._joules = np.append(self._edges_s, edges_s), np.append(self._joules, joules)
        self._edge_half_j = np.append(self._edge_half_j, half_j)

    def measure_again(self, energy_at: Callable[[FloatArray], tuple[FloatArray, FloatArray]]) -> None:
        """Replace the energies of the slots that are not divided yet, and their half-widths, for other devices."""
        if len(self._edges_s):
            self._joules, self._edge_half_j = energy_at(self._edges_s)

    @property
    def last_edge_s(self) -> float | None:
        return float(self._edges_s[-1]) if len(self._edges_s) else None

    def lowest_w(self) -> float:
        """Return the lowest mean power of about a second among the slots that are not divided yet."""
        if len(self._edges_s) <= 4:
            return float("inf")
        return float(((self._joules[4:] - self._joules[:-4]) / (self._edges_s[4:] - self._edges_s[:-4])).min())

    @property
    def divided_s(self) -> float:
        """Time up to which the energy is divided."""
        return float(self._edges_s[0]) if len(self._edges_s) else -np.inf

    def wait_s(self, now_s: float) -> float:
        """Return the time for which a slot waits: no known duration makes a longer one likely."""
        wait_s = LEAST_WAIT_S + DURATIONS * self._longest_s
        return min(self._window_s, max(wait_s, FIRST_S) if now_s < self._first_s + 2 * FIRST_S else wait_s)

    def divide(self, until_s: float, idle_w: float) -> DividedRequests:
        """Divide the slots that ended up to `until_s`; return the requests that are final."""
        self._join_added()
        count = int(np.searchsorted(self._edges_s, until_s, side="right")) - 1
        if count < 1:
            return self._take(np.zeros(len(self._keys), dtype=bool))
        slots = EnergySlots(
            self._edges_s[: count + 1], np.diff(self._joules[: count + 1]), idle_w, self._edge_half_j[: count + 1]
        )
        self.measured_j += float(slots.joules.sum())
        self.rest_j += float(slots.joules.sum())
        is_due = slots.edges_s[-1] - self._fitted_s >= FIT_EVERY_S
        if is_due and len(self):
            self._pace = pace_of(self._spans, PACE_SAMPLES)
        for block in load_blocks(self._spans, slots, self._pace):
            self._note(block, slots)
            if is_due and len(self._dynamic_j) >= MIN_FIT_SLOTS:
                self._fit(slots)
            self._add_block(block, slots)
        self._edges_s, self._joules = self._edges_s[count:], self._joules[count:]
        self._edge_half_j = self._edge_half_j[count:]
        return self._take(self._spans.ended_s <= self._edges_s[0])

    def estimate(self, spans: RequestSpans) -> tuple[FloatArray, FloatArray] | None:
        """Return the likely joules of requests by the model, and their half-widths; None without a model.

        It needs no energy of the time of the requests, and takes the mean number of requests in progress.
        """
        if self.model is None or not self._flight_s:
            return None
        tokens, steps = float(self._terms[:, 3].sum()), float(self._terms[:, 2].sum())
        made = spans.generated_tokens
        amounts = np.column_stack(
            [
                spans.prefilled_tokens,
                made * (spans.prompt_tokens + made / 2),
                made * (steps / tokens if tokens else 0.0),
                np.zeros(len(spans)),
            ]
        )
        idle_j = (spans.ended_s - spans.arrived_s) * self._shared_idle_j / self._flight_s
        joules = amounts @ self.model.joules_of + idle_j
        return joules, joules * max(LEAST_RATIO, self._error_ratio)

    def _note(self, block: LoadBlock, slots: EnergySlots) -> None:
        dynamic_j = (slots.joules - slots.idle_j)[block.slots]
        self._terms = np.concatenate([self._terms, block.terms[block.busy]])[-FIT_SLOTS:]
        self._dynamic_j = np.append(self._dynamic_j, dynamic_j[block.busy])[-FIT_SLOTS:]

    def _fit(self, slots: EnergySlots) -> None:
        width_s = float(np.median(slots.widths_s))
        self.model = fit_model(self._terms, self._dynamic_j, width_s, SHARED_STEP, SEPARATE_TOKENS)
        self.separable = is_separable(self.model.windows)
        self._fitted_s = float(slots.edges_s[-1])

    def _add_block(self, block: LoadBlock, slots: EnergySlots) -> None:
        joules_of = self.model.joules_of if self.model else np.zeros(4)
        best = block.divide(slots, joules_of)
        sums, near = self._sums, block.requests
        sums[0, near] += best.prefill_j
        sums[1, near] += best.decode_j
        sums[2, near] += best.idle_j
        self.rest_j -= float(best.dynamic_j.sum() + best.idle_j.sum())
        self._flight_s += block.flight_s
        self._shared_idle_j += float(best.idle_j.sum())
        sums[4, near] += block.edges_j(slots, best)
        if self.model:
            sums[3, near] += block.scatter_j2(slots, joules_of)
            variants = [block.divide(slots, each).dynamic_j for each in self.model.fits[1:]]
            sums[5, near] += variants[0]
            sums[6, near] += variants[1]
            for row, (raised, step) in enumerate(zip(variants[2:], self.model.steps, strict=True), start=7):
                sums[row, near] += (raised - best.dynamic_j) / step
        else:
            sums[5:7, near] += best.dynamic_j

    def _take(self, done: np.ndarray) -> DividedRequests:
        """Remove requests and return their sums."""
        final, left = np.flatnonzero(done), np.flatnonzero(~done)
        prefill_j, decode_j, idle_j, scatter_j2, edges_j, *variants = self._sums.take(final, axis=1)
        best = prefill_j + decode_j
        if self.model:
            rows = np.array([best, *variants[:2], *(best + slope for slope in variants[2:])])
            model_j = half_widths(rows, self.model.covariance, np.ones(3))
        else:
            model_j = best
        half_j = np.sqrt(model_j**2 + SCATTER_FACTOR**2 * scatter_j2 + edges_j**2 + (IDLE_RATIO * idle_j) ** 2)
        found = DividedRequests(
            self._keys[final],
            prefill_j,
            decode_j,
            idle_j,
            half_j,
            self._missing_s[final],
            self.separable,
        )
        self._compare(self._spans.take(final), found)
        self._spans, self._keys = self._spans.take(left), self._keys[left]
        self._missing_s = self._missing_s[left]
        self._sums = self._sums.take(left, axis=1)
        return found

    def _compare(self, spans: RequestSpans, found: DividedRequests) -> None:
        """Follow the 95 % quantile of the errors of estimates."""
        estimated = self.estimate(spans) if len(spans) else None
        if estimated:
            errors = np.abs(estimated[0] - found.total_j) / np.maximum(estimated[0], 1e-9)
            weight = min(1.0, len(spans) / 100)
            self._error_ratio += weight * (float(np.quantile(errors, 0.95)) - self._error_ratio)


def _columns(spans: RequestSpans) -> list[FloatArray]:
    return [getattr(spans, each.name) for each in fields(spans)]

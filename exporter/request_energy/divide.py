"""Energy of each request to a server, with its uncertainty; with the rest, the energies add up to the meter's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from exporter.request_energy.fit import (
    SEPARATE_TOKENS,
    SHARED_STEP,
    SHORT_WINDOW_S,
    WINDOW_S,
    bootstrap,
    fit,
    fit_windows,
    is_separable,
)
from exporter.request_energy.load import DividedEnergy, LoadBlock, load_blocks
from exporter.request_energy.pieces import FloatArray, Mask
from exporter.request_energy.spans import EnergySlots, RequestSpans

RANDOM_FACTOR, WINDOW_FACTOR, MODEL_FACTOR, FLOOR_RATIO = 3.0, 2.0, 1.5, 0.15
"""Factors of the four parts of a request's half-width, in the order of `_half_width`. They were chosen so that the
intervals contain the Shapley value of simulated servers in at least 95 % (tests/exporter/request_energy)."""
SEPARABLE_RATIO = 0.5
"""Largest half-width of the energies of prefill and decode, relative to them, with which both are stated."""
_LEAST_STEP = 1e-6
"""Least step of a derivative; the usual one is the standard error, since energies are bounded, but not derivatives."""
_MIN_FIT_SLOTS = 6

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class EnergyPart:
    """Joules of all requests in one phase, with the half-width of the 95 % interval."""

    joules: float
    half_j: float


@dataclass(frozen=True, slots=True)
class RequestEnergies:
    """Joules of N requests. `unassigned_j` is the energy of slots without requests, and idle energy that they lack.

    `half_j` are the half-widths of the 95 % intervals of `dynamic_j`; `prefill` and `decode` are the totals of all
    requests, None where the data cannot separate them. `joules_of` (4,) are the fitted joules of the model's terms.
    """

    divided: DividedEnergy
    half_j: FloatArray
    unassigned_j: float
    measured_j: float
    idle_j: float
    prefill: EnergyPart | None
    decode: EnergyPart | None
    joules_of: FloatArray

    @property
    def dynamic_j(self) -> FloatArray:
        return self.divided.dynamic_j

    @property
    def total_j(self) -> FloatArray:
        """Energy of each request with its share of the idle energy."""
        return self.divided.dynamic_j + self.divided.idle_j


def divide_energy(
    spans: RequestSpans,
    slots: EnergySlots,
    *,
    separate: bool = True,
    seed: int = 0,
    progress: Progress = lambda _: None,
) -> RequestEnergies:
    """Return the energy of each request; without `separate`, not those of prefill and decode.

    Raises ValueError with less than _MIN_FIT_SLOTS slots that have requests.
    """
    terms, busy = _terms(spans, slots, progress)
    if np.count_nonzero(busy) < _MIN_FIT_SLOTS:
        raise ValueError(
            f"{np.count_nonzero(busy)} samples of energy during requests, at least {_MIN_FIT_SLOTS} are needed"
        )
    dynamic_j = (slots.joules - slots.idle_j)[busy]
    width_s = float(np.median(slots.widths_s))
    wide = fit_windows(terms[busy], dynamic_j, width_s, WINDOW_S)
    joules_of = fit(wide, SHARED_STEP)
    draws = bootstrap(wide, SHARED_STEP, np.random.default_rng(seed))
    covariance = np.cov(draws.T)
    variants = [
        fit(fit_windows(terms[busy], dynamic_j, width_s, SHORT_WINDOW_S), SHARED_STEP),
        fit(wide, SEPARATE_TOKENS),
    ]
    steps = [max(covariance[k, k] ** 0.5, _LEAST_STEP * joules_of[k], _LEAST_STEP) for k in SHARED_STEP]
    variants += [
        joules_of + step * (np.arange(len(joules_of)) == k) for k, step in zip(SHARED_STEP, steps, strict=True)
    ]
    sums = _Sums(len(spans), len(variants) + 1)
    for block in load_blocks(spans, slots):
        sums.add(block, [block.divide(slots, each) for each in (joules_of, *variants)])
        progress(0.2 + 0.8 * block.final / len(slots.joules))
    used = np.ix_(SHARED_STEP, SHARED_STEP)
    half_j, halves = sums.half_widths(covariance[used], np.array(steps))
    divided = sums.divided
    totals = float(divided.prefill_j.sum()), float(divided.decode_j.sum())
    certain = all(half <= SEPARABLE_RATIO * total for half, total in zip(halves, totals, strict=True))
    separable = separate and certain and is_separable(wide)
    prefill, decode = (EnergyPart(total, half) for total, half in zip(totals, halves, strict=True))
    measured_j, shared_j = float(slots.joules.sum()), float(divided.dynamic_j.sum() + divided.idle_j.sum())
    return RequestEnergies(
        divided=divided,
        half_j=np.hypot(half_j, _edge_j(spans, divided.dynamic_j, slots.age_s)),
        unassigned_j=measured_j - shared_j,
        measured_j=measured_j,
        idle_j=float(slots.idle_j.sum()),
        prefill=prefill if separable else None,
        decode=decode if separable else None,
        joules_of=joules_of,
    )


def _edge_j(spans: RequestSpans, dynamic_j: FloatArray, age_s: float) -> FloatArray:
    """Return the energy that may belong to the time before or after each request, (N,)."""
    duration_s = np.maximum(spans.ended_s - spans.arrived_s, 1e-6)
    edge: FloatArray = dynamic_j * np.minimum(1.0, age_s / duration_s)
    return edge


def _terms(spans: RequestSpans, slots: EnergySlots, progress: Progress) -> tuple[FloatArray, Mask]:
    """Return the terms (K, 4) of all slots, and the mask of those with requests (K,)."""
    terms, busy = [], []
    for block in load_blocks(spans, slots):
        terms.append(block.terms)
        busy.append(block.busy)
        progress(0.2 * block.final / len(slots.joules))
    return np.concatenate(terms), np.concatenate(busy)


class _Sums:
    """Energies of all requests over all blocks, for the fit and its variants."""

    def __init__(self, requests: int, variants: int) -> None:
        self._prefill_j = np.zeros((variants, requests))
        self._decode_j = np.zeros((variants, requests))
        self._idle_j = np.zeros(requests)

    def add(self, block: LoadBlock, energies: list[DividedEnergy]) -> None:
        self._idle_j[block.requests] += energies[0].idle_j
        for k, one in enumerate(energies):
            self._prefill_j[k, block.requests] += one.prefill_j
            self._decode_j[k, block.requests] += one.decode_j

    @property
    def divided(self) -> DividedEnergy:
        return DividedEnergy(self._prefill_j[0], self._decode_j[0], self._idle_j)

    def half_widths(self, covariance: FloatArray, steps: FloatArray) -> tuple[FloatArray, tuple[float, float]]:
        """Return the half-width of each request, and those of the totals of prefill and decode."""
        whole = _half_width(self._prefill_j + self._decode_j, covariance, steps)
        sums = [joules.sum(axis=1, keepdims=True) for joules in (self._prefill_j, self._decode_j)]
        prefill, decode = (float(_half_width(one, covariance, steps)[0]) for one in sums)
        return whole, (prefill, decode)


def _half_width(joules: FloatArray, covariance: FloatArray, steps: FloatArray) -> FloatArray:
    """Return half-widths for the joules (6, N) of the fit, of its two variants, and of its three raised terms.

    Parts: random errors of the fit, the difference to a fit on shorter windows, the difference to a model with other
    terms, and a floor for errors of all these models.
    """
    best, short, other = joules[:3]
    slopes = (joules[3:] - best) / steps[:, np.newaxis]
    variance = np.einsum("ki,kl,li->i", slopes, covariance, slopes)
    result: FloatArray = np.sqrt(
        RANDOM_FACTOR**2 * np.maximum(variance, 0.0)
        + (WINDOW_FACTOR * (short - best)) ** 2
        + (MODEL_FACTOR * (other - best)) ** 2
        + (FLOOR_RATIO * best) ** 2
    )
    return result

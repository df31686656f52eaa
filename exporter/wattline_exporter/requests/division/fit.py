"""Fit of the energy model to the measured energy: joules of a prefilled token, of context, and of a
decode step.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattline_exporter.requests.division.arrays import FloatArray, IntArray, quotient

TERMS = ("prefill_token", "context_token", "decode_step", "generated_token")
"""Terms of the energy model: a prefilled token, a token of context that a generated token attends
to, a step of all requests in progress, which they share equally, and a generated token.
"""
CONTEXT = TERMS.index("context_token")
SHARED_STEP = (0, 1, 2)
"""Terms of the model: prefilled tokens, context, and decode steps, which the requests in progress
share.
"""
SEPARATE_TOKENS = (0, 1, 3)
"""Terms of the alternative model, in which each generated token costs the same at each batch size.
"""
WINDOW_S = 5.0
MIN_WINDOWS = 24
"""Windows of a fit, if the slots are short enough. Wide windows matter: spans place tokens evenly
over a phase, and errors of their place within a window would bias the coefficients towards 0.
"""
_MOST_ROWS = 1 << 18
"""Most windows in the samples that are fitted at once."""

SEPARABLE_RATIO = 0.5
"""Largest half-width of the energies of prefill and decode, relative to them, with which both are
stated.
"""
MIN_OWN_VARIATION = 0.01
"""Least part of the squared prefill tokens that the terms of decode do not explain, for separate
energies.
"""


@dataclass(frozen=True, slots=True)
class FitWindows:
    """Sums over windows of equal numbers of slots: terms (W, 4) and dynamic joules (W,)."""

    terms: FloatArray
    joules: FloatArray


def fit_windows(
    terms: FloatArray, joules: FloatArray, width_s: float, window_s: float
) -> FitWindows:
    """Return the sums over windows of about `window_s`; `terms` (K, 4) and `joules` (K,) of busy
    slots of `width_s`.
    """
    slots = len(joules)
    count = max(1, min(round(window_s / width_s), slots // MIN_WINDOWS))
    used = slots // count * count
    shape = (used // count, count)
    return FitWindows(
        terms[:used].reshape(*shape, len(TERMS)).sum(axis=1),
        joules[:used].reshape(shape).sum(axis=1),
    )


def fit(windows: FitWindows, used: Sequence[int]) -> FloatArray:
    """Return the joules of each of TERMS, at least 0, by least squares; 0 for terms that are not
    used.
    """
    result: FloatArray = _fits(windows, np.arange(len(windows.joules))[np.newaxis], used)[0]
    return result


def bootstrap(
    windows: FitWindows, used: Sequence[int], rng: np.random.Generator, count: int = 100
) -> FloatArray:
    """Return fits to resampled windows, (count, 4)."""
    total = len(windows.joules)
    at_once = max(1, _MOST_ROWS // total)
    sizes = [min(at_once, count - done) for done in range(0, count, at_once)]
    samples = (np.array([rng.integers(0, total, total) for _ in range(size)]) for size in sizes)
    return np.concatenate([_fits(windows, each, used) for each in samples])


def _fits(windows: FitWindows, chosen: IntArray, used: Sequence[int]) -> FloatArray:
    """Return the fit to each of B samples of the windows (B, W), (B, 4).

    Terms are scaled to a root mean square of 1. The QR decomposition leaves a system of at most
    four rows with the same solutions.
    """
    columns = windows.terms[:, used][chosen]
    scale = np.sqrt(np.mean(columns**2, axis=1, keepdims=True))
    scale[scale == 0.0] = np.inf
    q, r = np.linalg.qr(columns / scale)
    targets = np.einsum("bwk,bw->bk", q, windows.joules[chosen])
    result = np.zeros((len(chosen), len(TERMS)))
    result[:, used] = least_squares(r, targets) / scale[:, 0]
    return result


def least_squares(systems: FloatArray, targets: FloatArray) -> FloatArray:
    """Return the x of at least 0 with the smallest |A x - b|, (B, k), for B systems A (B, m, k) and
    b (B, m).

    The best x is the unbounded solution for some set of terms, the other ones being 0. With few
    terms all sets can be tried.
    """
    count = systems.shape[2]
    best = np.zeros((len(systems), count))
    error = np.sum(targets**2, axis=1)
    for size in range(1, count + 1):
        for chosen in itertools.combinations(range(count), size):
            columns = systems[:, :, chosen]
            found = (np.linalg.pinv(columns) @ targets[:, :, np.newaxis])[:, :, 0]
            left = np.sum((np.einsum("bmk,bk->bm", columns, found) - targets) ** 2, axis=1)
            better = (found >= 0.0).all(axis=1) & (left < error)
            best[better] = 0.0
            best[np.ix_(better, chosen)] = found[better]
            error[better] = left[better]
    return best


def phase_totals_j(
    fits: FloatArray, terms: FloatArray, prefill_steps: FloatArray, dynamic_j: FloatArray
) -> FloatArray:
    """Return the joules of prefill and decode in all slots, (V, 2), by V fits that are scaled to
    the measured energies.

    `prefill_steps` (K,) is the part of prefills in the steps of each slot.
    """
    modelled_j = fits @ terms.T
    scale = quotient(np.broadcast_to(dynamic_j, modelled_j.shape), modelled_j)
    total_j = (scale * modelled_j).sum(axis=1)
    prefill_j = (scale * (fits[:, :1] * terms[:, 0] + fits[:, 2:3] * prefill_steps)).sum(axis=1)
    result: FloatArray = np.column_stack([prefill_j, total_j - prefill_j])
    return result


def is_separable(windows: FitWindows, phases_j: Sequence[float], half_j: Sequence[float]) -> bool:
    """Return True if the energies of prefill and decode can be stated, with their half-widths.

    Both are above 0, and prefill varies independently: its tokens are no linear combination of the
    terms of decode.
    """
    if not all(
        joules > 0.0 and half <= SEPARABLE_RATIO * joules
        for joules, half in zip(phases_j, half_j, strict=True)
    ):
        return False
    prefill = windows.terms[:, 0]
    decode = windows.terms[:, 1:3]
    if not np.any(prefill) or not np.any(decode):
        return False
    scaled = decode / np.maximum(np.sqrt(np.mean(decode**2, axis=0)), 1e-300)
    explained = scaled @ np.linalg.lstsq(scaled, prefill, rcond=None)[0]
    return bool(np.sum((prefill - explained) ** 2) > MIN_OWN_VARIATION * np.sum(prefill**2))

"""Fit of the energy model to the measured energy: joules of a prefilled token, of context, and of a decode step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from analyzer.model.samples import FloatArray
from analyzer.studies.requests.load import TERMS

SHARED_STEP = (0, 1, 2)
"""Terms of the model: prefilled tokens, context, and decode steps, which the requests in progress share."""
SEPARATE_TOKENS = (0, 1, 3)
"""Terms of the alternative model, in which each generated token costs the same at each batch size."""
WINDOW_S = 5.0
SHORT_WINDOW_S = 1.0
MIN_WINDOWS = 24
"""Windows of a fit, if the slots are short enough. Wide windows matter: spans place tokens evenly over a phase, and
errors of their place within a window would bias the coefficients towards 0."""

MIN_OWN_VARIATION = 0.01
"""Least part of the squared prefill tokens that the terms of decode do not explain, for separate energies."""


@dataclass(frozen=True, slots=True)
class FitWindows:
    """Sums over windows of equal numbers of slots: terms (W, 4) and dynamic joules (W,)."""

    terms: FloatArray
    joules: FloatArray


def fit_windows(terms: FloatArray, joules: FloatArray, width_s: float, window_s: float) -> FitWindows:
    """Return the sums over windows of about `window_s`; `terms` (K, 4) and `joules` (K,) of busy slots of `width_s`."""
    slots = len(joules)
    count = max(1, min(round(window_s / width_s), slots // MIN_WINDOWS))
    used = slots // count * count
    shape = (used // count, count)
    return FitWindows(terms[:used].reshape(*shape, len(TERMS)).sum(axis=1), joules[:used].reshape(shape).sum(axis=1))


def fit(windows: FitWindows, used: Sequence[int]) -> FloatArray:
    """Return the joules of each of TERMS, at least 0, by least squares; 0 for terms that are not used."""
    result = np.zeros(len(TERMS))
    columns = windows.terms[:, used]
    scale = np.sqrt(np.mean(columns**2, axis=0))
    known = np.flatnonzero(scale > 0.0)
    if len(known):
        solution, _ = nnls(columns[:, known] / scale[known], windows.joules)
        result[np.array(used)[known]] = solution / scale[known]
    return result


def bootstrap(windows: FitWindows, used: Sequence[int], rng: np.random.Generator, count: int = 100) -> FloatArray:
    """Return fits to resampled windows, (count, 4)."""
    total = len(windows.joules)
    fits = []
    for _ in range(count):
        chosen = rng.integers(0, total, total)
        fits.append(fit(FitWindows(windows.terms[chosen], windows.joules[chosen]), used))
    return np.array(fits)


def is_separable(windows: FitWindows) -> bool:
    """Return whether prefill varies by itself: its tokens are no fixed mixture of the terms of decode."""
    prefill, decode = windows.terms[:, 0], windows.terms[:, 1:3]
    if not np.any(prefill) or not np.any(decode):
        return False
    scaled = decode / np.maximum(np.sqrt(np.mean(decode**2, axis=0)), 1e-300)
    explained = scaled @ np.linalg.lstsq(scaled, prefill, rcond=None)[0]
    return bool(np.sum((prefill - explained) ** 2) > MIN_OWN_VARIATION * np.sum(prefill**2))

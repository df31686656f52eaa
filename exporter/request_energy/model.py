"""Energy model of a server with its uncertainty: a fit, its covariance, and variants that show the errors of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from exporter.request_energy.fit import SHORT_WINDOW_S, WINDOW_S, FitWindows, bootstrap, fit, fit_windows
from exporter.request_energy.load import TERMS
from exporter.request_energy.pieces import FloatArray

MIN_FIT_SLOTS = 6
"""Least number of slots with requests for a fit."""
_LEAST_STEP = 1e-6
"""Least step of a derivative; the usual one is the standard error, since energies are bounded, but not derivatives."""


@dataclass(frozen=True, slots=True)
class EnergyModel:
    """Joules of the terms: `fits` (3 + T, 4), with the `covariance` (T, T) and the steps (T,) of the T fitted terms.

    The fits are the best one, one to shorter windows, one with other terms, and the best one with each of the T terms
    raised by its step. `windows` belong to the best fit.
    """

    fits: FloatArray
    covariance: FloatArray
    steps: FloatArray
    windows: FitWindows

    @property
    def joules_of(self) -> FloatArray:
        """Joules of each of TERMS, (4,)."""
        best: FloatArray = self.fits[0]
        return best


def fit_model(
    terms: FloatArray, dynamic_j: FloatArray, width_s: float, used: Sequence[int], other_terms: Sequence[int]
) -> EnergyModel:
    """Return the model with the `used` terms, of slots with requests: `terms` (K, 4) and `dynamic_j` (K,)."""
    wide = fit_windows(terms, dynamic_j, width_s, WINDOW_S)
    joules_of = fit(wide, used)
    covariance = np.cov(bootstrap(wide, used, np.random.default_rng(0)).T)[np.ix_(used, used)]
    short = fit(fit_windows(terms, dynamic_j, width_s, SHORT_WINDOW_S), used)
    steps = np.maximum(np.sqrt(np.diag(covariance)), np.maximum(_LEAST_STEP * joules_of[list(used)], _LEAST_STEP))
    raised = [joules_of + step * (np.arange(len(TERMS)) == k) for k, step in zip(used, steps, strict=True)]
    return EnergyModel(np.array([joules_of, short, fit(wide, other_terms), *raised]), covariance, steps, wide)

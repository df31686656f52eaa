"""Energy model of a server with its uncertainty: a fit, its covariance, and variants that show the
errors of models.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from wattline_exporter.requests.division.arrays import FloatArray
from wattline_exporter.requests.division.fit import (
    SEPARATE_TOKENS,
    SHARED_STEP,
    TERMS,
    WINDOW_S,
    FitWindows,
    bootstrap,
    fit,
    fit_windows,
    is_separable,
    phase_totals_j,
)
from wattline_exporter.requests.division.half_widths import ERRORS, phase_half_widths_j
from wattline_exporter.requests.division.spans import IDLE_RATIO, RequestSpans

Role = Literal["prefill", "decode"]
_TERMS_OF_ROLE: dict[Role | None, tuple[Sequence[int], Sequence[int]]] = {
    None: (SHARED_STEP, SEPARATE_TOKENS),
    "prefill": (SHARED_STEP[:1], SEPARATE_TOKENS[:1]),
    "decode": (SHARED_STEP[1:], SEPARATE_TOKENS[1:]),
}
"""Terms of the model and of the alternative one, by the phase for which the devices work; None for
both.
"""
MIN_FIT_SLOTS = 6
"""Least number of slots with requests for a fit."""
FIT_SLOTS = 1_200
"""Most slots with requests in a fit while a server runs, five minutes of slots of 0.25 s."""
FIT_FACTOR = 3.0
DOUBT_FACTOR = 4.0
"""Factors of the standard errors: of the fit, and of the distance to the other model that the data
allow.
"""
TERM_RATIOS = 0.25, 0.4, 0.1, 0.1
"""Standard errors of the coefficients of TERMS, relative to them: a token or a step does not always
cost the same. Steps last longer with more context, but tokens are spread evenly over a decode. A
part of the energy of context therefore counts as that of steps, up to half of it with long prompts.
"""
OTHER_FIT = 1
"""Position of the fit towards the other model among the fits."""
LEAST_RATIO = 0.3
UNKNOWN_RATIO = 1.0
"""Least half-width of an estimate, relative to it, and that with fewer than LEAST_COMPARED
requests.
"""
LEAST_COMPARED = 20
COMPARED = 1_000
"""Least and most final requests whose estimates give the half-width of the next one."""
_LEAST_STEP = 1e-6
"""Least step of a derivative; the usual one is the standard error, since energies are bounded, but
not derivatives.
"""


def only_role(roles: Collection[str | None]) -> Role | None:
    """Return the role of all requests if they have the same one (a part of a disaggregated server),
    else None.
    """
    return next((role for role in get_args(Role) if set(roles) == {role}), None)


@dataclass(frozen=True, slots=True)
class EnergyModel:
    """Joules of the terms: `fits` (2 + T, 4) of T fitted terms.

    The fits are the best one, the one towards the model with other terms that the data still allow,
    and the best one with each of the T terms raised by its step of `steps` (T,). `directions` (T,
    T) is a root of the covariance: the vector of the slopes of an energy in the terms, times it,
    has the standard error of the energy as its length. `windows` belong to the fit.
    """

    fits: FloatArray
    directions: FloatArray
    steps: FloatArray
    windows: FitWindows

    @property
    def joules_of(self) -> FloatArray:
        """Joules of each of TERMS, (4,)."""
        best: FloatArray = self.fits[0]
        return best

    def errors(self, amounts: FloatArray) -> FloatArray:
        """Return the signed standard errors (ERRORS, ...) of amounts by each of the fits, (2 + T,
        ...).

        The directions of the fit come first, 0 where it has less terms, then the difference to the
        other model.
        """
        result = np.zeros((ERRORS, *amounts.shape[1:]))
        raised = np.moveaxis(amounts[OTHER_FIT + 1 :] - amounts[0], 0, -1) / self.steps
        result[: len(self.steps)] = np.moveaxis(raised @ self.directions, -1, 0)
        result[-1] = amounts[OTHER_FIT] - amounts[0]
        return result


def fit_model(
    terms: FloatArray,
    dynamic_j: FloatArray,
    width_s: float,
    role: Role | None = None,
) -> EnergyModel:
    """Return the model of slots with requests: `terms` (K, 4) and `dynamic_j` (K,)."""
    used, other_terms = _TERMS_OF_ROLE[role]
    windows = fit_windows(terms, dynamic_j, width_s, WINDOW_S)
    joules_of = fit(windows, used)
    random = np.cov(bootstrap(windows, used, np.random.default_rng(0)).T)[np.ix_(used, used)]
    covariance = (
        FIT_FACTOR**2 * random
        + np.diag(np.array(TERM_RATIOS)[list(used)] * joules_of[list(used)]) ** 2
    )
    steps = np.maximum(
        np.sqrt(np.diag(random)), np.maximum(_LEAST_STEP * joules_of[list(used)], _LEAST_STEP)
    )
    raised = [
        joules_of + step * (np.arange(len(TERMS)) == k) for k, step in zip(used, steps, strict=True)
    ]
    change = fit(windows, other_terms) - joules_of
    allowed = joules_of + _doubt(windows, joules_of, change) * change
    fits = np.array([joules_of, allowed, *raised])
    return EnergyModel(fits, _symmetric_root(covariance), steps, windows)


def _symmetric_root(covariance: FloatArray) -> FloatArray:
    """Return a root (T, T) of a covariance, R with R Rᵀ equal to it, by that of the correlations.

    That root is symmetric, so that it changes little from one fit to the next, and exact for terms
    of different sizes, also for those without an error.
    """
    deviations = np.sqrt(np.diag(covariance))
    scale = np.where(deviations > 0.0, deviations, 1.0)
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    root: FloatArray = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return scale[:, np.newaxis] * root


def _doubt(windows: FitWindows, joules_of: FloatArray, change: FloatArray) -> float:
    """Return the share of the change to another model that the data allow, 0 to 1.

    The best mixture of both models has a weight of the other one; the residuals of both give its
    standard error. A model that the data reject adds no uncertainty to the energies.
    """
    difference_j = windows.terms @ change
    square_j2 = float(difference_j @ difference_j)
    if not square_j2:
        return 0.0
    left_j = windows.joules - windows.terms @ joules_of
    weight = float(difference_j @ left_j) / square_j2
    variance = (
        float(left_j @ left_j) / max(1, len(left_j) - int(np.count_nonzero(joules_of))) / square_j2
    )
    return min(1.0, DOUBT_FACTOR * math.hypot(weight, math.sqrt(variance)))


class FitSlots:
    """Terms and energies of the latest slots with requests, of the usual width `width_s`."""

    def __init__(self, width_s: float, role: Role | None = None) -> None:
        self._width_s = width_s
        self._role: Role | None = role
        self.terms = np.empty((0, 4))
        self._prefill_steps = np.empty(0)
        self._dynamic_j = np.empty(0)
        self._idle_j = np.empty(0)
        self._covered_s = np.empty(0)
        self._guessed_j = np.empty(0)

    def __len__(self) -> int:
        return len(self._dynamic_j)

    def add(
        self,
        terms: FloatArray,
        prefill_ratio: FloatArray,
        dynamic_j: FloatArray,
        idle_j: FloatArray,
        covered_s: FloatArray,
    ) -> None:
        """Add K slots; `prefill_ratio` (K,) is the part of prefills in their steps, `covered_s`
        (K,) their seconds with requests.
        """
        self.terms = np.concatenate([self.terms, terms])[-FIT_SLOTS:]
        self._prefill_steps = _latest(self._prefill_steps, prefill_ratio * terms[:, 2])
        self._dynamic_j = _latest(self._dynamic_j, dynamic_j)
        self._idle_j = _latest(self._idle_j, idle_j)
        self._covered_s = _latest(self._covered_s, covered_s)

    def add_guessed(self, guessed_j: FloatArray) -> None:
        """Add the energies above idle of requests whose first token is a guess, in the K slots that
        were added last.
        """
        self._guessed_j = _latest(self._guessed_j, guessed_j)

    def fit(self) -> EnergyModel | None:
        """Return the model, None with too few slots."""
        if len(self) < MIN_FIT_SLOTS:
            return None
        return fit_model(self.terms, self._dynamic_j, self._width_s, self._role)

    @property
    def steps_per_token(self) -> float:
        steps, tokens = self.terms[:, 2:].sum(axis=0).tolist()
        return float(steps / tokens) if tokens else 0.0

    @property
    def guessed_ratio(self) -> float:
        """Part of the energy above idle in requests whose first token is a guess."""
        return float(self._guessed_j.sum()) / max(float(self._dynamic_j.sum()), 1e-9)

    def other_ratio(self, limit_w: float) -> float:
        """Return the largest power of other work, relative to that above idle during requests, at
        most 1.
        """
        other_j = limit_w * float(self._covered_s.sum())
        return min(1.0, other_j / max(float(self._dynamic_j.sum()), 1e-9))

    def is_separable(self, model: EnergyModel, other_ratio: float) -> bool:
        """Return True if the energies of prefill and decode can be stated.

        A part of `other_ratio` may be of other work.
        """
        totals_j = phase_totals_j(model.fits, self.terms, self._prefill_steps, self._dynamic_j)
        idle_half_j = IDLE_RATIO * float(self._idle_j.sum())
        unknown_j = self.guessed_ratio * float(totals_j[0].sum()) + other_ratio * totals_j[0]
        half_j = phase_half_widths_j(totals_j[0], model.errors(totals_j), unknown_j, idle_half_j)
        return is_separable(model.windows, totals_j[0].tolist(), half_j)


def _latest(values: FloatArray, new: FloatArray) -> FloatArray:
    """Return the latest FIT_SLOTS of some values and new ones."""
    result: FloatArray = np.append(values, new)[-FIT_SLOTS:]
    return result


class Estimates:
    """Likely energies of requests at their reports, and the errors of those that are final."""

    def __init__(self) -> None:
        self._flight_s = self._idle_j = 0.0
        self._error_ratios = np.empty(0)
        """Errors of the latest estimates, relative to them."""

    def add(self, flight_s: float, idle_j: float) -> None:
        """Add the time of all requests in slots, and their idle energy."""
        self._flight_s += flight_s
        self._idle_j += idle_j

    @property
    def idle_w(self) -> float:
        """Mean idle power of a request in progress."""
        return self._idle_j / self._flight_s if self._flight_s else 0.0

    def of(
        self, spans: RequestSpans, model: EnergyModel, steps_per_token: float
    ) -> tuple[FloatArray, FloatArray] | None:
        """Return the likely joules of requests, and their half-widths; None if no request was in
        progress before.
        """
        if not self._flight_s:
            return None
        made = spans.generated_tokens
        amounts = np.column_stack(
            [
                spans.prefilled_tokens,
                made * (spans.prompt_tokens + made / 2),
                made * steps_per_token,
                np.zeros(len(spans)),
            ]
        )
        joules = amounts @ model.joules_of + (spans.ended_s - spans.arrived_s) * self.idle_w
        known = np.sort(self._error_ratios)
        ratio = known[int(0.95 * len(known))] if len(known) >= LEAST_COMPARED else UNKNOWN_RATIO
        return joules, joules * max(LEAST_RATIO, float(ratio))

    def compare(self, estimated_j: FloatArray, final_j: FloatArray) -> None:
        """Keep the errors of the latest estimates: 95 % of the next ones are likely smaller than
        the 95 % quantile.

        Estimates that are not a number are left out.
        """
        ratios = np.abs(estimated_j - final_j) / np.maximum(estimated_j, 1e-9)
        self._error_ratios = np.append(self._error_ratios, ratios[~np.isnan(ratios)])[-COMPARED:]

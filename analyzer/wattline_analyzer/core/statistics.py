"""Statistics of few repeats: pairwise comparisons of the settings of a sweep.

Values are compared as ratios, so the arithmetic is on logarithms: studentized residual bootstrap
(Davison and Hinkley, Bootstrap Methods and Their Application, section 6.3) with Holm's correction.
Percentile intervals are too narrow for five repeats. The scatter of each setting is its own,
moderated by that of all settings.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from wattline.figures import MAD_TO_SIGMA

FloatArray = npt.NDArray[np.float64]
CONFIDENCE = 0.95
RESAMPLES = 2_000
FEWEST_FOR_OUTLIERS = 5
OUTLIER_SCALES = 3.5
_MEAN_DEVIATION_TO_SIGMA = 1.2533
_PRIOR_FREEDOM = 2.0
"""Weight of the common variance: few repeats of a setting do not show its own."""
_NOTHING = 1e-12
"""Ratios below are rounding errors."""
_MOST_STEPS = 100_000
_PRECISION = 1e-15
_FEW = 300
"""Degrees of freedom up to which the gamma function is finite."""


@dataclass(frozen=True, slots=True, eq=False)
class SettingComparison:
    """Comparison of all pairs of settings, by position.

    `mean` and `half` are the mean logarithm of each setting and the half-width of its CI.
    `difference[a, b]` is a minus b. `p` is before Holm's correction. `paired`: settings were
    compared within each repeat, so that drift cancels.
    """

    mean: FloatArray
    half: FloatArray
    difference: FloatArray
    difference_half: FloatArray
    p: FloatArray
    paired: bool

    def p_against(self, reference: int, others: Sequence[int]) -> FloatArray:
        """Return the p-value of each setting's difference from one of them, Holm-corrected among
        `others`.

        Only these differences decide which settings are like the best. Values of other settings are
        not corrected.
        """
        found = np.array(self.p[:, reference], dtype=np.float64)
        compared = [number for number in others if number != reference]
        if compared:
            found[compared] = holm(found[compared])
        return found


def compare_settings(
    values: Sequence[float],
    settings: Sequence[int],
    repeats: Sequence[Hashable],
    *,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> SettingComparison:
    """Compare positive values, each of a setting (numbered from 0) and a repeat.

    Raises ValueError if no setting has two values, because their scatter is unknown then.
    """
    logs = np.log(np.asarray(values, dtype=np.float64))
    groups = np.asarray(settings, dtype=np.int64)
    count = int(groups.max()) + 1
    paired = _is_paired(groups, repeats)
    alone = _Fit.of(logs, _indicators(groups, count), count)
    paired_fit = _Fit.of(logs, _blocked(groups, count, repeats), count) if paired else alone
    rng = np.random.default_rng(seed)
    eye = np.eye(count)
    mean, half, _ = alone.contrasts(eye, rng, confidence)
    first, second = np.triu_indices(count, 1)
    difference, p, halves = (
        np.zeros((count, count)),
        np.ones((count, count)),
        np.zeros((count, count)),
    )
    if len(first):
        found, found_half, found_p = paired_fit.contrasts(eye[first] - eye[second], rng, confidence)
        difference[first, second], difference[second, first] = found, -found
        halves[first, second] = halves[second, first] = found_half
        p[first, second] = p[second, first] = found_p
    return SettingComparison(mean, half, difference, halves, p, paired)


def _is_paired(groups: npt.NDArray[np.int64], repeats: Sequence[Hashable]) -> bool:
    """Return whether each setting has one value in each of several repeats, up to 20 % missing."""
    cells = set(zip(groups.tolist(), repeats, strict=True))
    blocks = set(repeats)
    whole = len(set(groups.tolist())) * len(blocks)
    return len(blocks) > 1 and len(cells) == len(groups) and len(cells) >= 0.8 * whole


def _indicators(groups: npt.NDArray[np.int64], count: int) -> FloatArray:
    indicators: FloatArray = (groups[:, None] == np.arange(count)).astype(np.float64)
    return indicators


def _blocked(groups: npt.NDArray[np.int64], count: int, repeats: Sequence[Hashable]) -> FloatArray:
    """Return the indicators of the settings, then those of the repeats except the first."""
    blocks = {name: position for position, name in enumerate(dict.fromkeys(repeats))}
    numbers = np.array([blocks[name] for name in repeats], dtype=np.int64)
    return np.hstack([_indicators(groups, count), _indicators(numbers, len(blocks))[:, 1:]])


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """Least squares fit of the values on a design whose first columns are the settings."""

    solve: FloatArray
    hat: FloatArray
    settings: FloatArray
    """Indicators of the settings."""
    coefficients: FloatArray
    left: FloatArray
    sigma: float
    freedom: int
    noise: FloatArray

    @classmethod
    def of(cls, values: FloatArray, design: FloatArray, count: int) -> _Fit:
        solve: FloatArray = np.asarray(np.linalg.pinv(design), dtype=np.float64)
        hat = design @ solve
        freedom = len(values) - int(np.linalg.matrix_rank(design))
        if freedom < 1:
            raise ValueError("no setting has two runs: their scatter is unknown")
        left = values - hat @ values
        leverage = np.clip(np.diag(hat), 0.0, 1 - 1e-9)
        noise: FloatArray = left / np.sqrt(1 - leverage)
        sigma = float(np.sqrt(left @ left / freedom))
        centred = np.asarray(noise - noise.mean(), dtype=np.float64)
        return cls(solve, hat, design[:, :count], solve @ values, left, sigma, freedom, centred)

    def contrasts(
        self, rows: FloatArray, rng: np.random.Generator, confidence: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the value of each row of weights, the half-width of its CI, and its p under the
        hypothesis of zero.
        """
        weights = np.hstack([rows, np.zeros((len(rows), len(self.coefficients) - rows.shape[1]))])
        value = weights @ self.coefficients
        if self.sigma < _NOTHING:
            return value, np.zeros_like(value), np.where(np.abs(value) < _NOTHING, 1.0, 0.0)
        parts = weights @ self.solve
        error = self._errors(parts, self.left[:, None])[:, 0]
        statistics = np.sort(self._studentized(parts, rng), axis=None)
        half = np.quantile(statistics, confidence, method="higher") * error
        beyond = len(statistics) - np.searchsorted(statistics, np.abs(value) / error)
        return value, half, (1 + beyond) / (1 + len(statistics))

    def _errors(self, parts: FloatArray, left: FloatArray) -> FloatArray:
        """Return the standard error of each contrast by the residuals of each column.

        The variance of a setting is its own, moderated by that of all settings with _PRIOR_FREEDOM
        degrees of freedom (Smyth, Statistical Applications in Genetics and Molecular Biology 3,
        2004). A setting has its share of them.
        """
        freedom = self.settings.sum(axis=0)[:, None] * self.freedom / len(self.settings)
        squares = self.settings.T @ left**2
        variance = (_PRIOR_FREEDOM * squares.sum(axis=0) / self.freedom + squares) / (
            _PRIOR_FREEDOM + freedom
        )
        errors: FloatArray = np.sqrt(parts**2 @ self.settings @ variance)
        return errors

    def _studentized(self, parts: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return |t| of each contrast in each resample; infinite where a resample has no
        scatter.
        """
        noise = self.noise[rng.integers(len(self.noise), size=(len(self.noise), RESAMPLES))]
        error = self._errors(parts, noise - self.hat @ noise)
        found = np.abs(parts @ noise)
        statistics: FloatArray = np.divide(
            found, error, out=np.full_like(found, np.inf), where=error > 1e-12 * self.sigma
        )
        return statistics


def holm(p: Sequence[float] | FloatArray) -> FloatArray:
    """Return p-values with Holm's step-down correction, which bounds the chance of any false
    positive (Scandinavian Journal of Statistics 6, 1979).
    """
    given = np.asarray(p, dtype=np.float64)
    order = np.argsort(given, kind="stable")
    steps = given[order] * (len(given) - np.arange(len(given)))
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def pooled_outliers(groups: Sequence[Sequence[float]]) -> list[list[bool] | None]:
    """Return by group which values lie more than 3.5 scaled MAD from its median, as ratios.

    The MAD is the pooled one, or the group's own if that is larger: a group may scatter more than
    others. None for a group of fewer than five values, in which one odd value moves both median and
    MAD.
    """
    logs = [np.log(np.asarray(group, dtype=np.float64)) for group in groups]
    # the median itself is at zero and says nothing about the spread, so each group gives one value
    # less
    apart = {
        number: np.sort(np.abs(group - np.median(group)))[1:]
        for number, group in enumerate(logs)
        if len(group) >= FEWEST_FOR_OUTLIERS
    }
    if not apart:
        return [None] * len(logs)
    pooled = float(np.median(np.concatenate(list(apart.values()))))
    scales = {
        number: MAD_TO_SIGMA * max(pooled, float(np.median(offs))) for number, offs in apart.items()
    }
    return [
        None
        if number not in scales
        else [
            bool(off > OUTLIER_SCALES * scales[number] > 0)
            for off in np.abs(group - np.median(group))
        ]
        for number, group in enumerate(logs)
    ]


def gpu_outliers(values: FloatArray) -> list[bool] | None:
    """Return which values lie more than 3.5 scaled MAD from the median; None below five values.

    If most values are equal, the MAD is 0, and the scaled mean deviation replaces it (Iglewicz and
    Hoaglin, "How to Detect and Handle Outliers", 1993).
    """
    if len(values) < FEWEST_FOR_OUTLIERS:
        return None
    deviations = np.abs(values - np.median(values))
    scale = MAD_TO_SIGMA * float(np.median(deviations)) or _MEAN_DEVIATION_TO_SIGMA * float(
        deviations.mean()
    )
    return [bool(off > OUTLIER_SCALES * scale > 0) for off in deviations]


def highest_share(found: int, n: int, probability: float) -> float:
    """Return the share at which at most `found` of `n` have this probability, by bisection of the
    binomial.
    """
    low, high = found / n, 1.0
    while low < (middle := (low + high) / 2) < high:
        terms = (math.comb(n, k) * middle**k * (1 - middle) ** (n - k) for k in range(found + 1))
        low, high = (middle, high) if math.fsum(terms) > probability else (low, middle)
    return high


@lru_cache(maxsize=256)
def student_quantile(freedom: float, probability: float) -> float:
    """Return the quantile of Student's t for a probability in (0.5, 1), as `scipy.special.stdtrit`
    does.

    The import of scipy takes a third of the CPU time of a report. Newton's method begins at the
    normal quantile and rises, because the upper tail is convex.
    """
    tail = 1 - probability
    if not (freedom > 0 and 0 < tail < 0.5):
        return math.nan
    scale, t = _gamma_ratio(freedom) / math.sqrt(math.pi), NormalDist().inv_cdf(probability)
    for _ in range(100):
        power = scale * math.exp(-freedom / 2 * math.log1p(t * t / freedom))
        density = power / math.sqrt(freedom + t * t)
        step = (_student_tail(t, freedom, power) - tail) / density
        t += step
        if abs(step) <= 1e-9 * t:  # the next step would be its square
            break
    return t


def _student_tail(t: float, freedom: float, power: float) -> float:
    """Return the probability above t: I(ν / 2, 1/2) / 2 at ν / (ν + t²), where I is the incomplete
    beta function.
    """
    whole = freedom + t * t
    front = power * t / math.sqrt(whole)
    if t * t * (freedom + 2) < 3 * freedom:
        return 0.5 - front * _beta_fraction(0.5, freedom / 2, t * t / whole)
    return front * _beta_fraction(freedom / 2, 0.5, freedom / whole) / freedom


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's
    method.
    """
    inverse, ratio = 1 / (1 - (a + b) * x / (a + 1)), 1.0
    value = inverse
    for n in range(1, _MOST_STEPS):
        for numerator in (
            n * (b - n) * x / ((a + 2 * n - 1) * (a + 2 * n)),
            -(a + n) * (a + b + n) * x / ((a + 2 * n) * (a + 2 * n + 1)),
        ):
            inverse, ratio = 1 / (1 + numerator * inverse), 1 + numerator / ratio
            value *= inverse * ratio
        if abs(inverse * ratio - 1) <= _PRECISION:
            break
    return value


def _gamma_ratio(freedom: float) -> float:
    """Return Γ((ν + 1) / 2) / Γ(ν / 2), for many degrees of freedom by its asymptotic series."""
    if freedom < _FEW:
        return math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2)
    part = 1 / freedom
    series = (
        1
        - part / 4
        + part**2 / 32
        + 5 * part**3 / 128
        - 21 * part**4 / 2_048
        - 399 * part**5 / 8_192
    )
    return math.sqrt(freedom / 2) * series

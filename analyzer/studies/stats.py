"""Statistics of few repeats at several settings: what differs, how sure that is, and smooth curves. Pure.

Costs are compared as ratios, so the arithmetic is on logarithms. With five repeats the percentiles of a plain bootstrap
are too narrow, and their p-values reach zero where all five happen to agree; so the residuals of all settings are
resampled together and each resample is studentized (Davison and Hinkley, Bootstrap Methods and Their Application,
section 6.3). That takes repeats to scatter by about the same share at each setting.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
LEVEL = 0.95
RESAMPLES = 2_000
FEWEST_FOR_OUTLIERS = 5
OUTLIER_SCALES = 3.5
_MAD_TO_SIGMA = 1.4826
_NOTHING = 1e-12
"""A share that is but rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Settings by their position. `mean` and `half` are of the logarithm, each setting by itself; `difference[a, b]` is
    that of a less b with its half-width, `p` before and `adjusted` after Holm's correction over all pairs.

    `paired` says that repeats were compared with those made beside them, so that drift cancels.
    """

    mean: FloatArray
    half: FloatArray
    difference: FloatArray
    difference_half: FloatArray
    p: FloatArray
    adjusted: FloatArray
    paired: bool

    def differs(self, a: int, b: int) -> bool:
        return bool(self.adjusted[a, b] < 1 - LEVEL)


def compare(
    values: Sequence[float], settings: Sequence[int], repeats: Sequence[Hashable], *, seed: int = 0
) -> Comparison:
    """`values` are positive, each with its setting, numbered from 0, and the repeat that it was made in. Raises
    ValueError where no setting has two values, for then nothing tells how much they scatter.

    The pair that is looked at is picked by looking, as is the best, so the correction counts all pairs.
    """
    logs = np.log(np.asarray(values, dtype=np.float64))
    groups = np.asarray(settings, dtype=np.int64)
    count = int(groups.max()) + 1
    paired = _is_paired(groups, repeats)
    alone = _Fit.of(logs, _indicators(groups, count))
    beside = _Fit.of(logs, _blocked(groups, count, repeats)) if paired else alone
    rng = np.random.default_rng(seed)
    eye = np.eye(count)
    mean, half, _ = alone.contrasts(eye, rng)
    first, second = np.triu_indices(count, 1)
    difference, p, halves = np.zeros((count, count)), np.ones((count, count)), np.zeros((count, count))
    adjusted = np.ones((count, count))
    if len(first):
        found, found_half, found_p = beside.contrasts(eye[first] - eye[second], rng)
        difference[first, second], difference[second, first] = found, -found
        halves[first, second] = halves[second, first] = found_half
        p[first, second] = p[second, first] = found_p
        adjusted[first, second] = adjusted[second, first] = holm(found_p)
    return Comparison(mean, half, difference, halves, p, adjusted, paired)


def _is_paired(groups: npt.NDArray[np.int64], repeats: Sequence[Hashable]) -> bool:
    """Each setting was made once in each of two or more repeats, but for some that were left out."""
    cells = set(zip(groups.tolist(), repeats, strict=True))
    blocks = set(repeats)
    whole = len(set(groups.tolist())) * len(blocks)
    return len(blocks) > 1 and len(cells) == len(groups) and len(cells) >= 0.8 * whole


def _indicators(groups: npt.NDArray[np.int64], count: int) -> FloatArray:
    found: FloatArray = (groups[:, None] == np.arange(count)).astype(np.float64)
    return found


def _blocked(groups: npt.NDArray[np.int64], count: int, repeats: Sequence[Hashable]) -> FloatArray:
    """The settings, and beside them the repeats but for the first."""
    blocks = {name: position for position, name in enumerate(dict.fromkeys(repeats))}
    numbers = np.array([blocks[name] for name in repeats], dtype=np.int64)
    return np.hstack([_indicators(groups, count), _indicators(numbers, len(blocks))[:, 1:]])


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """Least squares of the values on the columns of a design, the settings first."""

    solve: FloatArray
    hat: FloatArray
    covariance: FloatArray
    coefficients: FloatArray
    sigma: float
    freedom: int
    noise: FloatArray

    @classmethod
    def of(cls, values: FloatArray, design: FloatArray) -> _Fit:
        solve: FloatArray = np.asarray(np.linalg.pinv(design), dtype=np.float64)
        hat = design @ solve
        freedom = len(values) - int(np.linalg.matrix_rank(design))
        if freedom < 1:
            raise ValueError("no setting has two runs, so nothing tells how much they scatter")
        left = values - hat @ values
        leverage = np.clip(np.diag(hat), 0.0, 1 - 1e-9)
        noise: FloatArray = left / np.sqrt(1 - leverage)
        sigma = float(np.sqrt(left @ left / freedom))
        centred = np.asarray(noise - noise.mean(), dtype=np.float64)
        return cls(solve, hat, solve @ solve.T, solve @ values, sigma, freedom, centred)

    def contrasts(self, rows: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Of each row of weights of the settings: the value, half of its interval, and p of its being zero."""
        weights = np.hstack([rows, np.zeros((len(rows), len(self.coefficients) - rows.shape[1]))])
        value = weights @ self.coefficients
        scale = np.sqrt(np.einsum("ij,jk,ik->i", weights, self.covariance, weights))
        if self.sigma < _NOTHING:
            return value, np.zeros_like(value), np.where(np.abs(value) < _NOTHING, 1.0, 0.0)
        drawn = np.sort(self._studentized(weights, scale, rng), axis=None)
        half = np.quantile(drawn, LEVEL, method="higher") * scale * self.sigma
        beyond = len(drawn) - np.searchsorted(drawn, np.abs(value) / (scale * self.sigma))
        return value, half, (1 + beyond) / (1 + len(drawn))

    def _studentized(self, weights: FloatArray, scale: FloatArray, rng: np.random.Generator) -> FloatArray:
        """|t| of each contrast in each resample; where a resample does not scatter at all, it is endless."""
        noise = self.noise[rng.integers(len(self.noise), size=(len(self.noise), RESAMPLES))]
        left = noise - self.hat @ noise
        sigma = np.sqrt((left**2).sum(axis=0) / self.freedom)
        found = np.abs(weights @ (self.solve @ noise)) / scale[:, None]
        drawn: FloatArray = np.divide(found, sigma, out=np.full_like(found, np.inf), where=sigma > 1e-12 * self.sigma)
        return drawn


def holm(p: Sequence[float] | FloatArray) -> FloatArray:
    """Holm's step-down correction: the chance that any of them is called different by chance alone stays below the
    level (Scandinavian Journal of Statistics 6, 1979).
    """
    given = np.asarray(p, dtype=np.float64)
    order = np.argsort(given, kind="stable")
    steps = given[order] * (len(given) - np.arange(len(given)))
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def outliers(groups: Sequence[Sequence[float]]) -> list[list[bool] | None]:
    """By group, which values lie more than 3.5 scaled MAD from its median, on either side, as ratios.

    None for a group of fewer than five: there a single odd value moves the median and the spread too much to be told
    apart. The spread is that of all groups that are large enough.
    """
    logs = [np.log(np.asarray(group, dtype=np.float64)) for group in groups]
    large = [group for group in logs if len(group) >= FEWEST_FOR_OUTLIERS]
    if not large:
        return [None] * len(logs)
    # the median itself lies at zero and is no measure of the spread, so each group gives one less
    apart = np.concatenate([np.sort(np.abs(group - np.median(group)))[1:] for group in large])
    spread = _MAD_TO_SIGMA * float(np.median(apart))
    return [
        None
        if len(group) < FEWEST_FOR_OUTLIERS
        else [bool(off > OUTLIER_SCALES * spread > 0) for off in np.abs(group - np.median(group))]
        for group in logs
    ]


def rising(y: Sequence[float], weights: Sequence[float] | None = None) -> FloatArray:
    """The closest curve to `y`, which is in the order of its x, that never falls (isotonic regression)."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(np.asarray(y, dtype=np.float64), weights=weights).x, dtype=np.float64)


def curve(x: Sequence[float], y: Sequence[float], points: int = 200) -> tuple[FloatArray, FloatArray]:
    """Through all of the points, without overshoot between them (PCHIP), and only from the first to the last x.

    x rises strictly. A single point stays as it is.
    """
    from scipy.interpolate import PchipInterpolator

    if len(x) < 2:
        return np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    at = np.linspace(x[0], x[-1], points)
    return at, np.asarray(PchipInterpolator(x, y, extrapolate=False)(at), dtype=np.float64)


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """The positions of the points that none beats in one coordinate without losing in the other; less is better."""
    order = sorted(range(len(points)), key=lambda position: points[position])
    front: list[int] = []
    for position in order:
        if not front or points[position][1] < points[front[-1]][1]:
            front.append(position)
    return front

"""Statistics of few repeats: differences of groups, outliers, and limits of estimates.

Positive values are compared as ratios, so the arithmetic is on logarithms. A difference is a
contrast of a least-squares fit with a mean for each group, and an effect of each repeat where all
groups have the same repeats. Each group has its own variance; the degrees of freedom are
Satterthwaite's (Biometrics Bulletin 2, 1946). For two groups these are the t-test of pairs and
Welch's.

The errors of the runs themselves enter in three ways. A half-width is independent of other runs':
those that are known are added in quadrature, and an interval is never narrower. The limits of a
skewed interval may be the same error in each repeat: they are added to the interval. The accuracy
of the sensors is common to both groups, cancels in their ratio, and is stated with the mean only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtri, stdtr, stdtrit

from wattline.figures import MAD_TO_SIGMA, Figure, sum_of_independent, unknown

FloatArray = npt.NDArray[np.float64]
CONFIDENCE = 0.95
"""Level of the intervals that are printed."""
FALSE_CLEAR = 0.005
"""Probability, among all groups of a comparison, of a difference that is called clear by chance."""
FEWEST_PAIRS = 3
"""Pairs below which the scatter within the groups is known better than that of the ratios."""
FEWEST_FOR_SMALL = 5
"""Repeats of each side below which a difference of less than SMALL is not called clear.

Four runs of each side are in two clock states by chance, all of one side in one and all of the
other side in the other one, in 1 of 128 comparisons; five runs in 1 of 512.
"""
SMALL = 0.05
"""Difference, as a ratio, by which runs of one kind may differ in two clock states. A run that
differs by less from the others is no outlier.
"""
FEWEST_FOR_OUTLIERS = 5
OUTLIER_SCALES = 3.5
MOST_OUTLIERS = 0.4
"""Share of the runs of a group up to which runs are outliers, and not a second kind of runs."""
WIDEST = 10.0
"""Ratio of the limits of an interval above which it says nothing."""
FEW_REPEATS = "too few repeats for limits"
SHORT_RUNS = "the runs are too short for limits"
_NO_ERROR = unknown("the measurement uncertainty is unknown")
_FEW_VALUES = 2.0
"""Factor of 1 / n by which the limit of outliers is wider: the scatter of few values is uncertain.

With it, at most 1 % of the values of normal distributions are outliers, at any number of values.
"""
_MEAN_DEVIATION_TO_SIGMA = 1.2533
_PRIOR_FREEDOM = 2.0
"""Weight of the common variance of settings: few repeats of a setting do not show its own."""
_SAME = 1e-9
"""Logarithms of ratios below are rounding errors."""
_NOTHING = 1e-12
"""Standard errors below are rounding errors."""
_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class RunValue:
    """The positive value of one run; `block` is its repeat."""

    value: Figure
    block: Hashable


@dataclass(frozen=True, slots=True)
class RatioDifference:
    """Ratio of a group to the first one, with the limits of its CI.

    The limits are None where they are unknown; `too_short` states why, if the runs have errors.
    `clear`: the ratio differs from 1 by a test of level FALSE_CLEAR with Holm's correction for the
    number of groups. `repeated` is false where the CI is the measurement uncertainty alone; then
    `clear` states that the ratio differs by more than this. `p` is Holm's, None without repeats.
    """

    ratio: float
    low: float | None
    high: float | None
    n: int
    clear: bool
    repeated: bool
    p: float | None = None
    too_short: str = ""


@dataclass(frozen=True, slots=True)
class LogDifference:
    """Difference of the mean logarithms of two groups.

    `error` is the standard error by the scatter, with `freedom` degrees of freedom; None without
    repeats. `measured` is the 95 % half-width by the independent errors of the runs; it is partial
    or unknown where those of some or all runs are unknown. `common` are the limits of the errors
    that may be common to all repeats; None where no run states them. `repeats` is the number of
    runs of the smaller group.
    """

    log: float
    error: float | None
    freedom: float
    measured: Figure
    common: tuple[float, float] | None
    repeats: int

    @property
    def p(self) -> float:
        """Two-sided p-value of Student's t-test for no difference; 1 without repeats."""
        if self.error is None:
            return 1.0
        return float(two_sided_p(np.array([self.log]), np.array([self.error]), self.freedom)[0])

    def half_width(self, probability: float) -> float | None:
        """Return the distance that the true difference exceeds to one side with 1 − `probability`.

        It is Student's, and at least the measurement uncertainty that is known. Without repeats it
        is that of all runs, or unknown.
        """
        if self.error is None:
            return self.measured.complete().value
        half = student_quantile(self.freedom, probability) * self.error
        return half if self.measured.value is None else max(half, self.measured.value)


def is_beyond_chance(log: float, repeats: int) -> bool:
    """Return whether runs in two clock states do not explain a difference of mean logarithms.

    `repeats` is the number of runs of the smaller group.
    """
    return repeats >= FEWEST_FOR_SMALL or abs(log) >= math.log1p(SMALL)


def student_quantile(freedom: float, probability: float) -> float:
    """Return the quantile of Student's t."""
    return float(stdtrit(freedom, probability))


def geometric_means(
    groups: Sequence[Sequence[RunValue]], confidence: float = CONFIDENCE
) -> list[Figure]:
    """Return the geometric mean of each group with its CI, and the systematic error of its first
    run.

    A single run is assumed to scatter like the groups with repeats.
    """
    pooled = pooled_scatter(groups)
    found = []
    for group in groups:
        scatter = pooled_scatter([group]) or pooled
        mean = LogDifference(
            _mean_log(group),
            None if scatter is None else math.sqrt(scatter.variance / len(group)),
            0.0 if scatter is None else scatter.freedom,
            _measurement([group]),
            _common_limits(group),
            len(group),
        )
        low, high = _limits(mean, confidence)
        limits = None if low is None or high is None else (low, high)
        figure = Figure(math.exp(mean.log), skewed=limits, reason=_too_short(mean, low))
        found.append(figure.with_accuracy_of(group[0].value))
    return found


def ratios_to_first(
    groups: Sequence[Sequence[RunValue]], confidence: float = CONFIDENCE
) -> list[RatioDifference]:
    """Return the ratio of each other group to the first one."""
    pooled = pooled_scatter(groups)
    differences = [log_difference(groups[0], group, pooled) for group in groups[1:]]
    tested = holm([one.p for one in differences])
    return [
        _ratio(one, float(p), len(groups[0]) + len(group), confidence)
        for one, p, group in zip(differences, tested, groups[1:], strict=True)
    ]


def _ratio(difference: LogDifference, p: float, n: int, confidence: float) -> RatioDifference:
    low, high = _limits(difference, confidence)
    stated = _limits(difference, CONFIDENCE)
    is_apart = stated[0] is not None and stated[1] is not None and not stated[0] <= 1 <= stated[1]
    repeated = difference.error is not None
    is_found = not repeated or (
        p < FALSE_CLEAR and is_beyond_chance(difference.log, difference.repeats)
    )
    return RatioDifference(
        math.exp(difference.log),
        low,
        high,
        n,
        is_found and is_apart and abs(difference.log) > _SAME,
        repeated,
        p if repeated else None,
        _too_short(difference, low),
    )


def _too_short(difference: LogDifference, low: float | None) -> str:
    """Return why a difference with errors has no limits."""
    measured = difference.measured
    common = difference.common
    has_errors = difference.error is not None or measured.state == "known" or common is not None
    if low is not None or not has_errors:
        return ""
    own = 0.0 if common is None else (common[1] - common[0]) / 2
    if measured.value is not None:
        own += measured.value
    return SHORT_RUNS if _says_nothing(own) else FEW_REPEATS


def _limits(difference: LogDifference, confidence: float) -> tuple[float | None, float | None]:
    """Return the limits of the ratio; None where they are unknown or say nothing."""
    half = difference.half_width((1 + confidence) / 2)
    if half is None and difference.common is None:
        return None, None
    low, high = difference.common or (0.0, 0.0)
    if half is not None:
        low -= half
        high += half
    if _says_nothing((high - low) / 2):
        return None, None
    return math.exp(difference.log + low), math.exp(difference.log + high)


def _says_nothing(half_width: float) -> bool:
    return not half_width <= math.log(WIDEST) / 2


def log_difference(
    first: Sequence[RunValue],
    second: Sequence[RunValue],
    pooled: Scatter | None = None,
    *,
    paired: bool | None = None,
) -> LogDifference:
    """Return the difference of the second group from the first, by default by pairs where they have
    the same repeats.

    A group of one run has the `pooled` scatter.
    """
    groups = (first, second)
    error: float | None = None
    freedom = 0.0
    if min(map(len, groups)) > 1:
        fit = Fit.of(groups, paired=paired)
        _, errors, freedoms = fit.contrasts(np.array([[-1.0, 1.0]]))
        error = float(errors[0])
        freedom = float(freedoms[0])
    elif pooled is not None:
        error = math.sqrt(pooled.variance * (1 / len(first) + 1 / len(second)))
        freedom = pooled.freedom
    limits = [_common_limits(group) for group in groups]
    common = None
    if limits != [None, None]:
        (low, high), (other_low, other_high) = (ends or (0.0, 0.0) for ends in limits)
        common = other_low - high, other_high - low
    return LogDifference(
        _mean_log(second) - _mean_log(first),
        error,
        freedom,
        _measurement(groups),
        common,
        min(map(len, groups)),
    )


@dataclass(frozen=True, slots=True)
class Scatter:
    """Variance of the logarithms within groups, with its degrees of freedom."""

    variance: float
    freedom: float


def pooled_scatter(groups: Sequence[Sequence[RunValue]]) -> Scatter | None:
    """Return the scatter within all groups; None without repeats."""
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < 1:
        return None
    logs = [_logs(group) for group in groups]
    squares = math.fsum(float(((one - one.mean()) ** 2).sum()) for one in logs)
    return Scatter(squares / freedom, freedom)


def _logs(group: Sequence[RunValue]) -> FloatArray:
    return np.log([one.value.number for one in group])


def _mean_log(group: Sequence[RunValue]) -> float:
    return math.fsum(math.log(one.value.number) for one in group) / len(group)


def _measurement(groups: Sequence[Sequence[RunValue]]) -> Figure:
    """Return the half-width of a difference of means (or of one mean) by the independent errors of
    the runs. It is partial where that of a run is unknown, and contains the others only.
    """
    means = []
    for group in groups:
        halves = [one.value.relative_half_width for one in group]
        runs = [_NO_ERROR if half is None else Figure(0.0, half) for half in halves]
        means.append(sum_of_independent(runs).scaled(1 / len(group)))
    together = sum_of_independent(means)
    return replace(together, value=together.half_width, half_width=None)


def _common_limits(group: Sequence[RunValue]) -> tuple[float, float] | None:
    """Return the mean limits of errors that may be common, as logarithms of ratios to the value.

    The lower one is infinite where a limit is 0 or less. None where no run states them.
    """
    if all(one.value.skewed is None for one in group):
        return None
    limits = [
        (1.0, 1.0)
        if one.value.skewed is None
        else (one.value.skewed[0] / one.value.number, one.value.skewed[1] / one.value.number)
        for one in group
    ]
    lows = [math.log(low) if low > 0 else -math.inf for low, _ in limits]
    highs = [math.log(high) for _, high in limits]
    return math.fsum(lows) / len(group), math.fsum(highs) / len(group)


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Least-squares fit of the logarithms, with a mean for each group.

    If `paired`, it has an effect of each repeat. `parts` are the weights of the values in each
    mean, `variance` and `freedom` those of each group. A contrast has at most `whole_freedom`.
    """

    paired: bool
    numbers: npt.NDArray[np.int64]
    """Group of each value."""
    means: FloatArray
    parts: FloatArray
    variance: FloatArray
    freedom: FloatArray
    whole_freedom: float

    @classmethod
    def of(
        cls,
        groups: Sequence[Sequence[RunValue]],
        prior_freedom: float = 0.0,
        *,
        paired: bool | None = None,
    ) -> Fit:
        """Fit groups, by default in pairs where they have the same repeats.

        With a prior, the variance of each group is moderated by that of all (Smyth, Statistical
        Applications in Genetics and Molecular Biology 3, 2004), and a group may have one value.
        Raises ValueError if no group has two values, because their scatter is unknown then.
        """
        paired = is_paired(groups) if paired is None else paired
        logs = np.concatenate([_logs(group) for group in groups])
        numbers = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        indicators = (numbers[:, None] == np.arange(len(groups))).astype(np.float64)
        design = np.hstack([indicators, _blocks(groups)]) if paired else indicators
        solve = np.asarray(np.linalg.pinv(design), dtype=np.float64)
        hat = design @ solve
        squares = indicators.T @ (logs - hat @ logs) ** 2
        freedom = indicators.T @ (1 - np.diag(hat))
        whole = float(freedom.sum())
        if whole < 0.5:
            raise ValueError("no setting has two runs: their scatter is unknown")
        common = float(squares.sum()) / whole
        variance = (prior_freedom * common + squares) / (prior_freedom + freedom)
        count = len(groups)
        moderated = prior_freedom + freedom
        means = (solve @ logs)[:count]
        return cls(paired, numbers, means, solve[:count], variance, moderated, whole)

    def contrasts(self, weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return value, standard error and degrees of freedom of each row of weights of the
        means.
        """
        parts = weights @ self.parts
        shares = [
            (parts[:, self.numbers == number] ** 2).sum(axis=1) * variance
            for number, variance in enumerate(self.variance)
        ]
        squares = np.array(shares).T
        total = squares.sum(axis=1)
        spread = (squares**2 / self.freedom).sum(axis=1)
        every = np.full_like(total, self.whole_freedom)
        freedom = np.divide(total**2, spread, out=every, where=spread > 0)
        freedom = np.minimum(freedom, self.whole_freedom)
        errors = np.sqrt(total)
        return weights @ self.means, np.where(errors < _NOTHING, 0.0, errors), freedom


@dataclass(frozen=True, slots=True, eq=False)
class SettingComparison:
    """Comparison of all pairs of settings, by position.

    `mean` and `half` are the mean logarithm of each setting and the half-width of its CI.
    `difference[a, b]` is a minus b. `p` is before Holm's correction. `paired`: settings were
    compared within each repeat, so that drift cancels. `repeats` are the runs of each setting.
    """

    mean: FloatArray
    half: FloatArray
    difference: FloatArray
    difference_half: FloatArray
    p: FloatArray
    paired: bool
    repeats: tuple[int, ...]

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

    def is_clear(self, setting: int, reference: int, others: Sequence[int]) -> bool:
        """Return whether the difference of two settings is clear, among `others`."""
        found = self.p_against(reference, others)[setting] < FALSE_CLEAR
        fewest = min(self.repeats[setting], self.repeats[reference])
        return bool(found) and is_beyond_chance(self.difference[setting, reference], fewest)


def compare_settings(
    groups: Sequence[Sequence[RunValue]], confidence: float = CONFIDENCE
) -> SettingComparison:
    """Compare the settings of one load with each other.

    They scatter alike, so that the variance of each is moderated by that of all. The scatter of the
    repeats has the independent errors of the runs in it, which do not enter in another way. Raises
    ValueError if no setting has two values.
    """
    count = len(groups)
    alone = Fit.of(groups, _PRIOR_FREEDOM, paired=False)
    together = Fit.of(groups, _PRIOR_FREEDOM)
    level = (1 + confidence) / 2
    mean, error, freedom = alone.contrasts(np.eye(count))
    half = stdtrit(freedom, level) * error
    eye = np.eye(count)
    pairs = (eye[:, None, :] - eye[None, :, :]).reshape(-1, count)
    found, errors, freedoms = together.contrasts(pairs)
    p = two_sided_p(found, errors, freedoms)
    shape = (count, count)
    return SettingComparison(
        mean,
        half,
        found.reshape(shape),
        (stdtrit(freedoms, level) * errors).reshape(shape),
        p.reshape(shape),
        together.paired,
        tuple(map(len, groups)),
    )


def is_paired(groups: Sequence[Sequence[RunValue]]) -> bool:
    """Return whether each group has one value in each of at least FEWEST_PAIRS repeats.

    Of three groups and more, 20 % of the values may be missing.
    """
    blocks = [[one.block for one in group] for group in groups]
    union = set().union(*blocks)
    is_single = all(len(set(each)) == len(each) for each in blocks)
    whole = len(groups) * len(union)
    share = 1.0 if len(groups) < 3 else 0.8
    is_complete = sum(map(len, blocks)) >= share * whole
    return len(groups) > 1 and len(union) >= FEWEST_PAIRS and is_single and is_complete


def _blocks(groups: Sequence[Sequence[RunValue]]) -> FloatArray:
    """Return the indicators of the repeats except the first one, by value."""
    blocks = [one.block for group in groups for one in group]
    positions = {name: position for position, name in enumerate(dict.fromkeys(blocks))}
    numbers = np.array([positions[name] for name in blocks])
    indicators: FloatArray = (numbers[:, None] == np.arange(1, len(positions))).astype(np.float64)
    return indicators


def two_sided_p(values: FloatArray, errors: FloatArray, freedom: FloatArray | float) -> FloatArray:
    """Return the p-values of Student's t-tests for zero.

    Values without scatter are certain: 1 for zero, else 0.
    """
    certain = np.where(np.abs(values) > _SAME, np.inf, 0.0)
    ratios = np.divide(np.abs(values), errors, out=certain, where=errors > 0)
    found: FloatArray = np.asarray(2 * stdtr(freedom, -ratios))
    return found


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


def outliers(groups: Sequence[Sequence[RunValue]]) -> list[list[bool]]:
    """Return by group which runs lie far from its median, as ratios, after the effects of common
    repeats.

    Far is more than 3.5 scaled MAD (more of few values) and more than SMALL. The MAD is the pooled
    one, or the group's own if that is larger: a group may scatter more than others. There are none
    in a group of fewer than five runs, in which one odd value moves both median and MAD, and none
    where more than MOST_OUTLIERS of the runs would be: such a group has two kinds of runs. Of two
    groups of pairs, both runs of a pair are outliers, each with half of its deviation.
    """
    logs = [_logs(group) for group in groups]
    small = math.log1p(SMALL)
    if is_paired(groups):
        logs = _without_effects(groups, logs)
    deviations = [np.abs(values - np.median(values)) for values in logs]
    large = [one for one in deviations if len(one) >= FEWEST_FOR_OUTLIERS]
    if not large or max(float(one.max()) for one in large) <= small:
        return [[False] * len(group) for group in groups]
    pooled = _scale(np.concatenate([np.sort(one)[1:] for one in large]))
    found = []
    for off in deviations:
        flags = np.zeros(len(off), dtype=np.bool_)
        if len(off) >= FEWEST_FOR_OUTLIERS:
            scale = np.maximum(pooled, _scale(np.sort(off)[1:]))
            flags = off > np.maximum(_cutoff(len(off)) * scale, small)
        has_two_kinds = flags.sum() > MOST_OUTLIERS * len(off)
        found.append([False] * len(off) if has_two_kinds else flags.tolist())
    return found


def _without_effects(
    groups: Sequence[Sequence[RunValue]], logs: Sequence[FloatArray]
) -> list[FloatArray]:
    """Return logarithms without the effect of each repeat, the median deviation of its runs."""
    effects: dict[Hashable, list[float]] = {}
    for group, values in zip(groups, logs, strict=True):
        for one, off in zip(group, values - np.median(values), strict=True):
            effects.setdefault(one.block, []).append(float(off))
    medians = {block: median(offs) for block, offs in effects.items()}
    return [
        values - np.array([medians[one.block] for one in group])
        for group, values in zip(groups, logs, strict=True)
    ]


def gpu_outliers(values: FloatArray) -> list[bool] | None:
    """Return which values lie far from the median; None below five values."""
    if len(values) < FEWEST_FOR_OUTLIERS:
        return None
    found: list[bool] = _far_from_median(values).tolist()
    return found


def _far_from_median(values: FloatArray) -> npt.NDArray[np.bool_]:
    """Return which values lie more than 3.5 scaled MAD (more of few values) from the median of
    their row.
    """
    off = np.abs(values - np.median(values, axis=-1, keepdims=True))
    scale = _scale(np.sort(off, axis=-1)[..., 1:])
    far: npt.NDArray[np.bool_] = off > np.maximum(_cutoff(off.shape[-1]) * scale, 0)[..., None]
    return far


def _cutoff(count: int) -> float:
    return OUTLIER_SCALES * (1 + _FEW_VALUES / count)


def _scale(deviations: FloatArray) -> FloatArray:
    """Return the standard deviation by the deviations from the median, without the median itself.

    If most values are equal, the MAD is 0, and the scaled mean deviation replaces it (Iglewicz and
    Hoaglin, "How to Detect and Handle Outliers", 1993).
    """
    by_median = MAD_TO_SIGMA * np.median(deviations, axis=-1)
    by_mean = _MEAN_DEVIATION_TO_SIGMA * deviations.mean(axis=-1)
    scale: FloatArray = np.where(by_median > 0, by_median, by_mean)
    return scale


def bootstrap_error(
    values: FloatArray, statistic: Callable[[FloatArray, npt.NDArray[np.bool_]], FloatArray]
) -> float:
    """Return the standard error of a statistic of resampled values, each without its outliers.

    `statistic` gets resamples, one a row, and which of their values are no outliers; it returns
    one number a row. Those that are not finite do not count. The result depends on no order.
    """
    positions = np.random.default_rng(0).integers(len(values), size=(_RESAMPLES, len(values)))
    resampled = np.sort(values)[positions]
    found = statistic(resampled, ~_far_from_median(resampled))
    usable = found[np.isfinite(found)]
    return float(usable.std(ddof=1)) if len(usable) > 1 else 0.0


def highest_share(found: int, n: int, probability: float) -> float:
    """Return the share at which at most `found` of `n` have this probability (Clopper and Pearson,
    Biometrika 26, 1934).
    """
    return 1.0 if found >= n else float(betaincinv(found + 1, n - found, 1 - probability))


def median_limits(values: FloatArray, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return the limits of the median between two of the values (sign test, without assumptions
    about the distribution); None where all values together have a lower level.
    """
    n = len(values)
    below = np.cumsum([math.comb(n, k) for k in range(n // 2)]) / 2.0**n
    place = int((below <= (1 - confidence) / 2).sum()) - 1
    if place < 0:
        return None
    low, high = np.sort(values)[[place, n - 1 - place]]
    return float(low), float(high)


def correlation_limits(
    value: float, clusters: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return Fisher's limits of a correlation of independent clusters, at least four."""
    if abs(value) >= 1:
        return value, value
    half = float(ndtri((1 + confidence) / 2)) / math.sqrt(clusters - 3)
    return math.tanh(math.atanh(value) - half), math.tanh(math.atanh(value) + half)

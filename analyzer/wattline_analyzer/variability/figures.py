"""Variability of GPUs of one model at the same work, and its correlations.

Statistics as in "Not All GPUs Are Created Equal" (Sinha et al., SC22, arXiv 2208.11035): medians
per GPU over repeats, whisker range over median, Pearson correlations over runs. The whisker range
spans the values within 1.5 interquartile ranges of the box. CIs are of all GPUs of that model and
count GPUs, not runs. Whisker ranges have no CI, because they grow with the number of GPUs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from wattline.figures import NORMAL_95, Figure
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.core.statistics import (
    CONFIDENCE,
    bootstrap_error,
    correlation_limits,
    gpu_outliers,
    highest_share,
    median_limits,
    student_quantile,
)

COVARIATES = ("sm_clock_hertz", "temperature_celsius", "power_watts")
_WHISKER = 1.5
_FEWEST = 5
"""GPUs below which there is no CI."""
_FEWEST_FOR_EXCLUSION = 8
"""GPUs from which on the MAD is known well enough to leave out GPUs."""
_FEWEST_FOR_A_BOOTSTRAP = 16


@dataclass(frozen=True, slots=True)
class GpuRun:
    """Run on one GPU: its positive value, and the covariates that are known."""

    gpu: str
    value: float
    placement: str = ""
    covariates: Mapping[str, float] = field(default_factory=dict)
    label: str = ""
    """Name of the GPU on its node, such as `GPU 0`."""
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class GpuSpread:
    """Runs of one GPU. `deviation` is its median over the median of all GPUs, minus 1; `cv` is None
    below two runs.

    `outlier` is None with too few GPUs.
    """

    gpu: str
    label: str
    n: int
    median: float
    deviation: float
    cv: float | None
    outlier: bool | None


@dataclass(frozen=True, slots=True)
class PlacementEffect:
    """Median ratio of the same GPUs in a placement and in the reference placement, minus 1."""

    placement: str
    effect: Figure
    gpus: int


@dataclass(frozen=True, slots=True)
class Variability:
    """Ratios. `between` is the coefficient of variation of the medians per GPU, `within` its median
    inside a GPU.

    `between` has no interval where there are outliers; `inner` leaves them out, and `outliers` is
    their share.
    """

    runs: int
    gpus: tuple[GpuSpread, ...]
    whisker_runs: Figure
    whisker_gpus: Figure
    between: Figure
    inner: Figure
    outliers: Figure
    within: Figure
    correlations: dict[str, Figure]
    reference: str | None
    placements: tuple[PlacementEffect, ...]


def gpu_variability(runs: Sequence[GpuRun], reference: str | None = None) -> Variability:
    """Return the variability of runs. Raises ValueError for an unknown reference placement."""
    by_gpu = _values_by_gpu(runs)
    groups = list(by_gpu.values())
    medians = np.array([np.median(values) for values in groups])
    within = np.array([coefficient_of_variation(values) for values in groups if len(values) > 1])
    chosen, placements = _placements(runs, reference)
    inner = variation_estimate(medians)
    outliers = outlier_share(medians)
    return Variability(
        len(runs),
        tuple(_gpus(by_gpu, medians, {run.gpu: run.label for run in runs})),
        Figure(whisker_range_ratio(np.concatenate(groups))),
        Figure(whisker_range_ratio(medians)),
        inner if not outliers.number > 0 else Figure(coefficient_of_variation(medians)),
        inner,
        outliers,
        median_estimate(within),
        {
            name: _correlation(runs, name)
            for name in COVARIATES
            if any(name in run.covariates for run in runs)
        },
        chosen,
        tuple(placements),
    )


def _values_by_gpu(runs: Sequence[GpuRun]) -> dict[str, FloatArray]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for run in runs:
        values[run.gpu].append(run.value)
    return {gpu: np.array(values[gpu]) for gpu in sorted(values)}


def _gpus(
    by_gpu: dict[str, FloatArray], medians: FloatArray, labels: Mapping[str, str]
) -> list[GpuSpread]:
    overall = float(np.median(medians))
    flags = gpu_outliers(medians)
    return [
        GpuSpread(
            gpu,
            labels[gpu],
            len(values),
            float(median),
            float(median / overall - 1),
            coefficient_of_variation(values) if len(values) > 1 else None,
            None if flags is None else bool(flags[position]),
        )
        for position, ((gpu, values), median) in enumerate(
            zip(by_gpu.items(), medians, strict=True)
        )
    ]


def _correlation(runs: Sequence[GpuRun], name: str) -> Figure:
    """Return the correlation over runs."""
    known = [run for run in runs if math.isfinite(run.covariates.get(name, math.nan))]
    value = np.array([run.value for run in known])
    other = np.array([run.covariates[name] for run in known])
    return correlation_estimate(value, other, len({run.gpu for run in known}))


def _placements(
    runs: Sequence[GpuRun], reference: str | None
) -> tuple[str | None, list[PlacementEffect]]:
    """Compare each GPU with itself in the reference placement, which is by default the one with the
    most GPUs.
    """
    names = sorted({run.placement for run in runs})
    if len(names) < 2:
        if reference is not None:
            raise ValueError(
                f"cannot compare with placement {reference!r}: the runs have fewer than two "
                "placements"
            )
        return None, []
    values = {
        name: _values_by_gpu([run for run in runs if run.placement == name]) for name in names
    }
    medians = {
        name: {gpu: float(np.median(of_gpu)) for gpu, of_gpu in values[name].items()}
        for name in names
    }
    base = reference if reference is not None else max(names, key=lambda name: len(medians[name]))
    if base not in medians:
        raise ValueError(f"unknown placement {base!r}; known are {', '.join(names)}")
    found = []
    for name in names:
        ratios = [
            median / medians[base][gpu]
            for gpu, median in medians[name].items()
            if gpu in medians[base]
        ]
        if name != base and ratios:
            effect = median_estimate(np.array(ratios) - 1)
            found.append(PlacementEffect(name, effect, len(ratios)))
    return base, found


def coefficient_of_variation(values: npt.ArrayLike) -> float:
    """Return the sample standard deviation over the mean; NaN below two values."""
    x = np.asarray(values, dtype=np.float64)
    return float(np.std(x, ddof=1) / np.mean(x)) if len(x) > 1 and np.mean(x) else float("nan")


def whiskers(values: npt.ArrayLike) -> tuple[float, float]:
    """Return the lowest and the highest value within 1.5 interquartile ranges of the quartiles
    (Tukey).
    """
    x = np.asarray(values, dtype=np.float64)
    first, third = np.percentile(x, [25, 75])
    reach = _WHISKER * (third - first)
    inside = x[(x >= first - reach) & (x <= third + reach)]
    return float(inside.min()), float(inside.max())


def whisker_range_ratio(values: npt.ArrayLike) -> float:
    """Return the whisker range over the median; NaN below two values."""
    x = np.asarray(values, dtype=np.float64)
    low, high = whiskers(x)
    middle = float(np.median(x))
    return (high - low) / middle if len(x) > 1 and middle else float("nan")


def correlation(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Return Pearson's correlation; NaN where one of them is constant."""
    a = np.asarray(x, dtype=np.float64)
    b = np.asarray(y, dtype=np.float64)
    if len(a) < 3 or not np.ptp(a) or not np.ptp(b):
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def gini(values: npt.ArrayLike) -> float:
    """Return Gini's coefficient of values ≥ 0: 0 where all are equal, (n − 1) / n where one has all
    (Gini, 1912).
    """
    x = np.sort(np.asarray(values, dtype=np.float64))
    n = len(x)
    if not x.sum():
        return float("nan")
    return max(float(np.sum((2 * np.arange(1, n + 1) - n - 1) * x) / (n * x.sum())), 0.0)


def variation_estimate(values: FloatArray, confidence: float = CONFIDENCE) -> Figure:
    """Return the coefficient of variation of the GPUs that are no outliers, from five of them on.

    The logarithm has the standard error of Bonett (Computational Statistics & Data Analysis 50,
    2006, with Student's quantile). From 16 values on it has at least that of a bootstrap, in which
    each resample has its own outliers. An interval of all GPUs would need to know how many outliers
    the fleet has.
    """
    flags = _excluded(values)
    inner = values if flags is None else values[~np.array(flags)]
    value = coefficient_of_variation(inner)
    n = len(inner)
    if n < _FEWEST or not np.isfinite(value):
        return Figure(value)
    if value == 0:
        return Figure(0.0, skewed=(0.0, 0.0))
    deviations = inner - _trimmed_mean(inner, 1 / (2 * math.sqrt(n - 4)))
    kurtosis = n * float((deviations**4).sum()) / float(((inner - inner.mean()) ** 2).sum()) ** 2
    inflated = n / (n - NORMAL_95)
    error = inflated * math.sqrt((kurtosis - (n - 3) / n) / (n - 1)) / 2
    if len(values) >= _FEWEST_FOR_A_BOOTSTRAP:
        error = max(error, bootstrap_error(values, _log_variations))
    half = student_quantile(n - 1, (1 + confidence) / 2) * error
    middle = value * math.sqrt(inflated)
    return Figure(value, skewed=(middle * math.exp(-half), middle * math.exp(half)))


def _excluded(values: FloatArray) -> list[bool] | None:
    return gpu_outliers(values) if len(values) >= _FEWEST_FOR_EXCLUSION else None


def _log_variations(rows: FloatArray, inner: npt.NDArray[np.bool_]) -> FloatArray:
    """Return the logarithm of each row's coefficient of variation, of its inner values."""
    count = inner.sum(axis=1)
    mean = (rows * inner).sum(axis=1) / count
    squares = ((rows - mean[:, None]) ** 2 * inner).sum(axis=1)
    variance = squares / np.maximum(count - 1, 1)
    unknown = np.full_like(variance, np.nan)
    found: FloatArray = np.log(np.sqrt(variance) / mean, out=unknown, where=variance > 0)
    return found


def outlier_share(values: FloatArray, confidence: float = CONFIDENCE) -> Figure:
    """Return the share of outliers, with the highest share in the fleet (one-sided, Clopper and
    Pearson).
    """
    flags = _excluded(values)
    n = len(values)
    if flags is None:
        return Figure(float("nan"))
    found = sum(flags)
    return Figure(found / n, skewed=(0.0, highest_share(found, n, 1 - confidence)))


def _trimmed_mean(values: FloatArray, share: float) -> float:
    """Return the mean without that share of the values at either end."""
    cut = min(int(share * len(values)), (len(values) - 1) // 2)
    return float(np.sort(values)[cut : len(values) - cut].mean())


def median_estimate(values: FloatArray, confidence: float = CONFIDENCE) -> Figure:
    """Return the median between two of the values (sign test, without assumptions about the
    distribution).

    Five values would give a CI of less than 95 %.
    """
    value = float(np.median(values)) if len(values) else float("nan")
    return Figure(value, skewed=median_limits(values, confidence))


def correlation_estimate(
    x: FloatArray, y: FloatArray, clusters: int, confidence: float = CONFIDENCE
) -> Figure:
    """Return Pearson's correlation; Fisher's interval counts clusters, because repeats on one GPU
    are alike.
    """
    value = correlation(x, y)
    if clusters < _FEWEST or not np.isfinite(value):
        return Figure(value)
    return Figure(value, skewed=correlation_limits(value, clusters, confidence))

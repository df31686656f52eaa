"""How much GPUs of one kind differ at the same work, and with what that goes along. Pure.

Statistics as in "Not All GPUs Are Created Equal" (Sinha et al., SC22, arXiv 2208.11035): medians of each GPU over its
repeats, whisker range over median, Pearson's correlations over runs. Intervals are of all GPUs of that kind, and count
GPUs, not runs. Whisker ranges have none: the more GPUs are looked at, the wider such a range is, so that it is only of
those that were.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer.model.samples import FloatArray
from analyzer.studies import spread
from analyzer.studies.spread import Estimate

COVARIATES = ("sm_clock_hertz", "temperature_celsius", "power_watts")
_SCALES = 3.5
_SIGMA_OF_MAD = 1.4826
_LEAST_FOR_OUTLIERS = 5


@dataclass(frozen=True, slots=True)
class GpuSpread:
    """`apart` is its median over that of all GPUs, less one; `cv` within it, None below two runs.

    `outlier` is None where there are too few GPUs to call one that.
    """

    gpu: str
    n: int
    median: float
    apart: float
    cv: float | None
    outlier: bool | None


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The same GPUs in a placement, over themselves in the reference placement, less one: their median."""

    placement: str
    effect: Estimate


@dataclass(frozen=True, slots=True)
class Variability:
    """Ratios. `between` is the coefficient of variation of the GPUs' medians, `within` the median of those in a GPU."""

    runs: int
    gpus: tuple[GpuSpread, ...]
    whisker_runs: Estimate
    whisker_gpus: Estimate
    between: Estimate
    within: Estimate
    correlations: dict[str, Estimate]
    reference: str | None
    neighbours: tuple[Neighbours, ...]


def variability(runs: pd.DataFrame, reference: str | None = None) -> Variability:
    """`runs` has a row for each run: `gpu` (text), `value` (positive), and where known `placement` (text) and the
    covariates (NaN where one is not known). Raises ValueError for a reference that is no placement.
    """
    by_gpu = {str(gpu): rows["value"].to_numpy(dtype=np.float64) for gpu, rows in runs.groupby("gpu", sort=True)}
    groups = list(by_gpu.values())
    medians = np.array([np.median(values) for values in groups])
    within = np.array([spread.coefficient_of_variation(values) for values in groups if len(values) > 1])
    chosen, neighbours = _neighbours(runs, reference)
    return Variability(
        len(runs),
        tuple(_gpus(by_gpu, medians)),
        Estimate(spread.whisker_range_ratio(np.concatenate(groups)), n=len(groups)),
        Estimate(spread.whisker_range_ratio(medians), n=len(groups)),
        spread.deviation(medians),
        spread.middle(within),
        {name: _correlation(runs, name) for name in COVARIATES if name in runs},
        chosen,
        tuple(neighbours),
    )


def _gpus(by_gpu: dict[str, FloatArray], medians: FloatArray) -> list[GpuSpread]:
    middle = float(np.median(medians))
    flags = outliers(medians)
    return [
        GpuSpread(
            gpu,
            len(values),
            float(median),
            float(median / middle - 1),
            spread.coefficient_of_variation(values) if len(values) > 1 else None,
            None if flags is None else bool(flags[position]),
        )
        for position, ((gpu, values), median) in enumerate(zip(by_gpu.items(), medians, strict=True))
    ]


def outliers(values: FloatArray) -> list[bool] | None:
    """More than 3.5 scaled MAD from the median, on either side; None below five values."""
    if len(values) < _LEAST_FOR_OUTLIERS:
        return None
    apart = np.abs(values - np.median(values))
    scale = _SIGMA_OF_MAD * float(np.median(apart))
    return [bool(off > _SCALES * scale > 0) for off in apart]


def _correlation(runs: pd.DataFrame, name: str) -> Estimate:
    """Over runs."""
    known = runs[np.isfinite(runs[name].astype(float))]
    value, other = (known[column].to_numpy(dtype=np.float64) for column in ("value", name))
    return spread.correlated(value, other, known["gpu"].nunique())


def _neighbours(runs: pd.DataFrame, reference: str | None) -> tuple[str | None, list[Neighbours]]:
    """Each GPU against itself, so that what cards differ by cancels. Without a name, the reference is the placement in
    which the most GPUs were, the first by name of several.
    """
    if "placement" not in runs or runs["placement"].nunique() < 2:
        if reference is not None:
            raise ValueError(f"there are not two placements, so {reference!r} has nothing to be held against")
        return None, []
    medians = runs.pivot_table(index="gpu", columns="placement", values="value", aggfunc="median")
    base = reference if reference is not None else str(medians.count().sort_index().idxmax())
    if base not in medians:
        raise ValueError(f"no placement is {base!r}; there are {', '.join(map(str, medians.columns))}")
    found = []
    for placement in medians.columns:
        ratios = (medians[placement] / medians[base]).dropna().to_numpy(dtype=np.float64)
        if placement != base and len(ratios):
            found.append(Neighbours(str(placement), spread.middle(ratios - 1)))
    return base, found

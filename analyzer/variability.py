"""How much GPUs of one kind differ at the same work, and with what that goes along. Pure.

Statistics as in "Not All GPUs Are Created Equal" (Sinha et al., SC22, arXiv 2208.11035): medians of each GPU over its
repeats, whisker range over median, Pearson's correlations over runs. Intervals resample GPUs, not runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer import spread
from analyzer.series import FloatArray
from analyzer.spread import Estimate

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


def variability(runs: pd.DataFrame, seed: int = 0, reference: str | None = None) -> Variability:
    """`runs` has a row for each run: `gpu` (text), `value` (positive), and where known `placement` (text) and the
    covariates (NaN where one is not known). Raises ValueError for a reference that is no placement.
    """
    by_gpu = {str(gpu): rows["value"].to_numpy(dtype=np.float64) for gpu, rows in runs.groupby("gpu", sort=True)}
    groups = list(by_gpu.values())
    medians = np.array([np.median(values) for values in groups])
    within = np.array([spread.coefficient_of_variation(values) for values in groups if len(values) > 1])
    chosen, neighbours = _neighbours(runs, reference, seed)
    return Variability(
        len(runs),
        tuple(_gpus(by_gpu, medians)),
        spread.over_groups(groups, lambda drawn: spread.whisker_range_ratio(np.concatenate(drawn)), seed),
        spread.over_rows(medians, spread.whisker_range_ratio, seed),
        spread.over_rows(medians, spread.coefficient_of_variation, seed),
        spread.over_rows(within, lambda found: float(np.median(found)), seed)
        if len(within)
        else Estimate(float("nan")),
        {name: _correlation(runs, name, seed) for name in COVARIATES if name in runs},
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


def _correlation(runs: pd.DataFrame, name: str, seed: int) -> Estimate:
    """Over runs; whole GPUs are drawn."""
    known = runs[np.isfinite(runs[name].astype(float))]
    groups = [rows[["value", name]].to_numpy(dtype=np.float64) for _, rows in known.groupby("gpu", sort=True)]
    if not groups:
        return Estimate(float("nan"))

    def over_all(drawn: object) -> float:
        pairs = np.concatenate(drawn)  # type: ignore[call-overload]  # a sequence of arrays with two columns
        return spread.correlation(pairs[:, 0], pairs[:, 1])

    return spread.over_groups(groups, over_all, seed)


def _neighbours(runs: pd.DataFrame, reference: str | None, seed: int) -> tuple[str | None, list[Neighbours]]:
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
            effect = spread.over_rows(ratios, lambda drawn: float(np.median(drawn)) - 1, seed)
            found.append(Neighbours(str(placement), effect))
    return base, found

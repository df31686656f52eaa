"""Quantiles and errors of windows against the true value (pure)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from tests.bench.wattline import Window

TrueEnergy = Callable[[int, float, float], float]
"""Energy of a GPU between two instants of CLOCK_BOOTTIME, in joules."""


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class WindowErrors:
    """Signed relative errors of single GPUs, and of the sum over the GPUs of a window.

    `held_ratio` is the coverage of the tool's intervals; None for tools without intervals.
    """

    gpus: tuple[float, ...]
    sums: tuple[float, ...]
    held_ratio: float | None
    begin_took_s: tuple[float, ...]

    @property
    def p95(self) -> float:
        return quantile([abs(error) for error in self.gpus], 0.95)

    @property
    def p95_of_sums(self) -> float:
        return quantile([abs(error) for error in self.sums], 0.95)

    @property
    def mean(self) -> float:
        return fmean(self.gpus)


def window_errors(windows: Iterable[Window], true_energy_j: TrueEnergy) -> WindowErrors:
    gpus, sums, covered, begin_took_s = [], [], [], []
    for window in windows:
        true_j = {gpu: true_energy_j(gpu, window.begin_s, window.end_s) for gpu in window.joules}
        gpus += [joules / true_j[gpu] - 1 for gpu, joules in window.joules.items()]
        sums.append(sum(window.joules.values()) / sum(true_j.values()) - 1)
        covered += [
            abs(window.joules[gpu] - true_j[gpu]) <= half_j
            for gpu, half_j in window.half_width_j.items()
        ]
        begin_took_s.append(window.begin_took_s)
    return WindowErrors(
        tuple(gpus), tuple(sums), fmean(covered) if covered else None, tuple(begin_took_s)
    )

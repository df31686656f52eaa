"""Exporter's arithmetic over bursty loads of several periods, in virtual time.

It covers thousands of runs, each load at many phases of load and sensor, which live runs cannot.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from tests.bench.window_errors import quantile
from tests.exporter.meter.replay import Sensor, measure, square_wave

PERIODS_S = (0.05, 0.31, 1.0, 1.73, 7.0)
DUTIES = (0.2, 0.5)
SECONDS = (1.0, 10.0, 30.0, 100.0)
SENSORS: tuple[Sensor, ...] = ("counter", "full window", "averaged", "quarter window")
RUNS: Mapping[float, int] = {1.0: 40, 10.0: 30, 30.0: 16, 100.0: 8}
"""Runs of each load, by their length."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Results of one load: relative errors, coverage of the interval, and median ratio of its
    half-width.
    """

    period_s: float
    duty: float
    errors: tuple[float, ...]
    covered: tuple[bool, ...]

    @property
    def name(self) -> str:
        return f"{self.period_s:g} s/{100 * self.duty:g} %"

    @property
    def p95(self) -> float:
        return quantile(self.errors, 0.95)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Results of all loads for one sensor and length of run; each load has the same number of
    runs.
    """

    sensor: Sensor
    seconds: float
    loads: tuple[LoadResult, ...]

    @property
    def p95(self) -> float:
        return quantile([error for load in self.loads for error in load.errors], 0.95)

    @property
    def held_ratio(self) -> float:
        return fmean(covered for load in self.loads for covered in load.covered)

    @property
    def worst(self) -> LoadResult:
        return max(self.loads, key=lambda load: load.p95)

    @property
    def least_covered(self) -> LoadResult:
        return min(self.loads, key=lambda load: fmean(load.covered))


def replay(share: float, stopped: threading.Event) -> list[ReplayResult]:
    """Replay `share` of `RUNS` on all cores."""
    jobs: dict[tuple[Sensor, float], list[Future[LoadResult]]] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        try:
            for sensor, seconds in product(SENSORS, SECONDS):
                runs = max(4, round(share * RUNS[seconds]))
                loads = product(PERIODS_S, DUTIES)
                jobs[sensor, seconds] = [
                    pool.submit(_load, sensor, seconds, *load, runs) for load in loads
                ]
            results = [
                ReplayResult(*key, tuple(future.result() for future in futures))
                for key, futures in jobs.items()
            ]
        except KeyboardInterrupt:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return results


def _load(sensor: Sensor, seconds: float, period_s: float, duty: float, runs: int) -> LoadResult:
    chance = random.Random(f"{sensor} {seconds} {period_s} {duty}")
    errors, covered = [], []
    for _ in range(runs):
        energy, true_j = measure(square_wave(chance, sensor, period_s, duty), seconds, chance)
        off_j = abs(energy.joules - true_j)
        errors.append(off_j / true_j)
        covered.append(off_j <= energy.half_width_j)
    return LoadResult(period_s, duty, tuple(errors), tuple(covered))

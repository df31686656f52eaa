"""Intervals of tenants: work, throughput and energy while all of them ran, from scrapes of each
run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.calibration.coverage import Draw, Kind, from_bound
from tests.laboratory.loads import PowerLoad, log_uniform, wave_or_telegraph
from wattline.contract import metrics as m
from wattline.figures import Figure
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.core.timeline import Window
from wattline_analyzer.tenants.figures import SoloRun, figure_intervals
from wattline_analyzer.tenants.overlap import TenantRun, concurrent_step

GPU = "GPU-0"
LIMIT_W = 700.0
Figures = dict[str, float]


@dataclass(frozen=True)
class _Tenant:
    """One run: its phase `measure`, its share of the GPU's power and its rate of work from then on,
    and its reports.
    """

    name: str
    start_s: float
    measure_s: float
    end_s: float
    power: PowerLoad
    rate: PowerLoad
    reports_s: np.ndarray

    def energy_j(self, t):
        """Return the attributed energy since the run's start."""
        return self.power.energy_j(np.clip(t, self.start_s, self.end_s)) - self.power.energy_j(
            self.start_s
        )

    def work(self, t):
        """Return the work since the start of the phase `measure`."""
        return self.rate.energy_j(np.clip(t, self.measure_s, self.end_s)) - self.rate.energy_j(
            self.measure_s
        )

    def reported_at_s(self, t):
        """Return the time of the latest report before `t`, and the run's start before the first
        one.
        """
        at_s = np.array([self.start_s, *self.reports_s, self.end_s])
        return at_s[np.maximum(np.searchsorted(at_s, t, side="right") - 1, 0)]

    def reported(self, t):
        """Return the work of the latest report before `t`."""
        return self.work(self.reported_at_s(t))


def _curve(rng: np.random.Generator, highest: float, seconds: float) -> PowerLoad:
    high = rng.uniform(0.1, 1.0) * highest
    low = rng.uniform(0.05, 0.95) * high
    return wave_or_telegraph(rng, (low, high), seconds, max(0.01, seconds / 3_000))


def _tenants(rng: np.random.Generator) -> list[_Tenant]:
    """Return two or three tenants that start one after the other, and end in any order."""
    count, length_s = int(rng.integers(2, 4)), log_uniform(rng, 10, 300)
    found = []
    for number in range(count):
        start_s = 100 + rng.uniform(0, 0.4) * length_s
        measure_s = start_s + rng.uniform(0.1, 5.0)
        end_s = measure_s + rng.uniform(0.7, 1.5) * length_s
        every_s = rng.uniform(0.5, 2.0)
        reports_s = np.arange(measure_s + rng.random() * every_s, end_s, every_s)
        power, rate = (
            _curve(rng, LIMIT_W / count, end_s + 10),
            _curve(rng, log_uniform(rng, 5, 5_000), end_s + 10),
        )
        found.append(_Tenant(f"tenant-{number}", start_s, measure_s, end_s, power, rate, reports_s))
    return found


def _run(
    rng: np.random.Generator, tenant: _Tenant, every: list[_Tenant], scrapes: np.ndarray
) -> TenantRun:
    """Return the run as the analyzer loads it; a scrape shows values that are up to 0.4 s old."""
    times = scrapes[(scrapes >= tenant.start_s) & (scrapes <= tenant.end_s + 60)]
    read_s = np.maximum(times - rng.uniform(0, 0.4, len(times)), tenant.start_s)
    ended = times >= tenant.end_s
    read_s[ended] = times[ended]
    last_s = times[-1:]
    labels = {"run_id": tenant.name, "instance": "n"}
    phase = {**labels, "phase": "measure"}

    def constant(
        metric: Any, value: float, **more: str
    ) -> tuple[dict[str, str], np.ndarray, np.ndarray]:
        return {"__name__": metric.name, **labels, **more}, last_s, np.full(len(last_s), value)

    share = {"component": "gpu", "device": GPU, "policy": "idle_shared"}
    reports = read_s >= tenant.reports_s[0]
    done = tenant.reported(read_s[reports])
    series = [
        constant(m.RUN_PHASE_START, tenant.start_s, phase="warmup"),
        constant(m.RUN_PHASE_START, tenant.measure_s, phase="measure"),
        (
            {"__name__": m.RUN_ATTRIBUTED_ENERGY.name, **labels, **share},
            times,
            tenant.energy_j(read_s),
        ),
        ({"__name__": m.RUN_WORK.name, **labels, "unit": "steps"}, times[reports], done),
        (
            {"__name__": m.RUN_WORK_TIMESTAMP.name, **labels},
            times[reports],
            tenant.reported_at_s(read_s)[reports],
        ),
        (
            {"__name__": m.RUN_PHASE_WORK.name, **phase, "unit": "steps"},
            times[reports],
            tenant.reported(read_s[reports]),
        ),
    ]
    whole_j = math.fsum(
        float(one.energy_j(tenant.end_s) - one.energy_j(tenant.measure_s)) for one in every
    )
    half_j = log_uniform(rng, 1e-4, 1e-2) * whole_j
    energy = Figure(whole_j + half_j * rng.uniform(-1, 1), half_j)
    report: Any = SimpleNamespace(
        run_id=tenant.name,
        labels={"tenant": tenant.name},
        instances=("n",),
        findings=(),
        results={},
        gpus=(
            SimpleNamespace(instance="n", device=GPU, max_power_w=LIMIT_W, power_limit_w=LIMIT_W),
        ),
        phases=(
            SimpleNamespace(
                name="measure", duration_s=tenant.end_s - tenant.measure_s, energy={"gpu": energy}
            ),
        ),
        work=(SimpleNamespace(unit="steps"),),
    )
    table = table_of(series)
    window = Window(tenant.start_s, tenant.end_s, True, tenant.end_s - tenant.start_s)
    of_run: Any = SimpleNamespace(windows={"n": window}, times=table)
    return TenantRun(of_run, report, table)


def _step(rng: np.random.Generator) -> dict[str, Draw]:
    tenants = _tenants(rng)
    scrapes = np.arange(
        rng.random(), max(one.end_s for one in tenants) + 120, log_uniform(rng, 1, 15)
    )
    step = concurrent_step([_run(rng, one, tenants, scrapes) for one in tenants])
    assert not isinstance(step, str)
    begin_s, end_s = max(one.measure_s for one in tenants), min(one.end_s for one in tenants)
    alone = {one.name: SoloRun(log_uniform(rng, 5, 5_000), unit="steps") for one in tenants}
    found = figure_intervals(step, alone)
    seconds = end_s - begin_s
    works = [float(one.work(end_s) - one.work(begin_s)) for one in tenants]
    joules = [float(one.energy_j(end_s) - one.energy_j(begin_s)) for one in tenants]
    progress = [
        work / seconds / alone[one.name].rate for work, one in zip(works, tenants, strict=True)
    ]
    truths = {
        "total_per_second": math.fsum(works) / seconds,
        "stp": math.fsum(progress),
        "fairness": min(progress) / max(progress),
        "energy_joules": math.fsum(joules),
        "energy_per_unit_joules": math.fsum(joules) / math.fsum(works),
        "tenant-0:energy_per_steps_joules": joules[0] / works[0],
    }
    exact = {
        name: Figure(found[name].value, 0.0) if found[name].low is None else found[name]
        for name in truths
    }
    return {
        name: from_bound(truth, exact[name].number, exact[name].limits)
        for name, truth in truths.items()
    }


@cache
def _steps(seed: int, count: int) -> list[dict[str, Draw]]:
    rng = np.random.default_rng(seed)
    return [_step(rng) for _ in range(count)]


def draws(figure: str, rng: np.random.Generator, count: int) -> Iterator[Draw]:
    yield from (step[figure] for step in _steps(int(rng.integers(2**32)), count))


TITLES = {
    "total_per_second": "throughput",
    "stp": "STP",
    "fairness": "fairness",
    "energy_joules": "energy of all",
    "energy_per_unit_joules": "energy per unit of work",
    "tenant-0:energy_per_steps_joules": "attributed energy per unit of one",
}
KINDS = tuple(
    Kind(f"tenants: {title}", "bound", partial(draws, figure), cost=2.0, stream="tenants")
    for figure, title in TITLES.items()
)

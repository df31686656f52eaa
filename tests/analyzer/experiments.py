"""Samples of a node that runs a sweep, the same job on each GPU, and two concurrent tenants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.analyzer.node import (
    NodeGpu,
    NodeRun,
    run_series,
    scrape,
    scrape_times,
    series_of_scrapes,
)
from wattline.contract import metrics as m

SWEEP, VARY, PAIR = "caps", "each-gpu", "pair"
CAPS_W = (400.0, 500.0)
IDLE_W = 60.0
LONG_S, REST_S = 12.0, 3.0
KEPT_S = 6.0
"""Time for which the series of an ended run remain here; a real exporter keeps them for ten
minutes.
"""


@dataclass(frozen=True)
class Job:
    """Run on these GPUs with constant power and rate of work, all in the phase measure."""

    run_id: str
    begin_s: float
    labels: dict[str, str]
    gpus: tuple[int, ...]
    watts: float
    per_second: float
    long_s: float = LONG_S
    share: float = 1.0
    """Share of the GPU's energy that is attributed to the run."""

    @property
    def end_s(self) -> float:
        return self.begin_s + self.long_s


def jobs(begin_s: float) -> list[Job]:
    result, at_s = [], begin_s
    for repeat in range(3):
        for (
            cap_w
        ) in CAPS_W:  # 400 W do 16 steps a second, 500 W 17; repeats scatter by a thousandth
            rate = {400.0: 16.0, 500.0: 17.0}[cap_w] * (1 + repeat / 1_000)
            labels = {"experiment": SWEEP, "power_limit_watts": f"{cap_w:g}", "repeat": str(repeat)}
            result.append(Job(f"cap-{cap_w:g}-{repeat}", at_s, labels, (0, 1), cap_w, rate))
            at_s += LONG_S + REST_S
    for repeat in range(2):
        for gpu in (0, 1):
            labels = {"experiment": VARY, "case": "alone", "repeat": str(repeat)}
            result.append(
                Job(
                    f"vary-{gpu}-{repeat}",
                    at_s,
                    labels,
                    (gpu,),
                    300.0,
                    10.0 + gpu / 10 + repeat / 100,
                )
            )
            at_s += LONG_S + REST_S
    for name, rate in (("small", 100.0), ("large", 50.0)):
        labels = {"experiment": PAIR, "tenant": name, "case": "solo"}
        result.append(Job(f"solo-{name}", at_s, labels, (0,), 300.0, rate, 15.0))
        at_s += 15.0 + REST_S
    for name, rate, share in (("small", 80.0, 0.6), ("large", 20.0, 0.4)):
        labels = {"experiment": PAIR, "tenant": name, "case": "both"}
        result.append(Job(f"both-{name}", at_s, labels, (0,), 400.0, rate, 30.0, share))
    return result


def gpus(every_job: Iterable[Job]) -> list[NodeGpu]:
    """GPUs with the power that the jobs cause."""
    result = []
    for index in (0, 1):
        steps = {0.0: IDLE_W}
        for job in every_job:
            if index in job.gpus:
                steps |= {job.begin_s: job.watts, job.end_s: IDLE_W}
        result.append(
            NodeGpu(sorted(steps.items()), index=str(index), limit_w=700.0, utilization=0.9)
        )
    return result


def series(begin_s: float, every_job: list[Job] | None = None) -> list:
    """Series of the whole node, scraped each second, from 60 s before the first job to 60 s after
    the last.
    """
    every_job = jobs(begin_s) if every_job is None else every_job
    node_gpus = gpus(every_job)
    times = scrape_times(1, begin_s - 60.5, max(job.end_s for job in every_job) + 60)
    return series_of_scrapes(
        ((t, _scrape(node_gpus, every_job, t)) for t in times), instance="node:9847"
    )


def _scrape(node_gpus: list[NodeGpu], every_job: list[Job], t: float) -> Iterator[tuple]:
    yield from scrape(node_gpus, NodeRun(start_s=t + 1), t)
    for gpu in node_gpus:
        gpu_labels = {"gpu": gpu.index, "uuid": gpu.uuid}
        gpu_jobs = [job for job in every_job if int(gpu.index) in job.gpus]
        capped_s = sum(
            max(min(t, job.end_s) - job.begin_s, 0.0)
            for job in gpu_jobs
            if job.labels["experiment"] == SWEEP
        )
        yield m.GPU_UP, gpu_labels, 1.0
        yield m.GPU_CLOCK_EVENT_SECONDS, {**gpu_labels, "reason": "sw_power_cap"}, capped_s
        yield (
            m.GPU_TEMPERATURE,
            {**gpu_labels, "sensor": "gpu"},
            40.0 + int(gpu.index) + gpu.power_w(t) / 20,
        )
        yield (
            m.GPU_CLOCK,
            {**gpu_labels, "domain": "sm"},
            1.5e9 + 1e7 * int(gpu.index) + 1e6 * gpu.power_w(t),
        )
        yield m.GPU_MEMORY_USED, gpu_labels, 8.0 * 2**30
        yield m.GPU_MEMORY_TOTAL, gpu_labels, 80.0 * 2**30
    for job in every_job:
        if job.begin_s <= t <= job.end_s + KEPT_S:
            yield from _job_series(node_gpus, job, t)


def _job_series(node_gpus: list[NodeGpu], job: Job, t: float) -> Iterator[tuple]:
    run_gpus, until_s = [node_gpus[index] for index in job.gpus], min(t, job.end_s)
    run = NodeRun(
        job.run_id, job.begin_s, job.end_s, "steps", job.labels, work={}, uncertainty_j=3.0
    )
    run_labels, measure = {"run_id": job.run_id}, {"run_id": job.run_id, "phase": "measure"}
    joules = sum(gpu.energy_j(until_s) - gpu.energy_j(job.begin_s) for gpu in run_gpus)
    units = job.per_second * (until_s - job.begin_s)
    yield from run_series(run_gpus, run, t)
    yield m.RUN_WORK, {**run_labels, "unit": "steps"}, units
    yield m.RUN_PHASE_SECONDS, measure, until_s - job.begin_s
    yield m.RUN_PHASE_WORK, {**measure, "unit": "steps"}, units
    yield m.RUN_PHASE_ENERGY, {**measure, "component": "gpu"}, joules
    yield m.RUN_RESULT, {**run_labels, "name": "step_seconds_p99"}, 2 / job.per_second
    for gpu in run_gpus:
        part_j = job.share * (gpu.energy_j(until_s) - gpu.energy_j(job.begin_s))
        for policy in ("idle_shared", "idle_apart"):
            labels = {**run_labels, "component": "gpu", "device": gpu.uuid, "policy": policy}
            yield m.RUN_ATTRIBUTED_ENERGY, labels, part_j

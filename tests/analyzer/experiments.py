"""An hour's experiments of one node, as samples: a sweep, the same work on each GPU, and two tenants side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from exporter.contract import metrics as m
from tests.analyzer.node import Gpu, Run, every, run_series, scrape, scraped

SWEEP, VARY, PAIR = "caps", "each-gpu", "pair"
CAPS_W = (400.0, 500.0)
IDLE_W = 60.0
LONG_S, REST_S = 12.0, 3.0
KEPT_S = 6.0
"""For how long the series of an ended run are shown here; a real exporter shows them for ten minutes."""


@dataclass(frozen=True)
class Job:
    """A run on these GPUs, at `watts` each and `per_second` units of work, all in its phase measure."""

    run_id: str
    begin_s: float
    labels: dict[str, str]
    gpus: tuple[int, ...]
    watts: float
    per_second: float
    long_s: float = LONG_S
    share: float = 1.0
    """Of the GPU's power that is attributed to it."""

    @property
    def end_s(self) -> float:
        return self.begin_s + self.long_s


def jobs(begin_s: float) -> list[Job]:
    found, at_s = [], begin_s
    for repeat in range(3):
        for cap_w in CAPS_W:  # 400 W do 16 steps a second, 500 W 17; repeats scatter by a thousandth
            rate = {400.0: 16.0, 500.0: 17.0}[cap_w] * (1 + repeat / 1_000)
            labels = {"experiment": SWEEP, "power_limit_watts": f"{cap_w:g}", "repeat": str(repeat)}
            found.append(Job(f"cap-{cap_w:g}-{repeat}", at_s, labels, (0, 1), cap_w, rate))
            at_s += LONG_S + REST_S
    for repeat in range(2):
        for gpu in (0, 1):
            labels = {"experiment": VARY, "case": "alone", "repeat": str(repeat)}
            found.append(Job(f"vary-{gpu}-{repeat}", at_s, labels, (gpu,), 300.0, 10.0 + gpu / 10 + repeat / 100))
            at_s += LONG_S + REST_S
    for name, rate in (("small", 100.0), ("large", 50.0)):
        labels = {"experiment": PAIR, "tenant": name, "case": "solo"}
        found.append(Job(f"solo-{name}", at_s, labels, (0,), 300.0, rate, 15.0))
        at_s += 15.0 + REST_S
    for name, rate, share in (("small", 80.0, 0.6), ("large", 20.0, 0.4)):
        labels = {"experiment": PAIR, "tenant": name, "case": "both"}
        found.append(Job(f"both-{name}", at_s, labels, (0,), 400.0, rate, 30.0, share))
    return found


def gpus(every_job: Iterable[Job]) -> list[Gpu]:
    """With the power that the jobs make them draw."""
    found = []
    for index in (0, 1):
        steps = {0.0: IDLE_W}
        for job in every_job:
            if index in job.gpus:
                steps |= {job.begin_s: job.watts, job.end_s: IDLE_W}
        found.append(Gpu(sorted(steps.items()), index=str(index), limit_w=700.0, utilization=0.9))
    return found


def series(begin_s: float) -> list:
    """Of the whole node, scraped each second, from a minute before the first job to a minute after the last."""
    every_job = jobs(begin_s)
    cards = gpus(every_job)
    times = every(1, begin_s - 60.5, max(job.end_s for job in every_job) + 60)
    return scraped(((t, _scrape(cards, every_job, t)) for t in times), instance="node:9847")


def _scrape(cards: list[Gpu], every_job: list[Job], t: float) -> Iterator[tuple]:
    yield from scrape(cards, Run(start_s=t + 1), t)
    for card in cards:
        where = {"gpu": card.index, "uuid": card.uuid}
        mine = [job for job in every_job if int(card.index) in job.gpus]
        capped_s = sum(max(min(t, job.end_s) - job.begin_s, 0.0) for job in mine if job.labels["experiment"] == SWEEP)
        yield m.GPU_UP, where, 1.0
        yield m.GPU_CLOCK_EVENT_SECONDS, {**where, "reason": "sw_power_cap"}, capped_s
        yield m.GPU_TEMPERATURE, {**where, "sensor": "gpu"}, 40.0 + int(card.index) + card.power_w(t) / 20
        yield m.GPU_CLOCK, {**where, "domain": "sm"}, 1.5e9 + 1e7 * int(card.index) + 1e6 * card.power_w(t)
        yield m.GPU_MEMORY_USED, where, 8.0 * 2**30
        yield m.GPU_MEMORY_TOTAL, where, 80.0 * 2**30
    for job in every_job:
        if job.begin_s <= t <= job.end_s + KEPT_S:
            yield from _of_job(cards, job, t)


def _of_job(cards: list[Gpu], job: Job, t: float) -> Iterator[tuple]:
    mine, until_s = [cards[index] for index in job.gpus], min(t, job.end_s)
    run = Run(job.run_id, job.begin_s, job.end_s, "steps", job.labels, work={}, uncertainty_j=3.0)
    own, measure = {"run_id": job.run_id}, {"run_id": job.run_id, "phase": "measure"}
    joules = sum(card.energy_j(until_s) - card.energy_j(job.begin_s) for card in mine)
    done = job.per_second * (until_s - job.begin_s)
    yield from run_series(mine, run, t)
    yield m.RUN_WORK, {**own, "unit": "steps"}, done
    yield m.RUN_PHASE_SECONDS, measure, until_s - job.begin_s
    yield m.RUN_PHASE_WORK, {**measure, "unit": "steps"}, done
    yield m.RUN_PHASE_ENERGY, {**measure, "component": "gpu"}, joules
    yield m.RUN_RESULT, {**own, "name": "step_seconds_p99"}, 2 / job.per_second
    for card in mine:
        part_j = job.share * (card.energy_j(until_s) - card.energy_j(job.begin_s))
        for policy in ("idle_shared", "idle_apart"):
            labels = {**own, "component": "gpu", "device": card.uuid, "policy": policy}
            yield m.RUN_ATTRIBUTED_ENERGY, labels, part_j

"""Synthetic hour of two nodes, one in a named cluster; energy, tokens and emissions are known by
hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tests.analyzer.fleet_nodes import NodeSeries
from tests.analyzer.node import NodeGpu
from tests.grafana.node_series import G_PER_KWH, PACKAGE_W, ExportedValue, exporter_series
from tests.grafana.waste_series import waits, waste_series
from wattline.contract import metrics as m
from wattline.contract.metrics import Metric

BEGIN_S = 1_789_034_400.0
END_S = BEGIN_S + 3_600
SCRAPE_S, OFFSET_S = 15.0, 3.2
AFTER_S = 600.0
IDLE_W = 60.0
RIPPLE_W = 20.0
"""Amplitude around the mean power of a run, alternating every 15 s."""
_G_PER_JOULE = G_PER_KWH / 3.6e6


@dataclass(frozen=True)
class JobRun:
    """Run on one GPU of one node. `phases` are durations in order; work is done in the last phase
    only.
    """

    run_id: str
    gpu: str
    after_s: float
    seconds: float | None
    watts: float
    per_second: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    workload: str = "serve"
    share: float = 1.0
    phases: Mapping[str, float] = field(default_factory=dict)
    results: Mapping[str, float] = field(default_factory=dict)
    outcome: str = "ok"
    hour_s: float = BEGIN_S

    @property
    def begin_s(self) -> float:
        return self.hour_s + self.after_s

    @property
    def end_s(self) -> float | None:
        return None if self.seconds is None else self.begin_s + self.seconds


def _capped(cap_w: int, gpu: str, after_s: float, watts: float, tokens_per_second: float) -> JobRun:
    labels = {"experiment": "caps", "model": "llama-8b", "user": "ann", "namespace": "nlp"}
    return JobRun(
        f"cap-{cap_w}-{gpu}",
        gpu,
        after_s,
        300,
        watts,
        {"generated_tokens": tokens_per_second},
        labels | {"power_limit_watts": str(cap_w)},
        "llm-server",
        phases={"warmup": 60, "measure": 240},
    )


def _tenant(name: str, model: str, per_second: float) -> JobRun:
    labels = {
        "experiment": "pair",
        "tenant": name,
        "mps": "on",
        "model": model,
        "user": "ben",
        "namespace": "web",
    }
    return JobRun(
        f"tenant-{name}", "0", 1_800, None, 500, {"generated_tokens": per_second}, labels, share=0.5
    )


SERVE = JobRun(
    "serve-1",
    "1",
    2_400,
    600,
    350,
    {"generated_tokens": 700, "requests": 7},
    {"model": "llama-70b", "user": "eve"},
    phases={"warmup": 60, "measure": 540},
    results={"ttft_seconds_p99": 0.31, "loss": 1.25},
)
Nodes = Mapping[str, tuple[Mapping[str, str], Sequence[JobRun]]]
"""Further labels and runs of each node, by instance."""
NODES: Nodes = {
    "a:9847": (
        {"cluster": "east"},
        (
            _capped(300, "0", 600, 290, 50),
            _capped(400, "0", 900, 360, 90),
            _capped(500, "0", 1_200, 450, 100),
            _capped(400, "1", 900, 369, 90),
        ),
    ),
    "b:9847": (
        {},
        (
            _tenant("chat", "llama-8b", 100),
            _tenant("batch", "llama-70b", 50),
            JobRun("flash", "1", 2_001, 5, 400, workload="train"),
            SERVE,
        ),
    ),
}
LOST_GPU = {"gpu": "2", "uuid": "GPU-lost"}
"""GPU of node b that does not respond."""


def series(nodes: Nodes = NODES, hour_s: float = BEGIN_S) -> list[NodeSeries]:
    return [one for instance in nodes for one in _node(instance, *nodes[instance], hour_s)]


def _node(
    instance: str, more: Mapping[str, str], runs: Sequence[JobRun], hour_s: float
) -> Iterator[NodeSeries]:
    end_s = hour_s + 3_600
    times = np.round(np.arange(hour_s + OFFSET_S, end_s + 60, SCRAPE_S), 3)

    def one(metric: Metric, labels: Mapping[str, str], shown: ExportedValue | float) -> NodeSeries:
        values = [shown(t) if callable(shown) else shown for t in times.tolist()]
        there = np.array([value is not None for value in values])
        text = {"__name__": metric.name, "instance": instance, "job": "wattline", **more, **labels}
        known = np.array([value for value in values if value is not None], dtype=float)
        return NodeSeries(text, times[there], np.round(known, 6))

    found = list(exporter_series(end_s))
    powered = {
        index: _powered(instance, index, [run for run in runs if run.gpu == index], hour_s)
        for index in "01"
    }
    if hour_s == BEGIN_S:
        found += _owners(powered, runs, hour_s)
    for index, gpu in powered.items():
        own = [run for run in runs if run.gpu == index]
        found += _gpu(
            gpu,
            own,
            end_s,
            waiting=lambda t, at=index: waits(
                at, t, hour_s, cluster=bool(more) and hour_s == BEGIN_S
            ),
        )
        if hour_s == BEGIN_S:
            found += waste_series(
                index, {"gpu": gpu.index, "uuid": gpu.uuid}, hour_s, cluster=bool(more)
            )
        for run in own:
            found += _run(gpu, run)
    if not more:
        found.append((m.GPU_UP, LOST_GPU, 0.0))
    yield from (series for series in (one(*each) for each in found) if len(series.t))


def _powered(instance: str, index: str, runs: Sequence[JobRun], hour_s: float) -> NodeGpu:
    steps = [(hour_s - 60, IDLE_W)]
    for run in sorted(runs, key=lambda each: each.after_s):
        end_s, t, ripple = (
            run.end_s or hour_s + 3_720,
            run.begin_s,
            RIPPLE_W if run.phases or run.share < 1 else 0.0,
        )
        while t < end_s:
            steps.append((t, run.watts + ripple))
            t, ripple = t + SCRAPE_S, -ripple
        steps.append((end_s, IDLE_W))
    merged = [step for step, following in pairwise(sorted(set(steps))) if step[0] < following[0]]
    return NodeGpu([*merged, max(steps)], index=index, name=f"NVIDIA H100 of {instance[0]}")


def _gpu(
    gpu: NodeGpu, runs: Sequence[JobRun], end_s: float, waiting: Callable[[float], bool]
) -> Iterator[tuple[Metric, dict[str, str], ExportedValue | float]]:
    where = {"gpu": gpu.index, "uuid": gpu.uuid}
    model = {
        "name": "NVIDIA H100",
        "architecture": "hopper",
        "pci_bus_id": f"0:{gpu.index}",
        "driver_version": "560",
    }

    def cap_w(t: float) -> float:
        caps = [
            run.labels.get("power_limit_watts", "700")
            for run in runs
            if run.begin_s <= t < (run.end_s or end_s)
        ]
        return float(caps[0]) if caps else 700.0

    def busy(t: float) -> bool:
        return gpu.power_w(t) > IDLE_W

    yield m.GPU_INFO, where | model | {"device": gpu.uuid}, 1.0
    yield m.GPU_UP, where, 1.0
    yield m.GPU_POWER, where, gpu.power_w
    yield m.GPU_ENERGY, where, gpu.energy_j
    yield m.GPU_INTEGRATED_ENERGY, where, lambda t: 1.01 * gpu.energy_j(t)
    yield m.GPU_POWER_LIMIT, where | {"kind": "enforced"}, cap_w
    yield m.GPU_UTILIZATION, where | {"engine": "gpu"}, lambda t: 0.96 if busy(t) else 0.0
    yield m.GPU_MEMORY_USED, where, lambda t: 60e9 if busy(t) or waiting(t) else 1e9
    yield m.GPU_MEMORY_TOTAL, where, 80e9
    for sensor, warmer_c in (("gpu", 0.0), ("memory", 9.0)):
        yield (
            m.GPU_TEMPERATURE,
            where | {"sensor": sensor},
            lambda t, w=warmer_c: 30 + w + gpu.power_w(t) / 12,
        )
    yield (
        m.GPU_CLOCK,
        where | {"domain": "sm"},
        lambda t: (2e9 - 1e8 * int(gpu.index)) if busy(t) or waiting(t) else 3.45e8,
    )
    yield m.GPU_CLOCK, where | {"domain": "memory"}, 2.619e9
    yield (
        m.GPU_CLOCK_EVENT_SECONDS,
        where | {"reason": "sw_power_cap"},
        lambda t: gpu.energy_j(t) / 1_000,
    )
    yield (
        m.GPU_ENERGY_SUSPECT,
        where | {"reason": "disagrees"},
        lambda t: float(gpu.index == "1" and t > end_s - 600),
    )
    device = {"component": "gpu", "device": gpu.uuid}
    yield m.EMISSIONS, device | _KIND, lambda t: gpu.energy_j(t) * _G_PER_JOULE

    def rest_j(t: float) -> float:
        return gpu.energy_j(t) - sum(run.share * (_run_joules(gpu, run, t) or 0.0) for run in runs)

    yield m.RUN_ATTRIBUTED_ENERGY, device | {"run_id": "", "policy": "idle_shared"}, rest_j


def _owners(
    powered: Mapping[str, NodeGpu], runs: Sequence[JobRun], hour_s: float
) -> Iterator[tuple[Metric, dict[str, str], ExportedValue]]:
    """Yield the counters of the owners of these runs, which add up to the GPUs of the node."""
    owners: dict[tuple[str, ...], list[JobRun]] = {}
    for run in runs:
        user = run.labels.get("user", "root")
        owners.setdefault((*_OWNERS.get(user, ("run", user, "")), run.workload), []).append(run)

    def joules(own: Sequence[JobRun], t: float) -> float:
        return sum(run.share * (_run_joules(powered[run.gpu], run, t) or 0.0) for run in own)

    def seconds(own: Sequence[JobRun], t: float) -> float:
        return sum(run.share * max(min(t, run.end_s or t) - run.begin_s, 0.0) for run in own)

    def free_joules(t: float) -> float:
        return sum(gpu.energy_j(t) - gpu.energy_j(hour_s) for gpu in powered.values()) - joules(
            runs, t
        )

    policy = {"component": "gpu", "policy": "idle_shared"}
    for names, own in owners.items():
        owner = dict(zip(_OWNER_LABELS, names, strict=True))
        yield m.OWNER_ENERGY, owner | policy, lambda t, own=own: joules(own, t)
        yield m.OWNER_GPU_SECONDS, owner, lambda t, own=own: seconds(own, t)
    yield m.OWNER_ENERGY, dict.fromkeys(_OWNER_LABELS, "") | {"kind": "none"} | policy, free_joules


_OWNER_LABELS = ("kind", "owner", "account", "workload")
_OWNERS = {"ann": ("slurm", "ann", "physics"), "ben": ("kubernetes", "web", "")}
"""Kind, owner and account of users whose runs were discovered; the owner of a pod is its namespace.
"""
_KIND = {"basis": "average", "quality": "actual"}


def _run_joules(gpu: NodeGpu, run: JobRun, t: float) -> float | None:
    """Return the energy of the whole device since the start of the run, up to its end."""
    if t < run.begin_s:
        return None
    return gpu.energy_j(min(t, run.end_s or t)) - gpu.energy_j(run.begin_s)


def _run(
    gpu: NodeGpu, run: JobRun
) -> Iterator[tuple[Metric, dict[str, str], ExportedValue | float]]:
    own, device = {"run_id": run.run_id}, {"component": "gpu", "device": gpu.uuid}

    def shown(value: ExportedValue) -> ExportedValue:
        last_s = math.inf if run.end_s is None else run.end_s + AFTER_S
        return lambda t: value(min(t, run.end_s or t)) if run.begin_s <= t <= last_s else None

    def joules(t: float) -> float:
        return gpu.energy_j(t) - gpu.energy_j(run.begin_s)

    info = {
        "workload": run.workload,
        **{f"label_{name}": text for name, text in run.labels.items()},
    }
    yield m.RUN_INFO, own | info, shown(lambda _: 1.0)
    yield m.RUN_GPU_INFO, own | {"gpu": gpu.index, "uuid": gpu.uuid}, shown(lambda _: 1.0)
    yield m.RUN_START, own, shown(lambda _: run.begin_s)
    yield m.RUN_DURATION, own, shown(lambda t: t - run.begin_s)
    yield m.RUN_ENERGY, own | device, shown(joules)
    yield (
        m.RUN_ENERGY,
        own | {"component": "cpu", "device": "0"},
        shown(lambda t: PACKAGE_W * (t - run.begin_s)),
    )
    yield (
        m.RUN_ATTRIBUTED_ENERGY,
        own | device | {"policy": "idle_shared"},
        shown(lambda t: run.share * joules(t)),
    )
    yield (
        m.RUN_EMISSIONS,
        own | {"component": "gpu"} | _KIND,
        shown(lambda t: joules(t) * _G_PER_JOULE),
    )
    end_s = run.end_s
    if end_s is not None:
        yield m.RUN_END, own, shown(lambda t: end_s if t >= end_s else None)
        yield (
            m.RUN_OUTCOME,
            own | {"outcome": run.outcome},
            shown(lambda t: 1.0 if t >= end_s else None),
        )
    for name, value in run.results.items():
        yield m.RUN_RESULT, own | {"name": name}, shown(lambda _, v=value: v)
    warm_s = run.begin_s
    for name, seconds in run.phases.items():
        until = lambda t, a=warm_s, n=seconds: min(max(t, a), a + n)  # noqa: E731
        phase = own | {"phase": name}
        yield m.RUN_PHASE_SECONDS, phase, shown(lambda t, a=warm_s, u=until: u(t) - a)
        spent = lambda t, a=warm_s, u=until: gpu.energy_j(u(t)) - gpu.energy_j(a)  # noqa: E731
        yield m.RUN_PHASE_ENERGY, phase | {"component": "gpu"}, shown(spent)
        warm_s += seconds
    worked_s = warm_s - list(run.phases.values())[-1] if run.phases else run.begin_s
    for unit, rate in run.per_second.items():
        done = shown(lambda t, r=rate: r * max(t - worked_s, 0.0))
        yield m.RUN_WORK, own | {"unit": unit}, done
        if run.phases:
            yield m.RUN_PHASE_WORK, own | {"phase": "measure", "unit": unit}, done

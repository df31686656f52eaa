"""Simulated GPUs that pass through known states, with their true joules and the series of any
scrape interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.analyzer.fleet_nodes import NodeSeries
from tests.analyzer.series_source import SeriesSource
from wattline.contract import metrics as m
from wattline_analyzer.waste.fetch import WasteRequest, fetch_waste
from wattline_analyzer.waste.model import Thresholds

BEGIN_S = 1_790_000_000.0
DEEP_IDLE_W, MAX_HZ, GIB = 70.0, 1.98e9, 2.0**30


@dataclass(frozen=True)
class State:
    """State of a GPU for some seconds; `events` are the shares of the time in which clock event
    reasons hold.
    """

    seconds: float
    watts: float
    utilization: float = 0.0
    memory_gib: float = 0.5
    clock: float = 0.17
    limit_w: float = 700.0
    events: Mapping[str, float] = field(default_factory=dict)

    @property
    def excess_j(self) -> float:
        return (self.watts - DEEP_IDLE_W) * self.seconds


def deep_idle(seconds: float) -> State:
    return State(seconds, DEEP_IDLE_W)


def busy(seconds: float, **changes) -> State:
    return State(
        seconds,
        **{"watts": 600.0, "utilization": 0.97, "memory_gib": 60.0, "clock": 0.95, **changes},
    )


def loaded(seconds: float) -> State:
    """A model is loaded and the clocks are up, without work: 70 W idle + 50 W."""
    return State(seconds, 120.0, memory_gib=60.0, clock=1.0)


@dataclass(frozen=True)
class Run:
    """Run on some GPUs from `start_s` to `end_s` after the beginning; it goes on without an end."""

    run_id: str
    start_s: float
    end_s: float | None = None
    gpus: Sequence[int] = (0,)
    labels: Mapping[str, str] = field(default_factory=dict)
    hidden: bool = False
    """True if it is shorter than --runs.min-seconds: it has no series, and its energy is not
    unattributed.
    """


@dataclass(frozen=True)
class Pod:
    gpu: int
    namespace: str
    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Node:
    """Node whose GPUs pass through `states`.

    `idle_power_w` is the idle power that the exporter reports. Metrics in `absent` have no series.
    """

    states: Sequence[Sequence[State]]
    runs: Sequence[Run] = ()
    pods: Sequence[Pod] = ()
    instance: str = "a:9847"
    interval_s: float = 15.0
    offset_s: float = 0.0
    idle_power_w: float | None = DEEP_IDLE_W
    intensity: float | None = 200.0
    absent: Sequence[m.Metric] = ()
    lost: Sequence[tuple[float, float]] = ()
    fast: Sequence[tuple[float, float]] = ()
    """Spans with a sample per second, as in the local history during runs."""
    noise: float = 0.0
    """Standard deviation of the sampled power as a ratio; the energy counter then has steps of
    `step_s`.
    """
    step_s: float = 0.1

    @property
    def seconds(self) -> float:
        return sum(state.seconds for state in self.states[0])

    def uuid(self, gpu: int) -> str:
        return f"GPU-{self.instance[0]}{gpu}"

    def times(self) -> np.ndarray:
        t = np.arange(self.offset_s, self.seconds + 1e-6, self.interval_s)
        for start_s, end_s in self.fast:
            t = np.union1d(t, np.arange(np.ceil(start_s), min(end_s, self.seconds)))
        for start_s, end_s in self.lost:
            t = t[(t < start_s) | (t >= end_s)]
        return t

    def series(self) -> Iterator[NodeSeries]:
        for one in self._series():
            if len(one.t) and one.labels["__name__"] not in {metric.name for metric in self.absent}:
                yield one

    def _series(self) -> Iterator[NodeSeries]:
        t = self.times()
        common = {"instance": self.instance, "job": "wattline"}

        def one(metric, labels, value, shown=None) -> NodeSeries:
            at = slice(None) if shown is None else shown
            filled = np.broadcast_to(np.asarray(value, dtype=float), t.shape)[at]
            return NodeSeries(
                {"__name__": metric.name, **common, **labels}, BEGIN_S + t[at], filled
            )

        yield one(m.BUILD_INFO, {"version": "0.1.0"}, 1.0)
        if self.intensity is not None:
            labels = {"region": "GB", "provider": "gb", "basis": "average", "quality": "actual"}
            yield one(m.CARBON_INTENSITY, labels, self.intensity)
        for gpu in range(len(self.states)):
            yield from self._gpu_series(gpu, t, one)
        for run in self.runs:
            if run.hidden:
                continue
            shown = (t >= run.start_s) & (t <= (np.inf if run.end_s is None else run.end_s + 600))
            labels = {f"label_{name}": text for name, text in run.labels.items()}
            yield one(m.RUN_INFO, {"run_id": run.run_id, "workload": "serve", **labels}, 1.0, shown)
            yield one(m.RUN_START, {"run_id": run.run_id}, BEGIN_S + run.start_s, shown)
            if run.end_s is not None:
                yield one(
                    m.RUN_END, {"run_id": run.run_id}, BEGIN_S + run.end_s, shown & (t >= run.end_s)
                )
            for gpu in run.gpus:
                yield one(
                    m.RUN_GPU_INFO,
                    {"run_id": run.run_id, "gpu": str(gpu), "uuid": self.uuid(gpu)},
                    1.0,
                    shown,
                )
        for pod in self.pods:
            labels = {
                "gpu": str(pod.gpu),
                "uuid": self.uuid(pod.gpu),
                "namespace": pod.namespace,
                "pod": pod.name,
            }
            yield one(
                m.GPU_POD_INFO,
                {**labels, "container": "c"},
                1.0,
                (t >= pod.start_s) & (t < pod.end_s),
            )

    def _gpu_series(self, gpu, t, one) -> Iterator[NodeSeries]:
        states, labels = self.states[gpu], {"gpu": str(gpu), "uuid": self.uuid(gpu)}
        knots = np.cumsum([0.0, *(state.seconds for state in states)])
        at = np.clip(np.searchsorted(knots, t, side="right") - 1, 0, len(states) - 1)

        def gauge(values):
            return np.array([float(value) for value in values])[at]

        def counter(rates):
            return np.interp(
                t,
                knots,
                np.cumsum([0.0, *(r * s.seconds for r, s in zip(rates, states, strict=True))]),
            )

        yield one(m.GPU_INFO, {**labels, "name": "NVIDIA H200"}, 1.0)
        watts = gauge(state.watts for state in states)
        ripple = np.random.default_rng(gpu).normal(0.0, self.noise, len(t)) if self.noise else 0.0
        late_s = (t % self.step_s) if self.noise else 0.0
        yield one(m.GPU_ENERGY, labels, counter([state.watts for state in states]) - watts * late_s)
        whole = counter([state.watts for state in states])
        joules = whole
        for run in (run for run in self.runs if gpu in run.gpus):
            ends_s = [run.start_s, self.seconds if run.end_s is None else run.end_s]
            ends = np.interp(
                ends_s, knots, np.cumsum([0.0, *(state.watts * state.seconds for state in states)])
            )
            joules = joules - (np.clip(whole, *ends) - ends[0])
        device = {"component": "gpu", "device": self.uuid(gpu), "run_id": ""}
        for policy in ("idle_apart", "idle_shared"):
            yield one(m.RUN_ATTRIBUTED_ENERGY, {**device, "policy": policy}, joules)
        yield one(m.GPU_POWER, labels, watts * (1 + ripple))
        yield one(
            m.GPU_UTILIZATION,
            {**labels, "engine": "gpu"},
            gauge(state.utilization for state in states),
        )
        yield one(m.GPU_MEMORY_USED, labels, gauge(state.memory_gib * GIB for state in states))
        yield one(
            m.GPU_CLOCK, {**labels, "domain": "sm"}, gauge(state.clock * MAX_HZ for state in states)
        )
        yield one(m.GPU_CLOCK, {**labels, "domain": "memory"}, 3.2e9)
        yield one(m.GPU_CLOCK_MAX, {**labels, "domain": "sm"}, MAX_HZ)
        yield one(
            m.GPU_POWER_LIMIT,
            {**labels, "kind": "requested"},
            gauge(state.limit_w for state in states),
        )
        yield one(m.GPU_POWER_LIMIT, {**labels, "kind": "default"}, 700.0)
        for reason in (
            "hw_thermal_slowdown",
            "sw_thermal_slowdown",
            "hw_power_brake_slowdown",
            "applications_clocks_setting",
        ):
            rates = [state.events.get(reason, 0.0) for state in states]
            yield one(m.GPU_CLOCK_EVENT_SECONDS, {**labels, "reason": reason}, counter(rates))
        if self.idle_power_w is not None:
            yield one(
                m.IDLE_POWER, {"component": "gpu", "device": self.uuid(gpu)}, self.idle_power_w
            )


class NodeSource(SeriesSource):
    """Source of the series of some nodes, in parts of two hours."""

    name = "nodes"
    part_s = 7_200.0

    def __init__(self, *nodes: Node) -> None:
        self._series = [one for node in nodes for one in node.series()]

    def parts(self, metrics, matchers, start_s, end_s):
        names = {metric.name for metric in metrics}
        wanted = [
            one
            for one in self._series
            if one.labels["__name__"] in names
            and all(one.labels.get(name, "") == text for name, text in matchers.items())
        ]
        for from_s in np.arange(start_s, end_s, self.part_s):
            found = []
            for one in wanted:
                inside = (one.t > from_s) & (one.t <= min(from_s + self.part_s, end_s))
                if inside.any():
                    found.append((one.labels, one.t[inside], one.value[inside]))
            yield found

    def fetch(self, metrics, matchers, start_s, end_s):
        return super().fetch(metrics, matchers, start_s - 1e-3, end_s)


def found_waste(*nodes, now_s=None, **limits):
    end_s = BEGIN_S + max(node.seconds for node in nodes)
    request = WasteRequest(
        BEGIN_S - 1, end_s + 60, end_s if now_s is None else now_s, limits=Thresholds(**limits)
    )
    return fetch_waste(NodeSource(*nodes), request)[0]


def by_class(waste):
    return {str(finding.kind): finding for finding in waste.findings}

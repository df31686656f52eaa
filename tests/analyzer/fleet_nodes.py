"""Series of nodes whose energy, runs and tokens are known in closed form."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric

IDLE_W, BUSY_W = 60.0, 300.0
CPU_W, DRAM_W = 120.0, 20.0
AFTER_S = 600.0
HALF_J = 4.0
"""Half-width of the energy of each device of a run."""
EMISSIONS_DELAY_S = 4.0
"""Delay between a run's energy and its emissions."""
KWH_J = 3.6e6


@dataclass(frozen=True)
class FleetRun:
    """Run on `gpus` of each of `instances`, alone or in equal parts with others; `per_second` is
    its work by unit.

    `phases` are the seconds from the start at which each begins and ends; if there are some, all
    work is done in them.
    """

    run_id: str
    instances: tuple[str, ...]
    gpus: tuple[int, ...]
    begin_s: float
    end_s: float
    labels: Mapping[str, str] = field(default_factory=dict)
    workload: str = "serve"
    per_second: Mapping[str, float] = field(default_factory=dict)
    phases: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    def working_s(self, t: np.ndarray) -> np.ndarray:
        """Return the time in which work was done, up to `t`."""
        spans = self.phases.values() or [(0.0, self.seconds)]
        return np.sum([np.clip(t - self.begin_s, *span) - span[0] for span in spans], axis=0)


@dataclass(frozen=True)
class FleetNode:
    """Node whose counters started at 0 at `since_s` and restarted at `fresh_s`; scraped from `up_s`
    until `down_s`.

    `lost` are spans without a successful scrape; `pods` the GPUs of pods: GPU, namespace, from,
    until.
    """

    instance: str
    since_s: float
    up_s: float
    down_s: float
    gpus: int = 2
    model: str = "NVIDIA H200"
    interval_s: float = 15.0
    offset_s: float = 0.0
    fresh_s: float | None = None
    lost: Sequence[tuple[float, float]] = ()
    grams_per_kwh: float | None = None
    pods: Sequence[tuple[int, str, float, float]] = ()

    def uuid(self, gpu: int) -> str:
        return f"GPU-{self.instance}-{gpu}"

    def times(self) -> np.ndarray:
        first = (
            np.ceil((self.up_s - self.offset_s) / self.interval_s) * self.interval_s + self.offset_s
        )
        t = np.arange(first, self.down_s, self.interval_s)
        for from_s, until_s in self.lost:
            t = t[(t < from_s) | (t >= until_s)]
        return np.round(t, 3)


@dataclass(frozen=True)
class NodeSeries:
    labels: dict[str, str]
    t: np.ndarray
    value: np.ndarray


def node_series(node: FleetNode, runs: Iterable[FleetRun]) -> Iterator[NodeSeries]:
    """Return all series of a node, with whole joules."""
    t, own_runs = node.times(), [run for run in runs if node.instance in run.instances]

    def series(
        metric: Metric,
        labels: Mapping[str, str],
        values: np.ndarray,
        exported: np.ndarray | None = None,
    ) -> NodeSeries:
        name = {"__name__": metric.name, "instance": node.instance, "job": "wattline"}
        at = slice(None) if exported is None else exported
        return NodeSeries(
            {**name, **labels}, t[at], np.round(values[at], 6 if "grams" in metric.name else 0)
        )

    yield series(m.BUILD_INFO, {"version": "0.1.0"}, np.ones(len(t)))
    gpus = [
        DeviceEnergy(node, [run for run in own_runs if gpu in run.gpus], IDLE_W, BUSY_W)
        for gpu in range(node.gpus)
    ]
    for gpu, device in enumerate(gpus):
        device_labels = {"gpu": str(gpu), "uuid": node.uuid(gpu)}
        yield series(m.GPU_INFO, {**device_labels, "name": node.model}, np.ones(len(t)))
        yield series(m.GPU_ENERGY, device_labels, device.total_j(t))
        yield from _attributed_energy(
            {"component": "gpu", "device": node.uuid(gpu)}, device, t, series
        )
        yield from _emissions(
            node, {"component": "gpu", "device": node.uuid(gpu)}, device, t, series
        )
    if node.grams_per_kwh is not None:
        kind = {"region": "GB", "provider": "gb", "basis": "average", "quality": "actual"}
        yield series(m.CARBON_INTENSITY, kind, np.full(len(t), node.grams_per_kwh))
    for gpu, namespace, from_s, until_s in node.pods:
        device_labels = {
            "gpu": str(gpu),
            "uuid": node.uuid(gpu),
            "namespace": namespace,
            "pod": f"{namespace}-0",
        }
        yield series(m.GPU_POD_INFO, device_labels, np.ones(len(t)), (t >= from_s) & (t < until_s))
    for zone, watts, component in (("package", CPU_W, "cpu"), ("dram", DRAM_W, "dram")):
        device = DeviceEnergy(node, own_runs, watts, watts)
        yield series(m.CPU_ENERGY, {"package": "0", "zone": zone}, device.total_j(t))
        yield from _attributed_energy({"component": component, "device": "0"}, device, t, series)
        yield from _emissions(node, {"component": component, "device": "0"}, device, t, series)
    for run in own_runs:
        yield from _run_series(node, run, t, series)
        yield from _phase_series(node, run, [gpus[gpu] for gpu in run.gpus], t, series)


def _attributed_energy(device_labels, device, t, series) -> Iterator[NodeSeries]:
    by_run = {run.run_id: device.of_run_j(run, t) for run in device.runs}
    rest = device.total_j(t) - (
        sum(device.booked_j(run, t) for run in device.runs) if device.runs else 0.0
    )
    for policy in ("idle_shared", "idle_apart"):
        yield series(m.RUN_ATTRIBUTED_ENERGY, {**device_labels, "policy": policy}, rest)
    for run in device.runs:
        exported = (t >= run.begin_s) & (t <= run.end_s + AFTER_S)
        for policy in ("idle_shared", "idle_apart"):
            labels = {**device_labels, "run_id": run.run_id, "policy": policy}
            yield series(m.RUN_ATTRIBUTED_ENERGY, labels, by_run[run.run_id], exported)
        run_labels = {**device_labels, "run_id": run.run_id}
        yield series(m.RUN_ENERGY, run_labels, device.during_j(run, t), exported)
        yield series(m.RUN_ENERGY_UNCERTAINTY, run_labels, np.full(len(t), HALF_J), exported)


def _emissions(node, device_labels, device, t, series) -> Iterator[NodeSeries]:
    if node.grams_per_kwh is not None:
        labels = {**device_labels, "basis": "average", "quality": "actual"}
        yield series(m.EMISSIONS, labels, device.total_j(t) * node.grams_per_kwh / KWH_J)


def _run_series(node, run, t, series) -> Iterator[NodeSeries]:
    exported, run_labels = (t >= run.begin_s) & (t <= run.end_s + AFTER_S), {"run_id": run.run_id}
    if not exported.any():
        return
    info = {
        **run_labels,
        "workload": run.workload,
        **{f"label_{name}": text for name, text in run.labels.items()},
    }
    yield series(m.RUN_INFO, info, np.ones(len(t)), exported)
    yield series(m.RUN_START, run_labels, np.full(len(t), run.begin_s), exported)
    yield series(m.RUN_DURATION, run_labels, np.clip(t - run.begin_s, 0, run.seconds), exported)
    yield series(m.RUN_END, run_labels, np.full(len(t), run.end_s), exported & (t >= run.end_s))
    for gpu in run.gpus:
        device_labels = {**run_labels, "gpu": str(gpu), "uuid": node.uuid(gpu)}
        yield series(m.RUN_GPU_INFO, device_labels, np.ones(len(t)), exported)
    if node.instance == run.instances[0]:  # the instance that counts the run's work
        for unit, per_second in run.per_second.items():
            yield series(
                m.RUN_WORK, {**run_labels, "unit": unit}, per_second * run.working_s(t), exported
            )
    if node.grams_per_kwh is not None:
        joules = sum(
            DeviceEnergy(node, [run], IDLE_W, BUSY_W).during_j(run, t - EMISSIONS_DELAY_S)
            for _ in run.gpus
        )
        labels = {**run_labels, "component": "gpu", "basis": "average", "quality": "actual"}
        yield series(m.RUN_EMISSIONS, labels, joules * node.grams_per_kwh / KWH_J, exported)


def _phase_series(node, run, devices, t, series) -> Iterator[NodeSeries]:
    for name, (from_s, until_s) in run.phases.items():
        labels = {"run_id": run.run_id, "phase": name}
        exported = (t >= run.begin_s + from_s) & (t <= run.end_s + AFTER_S)
        seconds = np.clip(t - run.begin_s, from_s, until_s) - from_s
        span = replace(run, begin_s=run.begin_s + from_s, end_s=run.begin_s + until_s)
        joules = np.sum([device.during_j(span, t) for device in devices], axis=0)
        yield series(m.RUN_PHASE_SECONDS, labels, seconds, exported)
        yield series(m.RUN_PHASE_ENERGY, {**labels, "component": "gpu"}, joules, exported)
        if node.instance != run.instances[0]:  # it does not count the run's work
            continue
        for unit, per_second in run.per_second.items():
            yield series(m.RUN_PHASE_WORK, {**labels, "unit": unit}, per_second * seconds, exported)


class DeviceEnergy:
    """Energy at any time: piecewise linear between starts and ends of runs."""

    def __init__(
        self, node: FleetNode, runs: Sequence[FleetRun], idle_w: float, busy_w: float
    ) -> None:
        self.runs = runs
        self._fresh_s = node.fresh_s
        edges = [t for run in runs for t in (run.begin_s, run.end_s)]
        self._knots = np.unique(
            [node.since_s, *(t for t in edges if t > node.since_s), node.down_s + 1]
        )
        begins = self._knots[:-1]
        on = {run.run_id: (begins >= run.begin_s) & (begins < run.end_s) for run in runs}
        holders = sum((held.astype(float) for held in on.values()), np.zeros(len(begins)))
        drawn = np.diff(self._knots) * np.where(holders > 0, busy_w, idle_w)
        self._total = self._summed(drawn)
        self._shares = {
            name: self._summed(np.where(held, drawn / np.maximum(holders, 1), 0.0))
            for name, held in on.items()
        }

    def _summed(self, each: np.ndarray) -> np.ndarray:
        return np.concatenate([[0.0], np.cumsum(each)])

    def _at(self, line: np.ndarray, t: np.ndarray) -> np.ndarray:
        return np.interp(t, self._knots, line)

    def _since_fresh(self, line: np.ndarray, t: np.ndarray) -> np.ndarray:
        values = self._at(line, t)
        if self._fresh_s is None:
            return values
        return np.where(
            t < self._fresh_s, values, values - self._at(line, np.array([self._fresh_s]))
        )

    def total_j(self, t: np.ndarray) -> np.ndarray:
        return self._since_fresh(self._total, t)

    def booked_j(self, run: FleetRun, t: np.ndarray) -> np.ndarray:
        """Attributed energy, since the counters restarted."""
        return self._since_fresh(self._shares[run.run_id], t)

    def of_run_j(self, run: FleetRun, t: np.ndarray) -> np.ndarray:
        return self._at(self._shares[run.run_id], t)

    def during_j(self, run: FleetRun, t: np.ndarray) -> np.ndarray:
        """Energy of the whole device since the run's start."""
        return self._at(self._total, np.clip(t, run.begin_s, run.end_s)) - self._at(
            self._total, np.array([run.begin_s])
        )


def import_to_victoria_metrics(address: str, series: Iterable[NodeSeries]) -> None:
    lines = (
        json.dumps(
            {
                "metric": entry.labels,
                "values": entry.value.tolist(),
                "timestamps": np.rint(entry.t * 1_000).astype(np.int64).tolist(),
            }
        )
        for entry in series
        if len(entry.t)
    )
    body = "\n".join(lines).encode()
    urllib.request.urlopen(
        urllib.request.Request(f"{address}/api/v1/import", body, method="POST")
    ).close()
    urllib.request.urlopen(f"{address}/internal/force_flush").close()


def write_prometheus_blocks(folder: Path, series: Iterable[NodeSeries]) -> None:
    """Create blocks with promtool in `folder`, before Prometheus starts there."""
    families: dict[str, list[str]] = {}
    for entry in series:
        name = entry.labels["__name__"]
        inner = ",".join(
            f"{key}={json.dumps(text)}" for key, text in entry.labels.items() if key != "__name__"
        )
        lines = families.setdefault(name, [])
        lines += [
            f"{name}{{{inner}}} {value!r} {t:.3f}"
            for t, value in zip(entry.t, entry.value.tolist(), strict=True)
        ]
    kinds = {metric.name: metric.kind for metric in m.METRICS}
    text = []
    for name, lines in families.items():
        kind = kinds.get(name, "gauge")  # results of recording rules
        text += [
            f"# TYPE {name.removesuffix('_total') if kind == 'counter' else name} {kind}",
            *lines,
        ]
    source = folder / "fleet.om"
    source.write_text("\n".join([*text, "# EOF", ""]))
    # blocks of up to a week, because promtool reads the whole file again for each block
    call = [
        "promtool",
        "tsdb",
        "create-blocks-from",
        "--max-block-duration=162h",
        "openmetrics",
        source,
    ]
    subprocess.run([*call, folder / "prometheus"], check=True, capture_output=True, timeout=300)
    source.unlink()

"""Node with GPUs of piecewise constant power, one run, and its series at any scrape interval."""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

from wattline.contract import metrics as m
from wattline.contract.history import SCHEMA, SCHEMA_VERSION, Series, canonical_labels

START_S = 1_789_000_000.0


@dataclass(frozen=True)
class NodeGpu:
    """GPU with power `steps` (start, watts); the first also holds for all earlier times."""

    steps: Sequence[tuple[float, float]]
    index: str = "0"
    name: str = "NVIDIA A100-SXM4-40GB"
    architecture: str = "ampere"
    limit_w: float = 400.0
    utilization: float | None = None

    @property
    def uuid(self) -> str:
        return f"GPU-{int(self.index):08d}"

    @cached_property
    def _starts_s(self) -> list[float]:
        return [start_s for start_s, _ in self.steps]

    @cached_property
    def _energies_j(self) -> list[float]:
        """Energy from the first step to the start of each."""
        joules = (
            (end_s - start_s) * watts for (start_s, watts), (end_s, _) in pairwise(self.steps)
        )
        return list(accumulate(joules, initial=0.0))

    def power_w(self, t: float) -> float:
        at = bisect_right(self._starts_s, t) - 1
        return self.steps[max(at, 0)][1]

    def energy_j(self, t: float) -> float:
        """Energy since the first step, in closed form."""
        at = bisect_right(self._starts_s, t) - 1
        start_s, watts = self.steps[at]
        return self._energies_j[at] + (t - start_s) * watts if at >= 0 else 0.0


@dataclass(frozen=True)
class NodeRun:
    run_id: str = "train-1"
    start_s: float = START_S
    end_s: float | None = START_S + 20
    workload: str = "train"
    labels: dict[str, str] = field(default_factory=lambda: {"model": "tiny"})
    outcome: str = "ok"
    work: dict[str, float] = field(default_factory=lambda: {"generated_tokens": 1_000.0})
    results: dict[str, float] = field(default_factory=dict)
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Seconds and joules of each phase."""
    phase_uncertainty_j: float | None = None
    phase_work: dict[str, dict[str, float]] = field(default_factory=dict)
    cpu_j: float | None = None
    emissions_g: float | None = None
    uncertainty_j: float = 10.0
    covered_ratio: float = 1.0
    integral_factor: float = 1.0


def scrape(
    gpus: Sequence[NodeGpu], run: NodeRun, t: float, *, intensity: float | None = None
) -> Iterable[tuple]:
    """(metric, labels, value) of each series that the exporter exports at `t`."""
    yield m.BUILD_INFO, {"version": "0.1.0"}, 1.0
    for gpu in gpus:
        gpu_labels = {"gpu": gpu.index, "uuid": gpu.uuid}
        yield (
            m.GPU_INFO,
            {
                **gpu_labels,
                "name": gpu.name,
                "architecture": gpu.architecture,
                "pci_bus_id": f"0000:0{gpu.index}:00.0",
                "driver_version": "560",
            },
            1.0,
        )
        yield m.GPU_POWER, gpu_labels, gpu.power_w(t)
        yield m.GPU_ENERGY, gpu_labels, gpu.energy_j(t)
        yield m.GPU_POWER_LIMIT, {**gpu_labels, "kind": "enforced"}, gpu.limit_w
        if gpu.utilization is not None:
            yield m.GPU_UTILIZATION, {**gpu_labels, "engine": "gpu"}, gpu.utilization
    if intensity is not None:
        carbon = {"region": "GB", "provider": "gb", "basis": "average", "quality": "actual"}
        yield m.CARBON_INTENSITY, carbon, intensity
        yield m.CARBON_INTENSITY_TIMESTAMP, carbon, t // 1_800 * 1_800
    if run.start_s <= t and (run.end_s is None or t <= run.end_s + 600):
        yield from run_series(gpus, run, t)


def run_series(gpus: Sequence[NodeGpu], run: NodeRun, t: float) -> Iterable[tuple]:
    run_labels = {"run_id": run.run_id}
    until = t if run.end_s is None else min(t, run.end_s)
    yield (
        m.RUN_INFO,
        {
            **run_labels,
            "workload": run.workload,
            **{f"label_{k}": v for k, v in run.labels.items()},
        },
        1.0,
    )
    yield m.RUN_START, run_labels, run.start_s
    yield m.RUN_DURATION, run_labels, until - run.start_s
    if run.end_s is not None and t >= run.end_s:
        yield m.RUN_END, run_labels, run.end_s
        yield m.RUN_OUTCOME, {**run_labels, "outcome": run.outcome}, 1.0
    for gpu in gpus:
        gpu_labels, device = (
            {"gpu": gpu.index, "uuid": gpu.uuid},
            {"component": "gpu", "device": gpu.uuid},
        )
        energy_j = gpu.energy_j(until) - gpu.energy_j(run.start_s)
        yield m.RUN_GPU_INFO, {**run_labels, **gpu_labels}, 1.0
        yield m.RUN_ENERGY, {**run_labels, **device}, energy_j
        yield m.RUN_ENERGY_UNCERTAINTY, {**run_labels, **device}, run.uncertainty_j
        yield m.RUN_COVERED_RATIO, {**run_labels, **device}, run.covered_ratio
        yield m.RUN_INTEGRATED_ENERGY, {**run_labels, **gpu_labels}, energy_j * run.integral_factor
    if run.cpu_j is not None:
        yield m.RUN_ENERGY, {**run_labels, "component": "cpu", "device": "0"}, run.cpu_j
        yield m.RUN_ENERGY_UNCERTAINTY, {**run_labels, "component": "cpu", "device": "0"}, 1.0
    if run.emissions_g is not None:
        yield (
            m.RUN_EMISSIONS,
            {**run_labels, "component": "gpu", "basis": "average", "quality": "actual"},
            run.emissions_g,
        )
    for unit, amount in run.work.items():
        yield m.RUN_WORK, {**run_labels, "unit": unit}, amount
    for name, value in run.results.items():
        yield m.RUN_RESULT, {**run_labels, "name": name}, value
    yield from _phase_series(run, run_labels)


def _phase_series(run: NodeRun, run_labels: dict[str, str]) -> Iterable[tuple]:
    for name, (seconds, joules) in run.phases.items():
        yield m.RUN_PHASE_SECONDS, {**run_labels, "phase": name}, seconds
        yield m.RUN_PHASE_ENERGY, {**run_labels, "phase": name, "component": "gpu"}, joules
        if run.phase_uncertainty_j is not None:
            labels = {**run_labels, "phase": name, "component": "gpu"}
            yield m.RUN_PHASE_ENERGY_UNCERTAINTY, labels, run.phase_uncertainty_j
    for name, amounts in run.phase_work.items():
        for unit, amount in amounts.items():
            yield m.RUN_PHASE_WORK, {**run_labels, "phase": name, "unit": unit}, amount


def series_of_scrapes(
    scrapes: Iterable[tuple[float, Iterable[tuple]]], instance: str = ""
) -> list[Series]:
    """Group the scrapes by series, as a database stores them."""
    by_series: dict[tuple[str, frozenset[tuple[str, str]]], Series] = {}
    for t, values in scrapes:
        for metric, labels, value in values:
            key = metric.name, frozenset(labels.items())
            if key not in by_series:
                target = {"instance": instance, "job": "wattline"} if instance else {}
                by_series[key] = Series({"__name__": metric.name, **labels, **target}, [])
            by_series[key].samples.append((t, value))
    return list(by_series.values())


def scrape_times(interval_s: float, start_s: float, end_s: float) -> list[float]:
    """Scrape times with a resolution of milliseconds, as databases store them."""
    count = int((end_s - start_s) / interval_s) + 1
    return [round(start_s + k * interval_s, 3) for k in range(count)]


def write_history(folder: Path, series: Iterable[Series]) -> Path:
    path = folder / "history.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA)
    connection.execute(
        "INSERT OR REPLACE INTO meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),)
    )
    for entry in series:
        labels = {name: text for name, text in entry.labels.items() if name != "__name__"}
        cursor = connection.execute(
            "INSERT INTO series (name, labels) VALUES (?, ?)",
            (entry.labels["__name__"], canonical_labels(labels)),
        )
        connection.executemany(
            "INSERT INTO samples VALUES (?, ?, ?)",
            [(round(t * 1_000), cursor.lastrowid, value) for t, value in entry.samples],
        )
    connection.commit()
    connection.close()
    return path


def exposition_text(values: Iterable[tuple]) -> str:
    """Return the values in Prometheus's text format."""
    lines = []
    for metric, labels, value in values:
        inner = ",".join(
            f"{name}={json.dumps(text, ensure_ascii=False)}" for name, text in labels.items()
        )
        lines.append(f"{metric.name}{{{inner}}} {value!r}")
    return "\n".join([*lines, ""])

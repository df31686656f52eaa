"""Series of a run: what the exporter shows, importers write and the analyzer reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, cast

from wattline.contract import metrics as m
from wattline.contract.api import Outcome, RunGpu
from wattline.contract.metrics import Metric
from wattline.contract.run import (
    COMPONENTS,
    Component,
    Emissions,
    Run,
    RunDevice,
    RunFormatError,
    RunPhase,
    sensor_limits_j,
)
from wattline.contract.work import SHARE_POLICY, is_shared
from wattline.figures import Figure, unknown

_LABEL = "label_"
"""Prefix of a run's own labels."""
_NO_SERIES = "the exporter has no series of this energy"


class SeriesRow(NamedTuple):
    """Sample of a metric, with the labels of its series; its source has their other labels."""

    metric: Metric
    labels: Mapping[str, str]
    value: float


def to_rows(run: Run) -> Iterator[SeriesRow]:
    """Yield the series of a run on one node. An unknown figure has none."""
    own = {"run_id": run.run_id}
    labels = {f"{_LABEL}{name}": text for name, text in run.labels.items()}
    yield SeriesRow(m.RUN_INFO, {**own, "workload": run.workload, **labels}, 1.0)
    yield SeriesRow(m.RUN_START, own, run.started_at)
    yield SeriesRow(m.RUN_DURATION, own, run.duration_s)
    if run.ended_at is not None:
        yield SeriesRow(m.RUN_END, own, run.ended_at)
    if run.outcome is not None:
        yield SeriesRow(m.RUN_OUTCOME, {**own, "outcome": run.outcome}, 1.0)
    yield from _gpu_rows(run)
    for device in run.devices:
        yield from _device_rows(run.run_id, device)
    yield from _emission_rows(run)
    for unit, amount in run.work.items():
        yield SeriesRow(m.RUN_WORK, {**own, "unit": unit}, amount)
    if run.work_unit is not None:
        yield SeriesRow(m.RUN_WORK_UNIT, {**own, "unit": run.work_unit}, 1.0)
    if run.work_reported_at is not None:
        yield SeriesRow(m.RUN_WORK_TIMESTAMP, own, run.work_reported_at)
    for name, value in run.results.items():
        yield SeriesRow(m.RUN_RESULT, {**own, "name": name}, value)
    for phase in run.phases:
        yield from _phase_rows(run.run_id, phase)


def _emission_rows(run: Run) -> Iterator[SeriesRow]:
    """Yield emissions, and the share of the energy with an intensity where it is below 1."""
    ratios = {}
    for one in run.emissions:
        of_basis = {"run_id": run.run_id, "component": one.component, "basis": one.basis}
        yield SeriesRow(m.RUN_EMISSIONS, {**of_basis, "quality": one.quality}, one.grams)
        if one.covered_ratio < 1.0:
            ratios[one.component, one.basis] = of_basis, one.covered_ratio
    for labels, ratio in ratios.values():
        yield SeriesRow(m.RUN_EMISSIONS_COVERED_RATIO, labels, ratio)


def _gpu_rows(run: Run) -> Iterator[SeriesRow]:
    integrated_j = {
        device.device_id: device.integrated_j for device in run.devices if device.component == "gpu"
    }
    for gpu in run.gpus:
        labels = {"run_id": run.run_id, "gpu": gpu.gpu, "uuid": gpu.uuid}
        yield SeriesRow(m.RUN_GPU_INFO, labels, 1.0)
        gpu_integrated_j = integrated_j.get(gpu.uuid)
        if gpu_integrated_j is not None:
            yield SeriesRow(m.RUN_INTEGRATED_ENERGY, labels, gpu_integrated_j)
        if gpu.uuid in run.power_max_w:
            yield SeriesRow(m.RUN_POWER_MAX, labels, run.power_max_w[gpu.uuid])


def _device_rows(run_id: str, device: RunDevice) -> Iterator[SeriesRow]:
    labels = {"run_id": run_id, "component": device.component, "device": device.device_id}
    energy = device.energy_j
    if energy.value is not None:
        yield SeriesRow(m.RUN_ENERGY, labels, energy.value)
    if device.before_use_j > 0:
        yield SeriesRow(m.RUN_ENERGY_BEFORE_USE, labels, device.before_use_j)
    if energy.half_width is not None:
        yield SeriesRow(m.RUN_ENERGY_UNCERTAINTY, labels, energy.half_width)
    yield SeriesRow(m.RUN_COVERED_RATIO, labels, energy.covered_ratio)
    shares_j = device.shares_j
    if not shares_j and device.attributed_j is not None:
        shares_j = {SHARE_POLICY: device.attributed_j - device.before_use_j}
    for policy, share_j in shares_j.items():
        yield SeriesRow(m.RUN_ATTRIBUTED_ENERGY, {**labels, "policy": policy}, share_j)


def _phase_rows(run_id: str, phase: RunPhase) -> Iterator[SeriesRow]:
    own = {"run_id": run_id, "phase": phase.name}
    yield SeriesRow(m.RUN_PHASE_SECONDS, own, phase.duration_s)
    if phase.last_started_at is not None:
        yield SeriesRow(m.RUN_PHASE_START, own, phase.last_started_at)
    for component, energy in phase.energies_j.items():
        labels = {**own, "component": component}
        if energy.value is not None:
            yield SeriesRow(m.RUN_PHASE_ENERGY, labels, energy.value)
        if energy.half_width is not None:
            yield SeriesRow(m.RUN_PHASE_ENERGY_UNCERTAINTY, labels, energy.half_width)
    for unit, amount in phase.work.items():
        yield SeriesRow(m.RUN_PHASE_WORK, {**own, "unit": unit}, amount)


def from_rows(rows: Iterable[SeriesRow], node: str = "") -> Run:
    """Return the run of the newest samples of its series on one node.

    The rows may have several starts of a phase, in the order of time, and those of GPU_INFO, from
    which the names of the GPUs and the limits of their sensors are known. Devices and phases have
    the order of their first rows.

    A GPU of an ended run without series of its energy is a device whose energy is unknown.

    Series do not say all of a run. `notes`, `simulation`, `settled_until` and reasons are lost. An
    energy without a value is unknown, and one of a phase is left out. A partial energy is known,
    with its covered ratio; an interval that is not symmetric is unknown. Without starts of a phase,
    it has that of the run. Where `shares_j` has a share, `is_shared` decides whether `attributed_j`
    is set.

    Raises RunFormatError for rows without the start of the run.
    """
    return _SeriesReader(rows).run(node)


class _DeviceKey(NamedTuple):
    component: Component
    device_id: str


class _SeriesReader:
    """Rows of one run on one node, by metric."""

    def __init__(self, rows: Iterable[SeriesRow]) -> None:
        self._rows: defaultdict[str, list[SeriesRow]] = defaultdict(list)
        self._of_phase: defaultdict[tuple[str, str], list[SeriesRow]] = defaultdict(list)
        self._of_device: defaultdict[_DeviceKey, dict[str, float]] = defaultdict(dict)
        self._shares_j: defaultdict[_DeviceKey, dict[str, float]] = defaultdict(dict)
        self._devices: dict[_DeviceKey, None] = {}
        self._phases: dict[str, None] = {}
        for row in rows:
            self._add(row)
        self._infos = {row.labels["uuid"]: row.labels for row in self._rows[m.GPU_INFO.name]}
        self._integrated_j = self._by(m.RUN_INTEGRATED_ENERGY, "uuid")
        self._power_max_w = self._by(m.RUN_POWER_MAX, "uuid")

    def _add(self, row: SeriesRow) -> None:
        metric = row.metric
        self._rows[metric.name].append(row)
        if "phase" in metric.labels:
            phase = row.labels["phase"]
            self._of_phase[metric.name, phase].append(row)
            if metric in (m.RUN_PHASE_START, m.RUN_PHASE_SECONDS):
                self._phases[phase] = None
        elif metric is m.RUN_ATTRIBUTED_ENERGY:
            self._shares_j[_device_key(row)][row.labels["policy"]] = row.value
        elif "device" in metric.labels and "run_id" in metric.labels:
            key = _device_key(row)
            self._of_device[key][metric.name] = row.value
            if metric in (m.RUN_ENERGY, m.RUN_COVERED_RATIO):
                self._devices[key] = None

    def run(self, node: str) -> Run:
        starts = self._rows[m.RUN_START.name]
        if not starts:
            raise RunFormatError(f"{m.RUN_START.name}: no series of the run")
        started_at = starts[-1].value
        ended_at = self._only(m.RUN_END)
        duration_s = self._only(m.RUN_DURATION)
        if duration_s is None:
            duration_s = 0.0 if ended_at is None else ended_at - started_at
        info = {
            name: text for row in self._rows[m.RUN_INFO.name] for name, text in row.labels.items()
        }
        return Run(
            run_id=starts[-1].labels["run_id"],
            workload=info.get("workload", ""),
            state="running" if ended_at is None else "ended",
            started_at=started_at,
            duration_s=duration_s,
            outcome=cast("Outcome | None", self._text(m.RUN_OUTCOME, "outcome")),
            ended_at=ended_at,
            labels={
                name.removeprefix(_LABEL): text
                for name, text in info.items()
                if name.startswith(_LABEL)
            },
            gpus=self._gpus(),
            devices=tuple(
                self._device(key, node, duration_s)
                for key in self._all_devices(is_ended=ended_at is not None)
            ),
            phases=tuple(self._phase(name, started_at) for name in self._phases),
            work=self._by(m.RUN_WORK, "unit"),
            work_unit=self._text(m.RUN_WORK_UNIT, "unit"),
            work_reported_at=self._only(m.RUN_WORK_TIMESTAMP),
            results=self._by(m.RUN_RESULT, "name"),
            emissions=tuple(self._emissions(row) for row in self._rows[m.RUN_EMISSIONS.name]),
            power_max_w=self._power_max_w,
        )

    def _emissions(self, row: SeriesRow) -> Emissions:
        component = row.labels["component"]
        basis = row.labels["basis"]
        ratios = [
            ratio.value
            for ratio in self._rows[m.RUN_EMISSIONS_COVERED_RATIO.name]
            if (ratio.labels["component"], ratio.labels["basis"]) == (component, basis)
        ]
        covered_ratio = ratios[-1] if ratios else 1.0
        return Emissions(component, basis, row.labels["quality"], row.value, covered_ratio)

    def _all_devices(self, *, is_ended: bool) -> Iterator[_DeviceKey]:
        """Yield the devices with series, and the other GPUs of an ended run: their energy is
        unknown.
        """
        yield from self._devices
        for row in self._rows[m.RUN_GPU_INFO.name] if is_ended else ():
            key = _DeviceKey("gpu", row.labels["uuid"])
            if key not in self._devices:
                yield key

    def _gpus(self) -> tuple[RunGpu, ...]:
        gpus = {
            row.labels["uuid"]: self._gpu(row.labels["uuid"], row.labels["gpu"])
            for row in self._rows[m.RUN_GPU_INFO.name]
        }
        return tuple(gpus.values())

    def _gpu(self, uuid: str, index: str) -> RunGpu:
        info = self._infos.get(uuid, {})
        return RunGpu(index, uuid, info.get("name", ""), info.get("architecture", ""))

    def _device(self, key: _DeviceKey, node: str, duration_s: float) -> RunDevice:
        energy_j = self._energy(key)
        before_use_j = self._of_device[key].get(m.RUN_ENERGY_BEFORE_USE.name, 0.0)
        shares_j = self._shares_j[key]
        attributed_j = None
        if SHARE_POLICY in shares_j and energy_j.value is not None:
            share_j = shares_j[SHARE_POLICY] + before_use_j
            is_divided = is_shared(
                energy_j.value,
                share_j,
                mean_power_w=energy_j.value / duration_s if duration_s > 0 else 0.0,
                max_power_w=self._power_max_w.get(key.device_id, 0.0),
                half_j=energy_j.half_width,
            )
            attributed_j = share_j if is_divided else None
        is_gpu = key.component == "gpu"
        return RunDevice(
            component=key.component,
            device_id=key.device_id,
            energy_j=energy_j,
            attributed_j=attributed_j,
            before_use_j=before_use_j,
            integrated_j=self._integrated_j.get(key.device_id) if is_gpu else None,
            node=node,
            shares_j=shares_j,
        )

    def _energy(self, key: _DeviceKey) -> Figure:
        values = self._of_device[key]
        value = values.get(m.RUN_ENERGY.name)
        if value is None:
            return unknown(_NO_SERIES)
        bias = None
        if key.component == "gpu":
            bias = sensor_limits_j(self._gpu(key.device_id, ""), value)
        return Figure(
            value,
            values.get(m.RUN_ENERGY_UNCERTAINTY.name),
            bias=bias,
            covered_ratio=values.get(m.RUN_COVERED_RATIO.name, 1.0),
        )

    def _phase(self, name: str, run_started_at: float) -> RunPhase:
        starts = [row.value for row in self._of_phase[m.RUN_PHASE_START.name, name]]
        seconds = [row.value for row in self._of_phase[m.RUN_PHASE_SECONDS.name, name]]
        halves_j = {
            row.labels["component"]: row.value
            for row in self._of_phase[m.RUN_PHASE_ENERGY_UNCERTAINTY.name, name]
        }
        return RunPhase(
            name=name,
            started_at=min(starts, default=run_started_at),
            duration_s=seconds[-1] if seconds else 0.0,
            energies_j={
                row.labels["component"]: Figure(row.value, halves_j.get(row.labels["component"]))
                for row in self._of_phase[m.RUN_PHASE_ENERGY.name, name]
            },
            work={
                row.labels["unit"]: row.value for row in self._of_phase[m.RUN_PHASE_WORK.name, name]
            },
            last_started_at=starts[-1] if starts else None,
        )

    def _by(self, metric: Metric, label: str) -> dict[str, float]:
        return {row.labels[label]: row.value for row in self._rows[metric.name]}

    def _only(self, metric: Metric) -> float | None:
        rows = self._rows[metric.name]
        return rows[-1].value if rows else None

    def _text(self, metric: Metric, label: str) -> str | None:
        rows = self._rows[metric.name]
        return rows[-1].labels[label] if rows else None


def _device_key(row: SeriesRow) -> _DeviceKey:
    component = row.labels["component"]
    if component not in COMPONENTS:
        raise RunFormatError(f"{row.metric.name}: component {component!r} is not known")
    return _DeviceKey(component, row.labels["device"])

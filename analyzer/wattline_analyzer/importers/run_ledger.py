"""Ledger series of an imported run, as an exporter would show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline_analyzer.core.run_report import WALL_ENERGY, WALL_RATIO
from wattline_analyzer.importers.assemble import ImportedRun
from wattline_analyzer.importers.content import LONGEST_LABEL
from wattline_analyzer.importers.run_series import run_phase_rows, run_rows

LedgerRow = tuple[Metric, Mapping[str, str], float]


def ledger_rows(run: ImportedRun, about: Mapping[str, str]) -> Iterator[LedgerRow]:
    """Yield metric, labels and value; `about` are the run's labels."""
    yield from _device_rows(run)
    yield from _run_rows(run, about)
    yield from _energy_rows(run)
    yield from _result_rows(run)


def _device_rows(run: ImportedRun) -> Iterator[LedgerRow]:
    methods = {(energy.component, energy.device): energy.method for energy in run.energies}
    for gpu in run.gpus:
        where = {"gpu": gpu.index, "uuid": gpu.uuid}
        info = dict.fromkeys(("name", "architecture", "pci_bus_id", "driver_version"), "")
        yield m.GPU_INFO, where | info | dict(gpu.info), 1.0
        yield m.GPU_ENERGY_METHOD, where | {"method": methods["gpu", gpu.uuid]}, 1.0
    for (component, device), method in methods.items():
        if component == "cpu":
            named = "rapl" if method in ("counter", "integral") else method
            yield m.CPU_ENERGY_METHOD, {"package": device, "method": named}, 1.0


def _run_rows(run: ImportedRun, about: Mapping[str, str]) -> Iterator[LedgerRow]:
    own, file_run = {"run_id": run.run_id}, run.file_run
    labels = {f"label_{name}": text for name, text in about.items()}
    yield m.RUN_INFO, {**own, "workload": file_run.workload[:LONGEST_LABEL], **labels}, 1.0
    yield m.RUN_START, own, file_run.start_s
    yield m.RUN_END, own, file_run.end_s
    yield (
        m.RUN_DURATION,
        own,
        file_run.end_s - file_run.start_s if file_run.duration_s is None else file_run.duration_s,
    )
    if file_run.outcome:
        yield m.RUN_OUTCOME, {**own, "outcome": file_run.outcome}, 1.0
    for gpu in run.gpus:
        yield m.RUN_GPU_INFO, {**own, "gpu": gpu.index, "uuid": gpu.uuid}, 1.0


def _energy_rows(run: ImportedRun) -> Iterator[LedgerRow]:
    own, indices = {"run_id": run.run_id}, {gpu.uuid: gpu.index for gpu in run.gpus}
    for energy in run.energies:
        device = {**own, "component": energy.component, "device": energy.device}
        yield m.RUN_ENERGY, device, energy.energy_j
        if energy.half_j is not None:
            yield m.RUN_ENERGY_UNCERTAINTY, device, energy.half_j
        if energy.covered_ratio is not None:
            yield m.RUN_COVERED_RATIO, device, energy.covered_ratio
        if energy.max_w is not None and energy.component == "gpu":
            yield (
                m.RUN_POWER_MAX,
                {**own, "gpu": indices[energy.device], "uuid": energy.device},
                energy.max_w,
            )


def _result_rows(run: ImportedRun) -> Iterator[LedgerRow]:
    own = {"run_id": run.run_id}
    for unit, amount in run.file_run.work.items():
        yield m.RUN_WORK, {**own, "unit": unit}, amount
    results = dict(run.file_run.results)
    if run.wall is not None:
        results |= {WALL_ENERGY: run.wall.energy_j, WALL_RATIO: run.wall.covered_ratio or 0.0}
    for name, value in results.items():
        yield m.RUN_RESULT, {**own, "name": name}, value
    record = run.file_run.record
    if record is not None:
        yield from run_rows(run.run_id, record)
        if record.devices:  # else a power log may have the energies of the phases
            yield from run_phase_rows(run.run_id, record)
            return
    seconds: dict[str, float] = {}
    for phase in run.file_run.phases:
        seconds[phase.name] = seconds.get(phase.name, 0.0) + phase.end_s - phase.start_s
        for unit, amount in phase.work.items():
            yield m.RUN_PHASE_WORK, {**own, "phase": phase.name, "unit": unit}, amount
    for name, duration_s in seconds.items():
        yield m.RUN_PHASE_SECONDS, {**own, "phase": name}, duration_s
        for component, joules in run.phase_energies.get(name, {}).items():
            yield m.RUN_PHASE_ENERGY, {**own, "phase": name, "component": component}, joules

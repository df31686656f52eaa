"""Imported runs as the runs of an exporter, and their series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

from wattline.contract import metrics as m
from wattline.contract.api import MAX_LABEL_VALUE, RunGpu
from wattline.contract.run import Component, Run, RunDevice, RunPhase
from wattline.contract.run_series import SeriesRow, to_rows
from wattline.figures import Figure
from wattline_analyzer.core.run_report import WALL_ENERGY, WALL_RATIO
from wattline_analyzer.importers.assemble import ImportedRun
from wattline_analyzer.importers.energies import RunDeviceEnergy

SHOWN_AFTER_S = 2.0
"""Time between a run's end and the timestamp of its figures: an exporter's figures are final then.
"""


def rows_of_import(imported: ImportedRun, about: Mapping[str, str]) -> Iterator[SeriesRow]:
    """Yield the series of a run and of its devices; `about` are the run's labels.

    A device of unknown coverage has no covered ratio.
    """
    yield from _device_rows(imported)
    run = run_of_import(imported, about)
    uncovered = {
        (energy.component, energy.device)
        for energy in imported.energies
        if energy.covered_ratio is None and not _recorded(imported, energy)
    }
    for row in to_rows(run):
        is_ratio = row.metric is m.RUN_COVERED_RATIO
        if not is_ratio or (row.labels["component"], row.labels["device"]) not in uncovered:
            yield row


def run_of_import(imported: ImportedRun, about: Mapping[str, str]) -> Run:
    """Return the run of imported files, with the figures of the exporter's run where the files have
    it.
    """
    file_run = imported.file_run
    record = file_run.record
    duration_s = file_run.duration_s
    results = dict(file_run.results)
    if imported.wall is not None:
        results[WALL_ENERGY] = imported.wall.energy_j
        results[WALL_RATIO] = imported.wall.covered_ratio or 0.0
    powers_w = dict(record.power_max_w) if record else {}
    powers_w |= {
        energy.device: energy.max_w
        for energy in imported.energies
        if energy.component == "gpu" and energy.max_w is not None
    }
    return Run(
        run_id=imported.run_id,
        workload=file_run.workload[:MAX_LABEL_VALUE],
        state="ended",
        started_at=file_run.start_s,
        duration_s=file_run.end_s - file_run.start_s if duration_s is None else duration_s,
        outcome=file_run.outcome,
        ended_at=file_run.end_s,
        labels=about,
        gpus=tuple(_gpu(gpu.index, gpu.uuid, gpu.info) for gpu in imported.gpus),
        devices=tuple(_device(imported, energy) for energy in imported.energies),
        phases=tuple(_phases(imported)),
        work=file_run.work,
        work_unit=record.work_unit if record else None,
        work_reported_at=record.work_reported_at if record else None,
        results=results,
        emissions=record.emissions if record else (),
        power_max_w=powers_w,
    )


def _gpu(index: str, uuid: str, info: Mapping[str, str]) -> RunGpu:
    return RunGpu(index, uuid, info.get("name", ""), info.get("architecture", ""))


def _device(imported: ImportedRun, energy: RunDeviceEnergy) -> RunDevice:
    recorded = _recorded(imported, energy)
    if recorded is not None:
        return recorded
    covered_ratio = 1.0 if energy.covered_ratio is None else energy.covered_ratio
    figure = Figure(energy.energy_j, energy.half_j, covered_ratio=covered_ratio)
    return RunDevice(cast("Component", energy.component), energy.device, figure)


def _recorded(imported: ImportedRun, energy: RunDeviceEnergy) -> RunDevice | None:
    """Return the device of the exporter's run, None where the files do not have it."""
    record = imported.file_run.record
    devices = record.devices if record else ()
    key = energy.component, energy.device
    return next((one for one in devices if (one.component, one.device_id) == key), None)


def _phases(imported: ImportedRun) -> Iterator[RunPhase]:
    """Yield the phases without their last starts: the history has each start at its own time.

    Without the energies of an exporter, a power log may have those of the phases.
    """
    record = imported.file_run.record
    if record is not None and record.devices:
        for recorded in record.phases:
            yield replace(recorded, last_started_at=None)
        return
    by_name: dict[str, RunPhase] = {}
    for phase in imported.file_run.phases:
        known = by_name.get(phase.name) or RunPhase(
            name=phase.name,
            started_at=phase.start_s,
            duration_s=0.0,
            energies_j={
                component: Figure(joules)
                for component, joules in imported.phase_energies.get(phase.name, {}).items()
            },
        )
        by_name[phase.name] = replace(
            known,
            duration_s=known.duration_s + phase.end_s - phase.start_s,
            work={**known.work, **phase.work},
        )
    yield from by_name.values()


def _device_rows(imported: ImportedRun) -> Iterator[SeriesRow]:
    methods = {(energy.component, energy.device): energy.method for energy in imported.energies}
    for gpu in imported.gpus:
        labels = {"gpu": gpu.index, "uuid": gpu.uuid}
        info = dict.fromkeys(("name", "architecture", "pci_bus_id", "driver_version"), "")
        yield SeriesRow(m.GPU_INFO, labels | info | dict(gpu.info), 1.0)
        method = {"method": methods["gpu", gpu.uuid]}
        yield SeriesRow(m.GPU_ENERGY_METHOD, labels | method, 1.0)
    for (component, device), method_name in methods.items():
        if component == "cpu":
            named = "rapl" if method_name in ("counter", "integral") else method_name
            yield SeriesRow(m.CPU_ENERGY_METHOD, {"package": device, "method": named}, 1.0)

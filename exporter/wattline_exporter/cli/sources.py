"""Sources of the daemon and of `exporter check`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from wattline.contract.metrics import GPU_MIG_INFO
from wattline_exporter import simulation
from wattline_exporter.config.settings import DEFAULT_GROUP, Settings
from wattline_exporter.config.values import UsageError
from wattline_exporter.polling.hub import PolledSource
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.sensors.nvml.supervisor import WorkerSupervisor
from wattline_exporter.sensors.processes.table import (
    GROUPS,
    GpuProcessTable,
    ProcessTable,
    group_of_pid,
)
from wattline_exporter.sensors.readings import GpuProcess, Source, boottime
from wattline_exporter.sensors.registry import ChosenSensor, SensorContext

PROCESSES_EVERY_S = 5.0
KUBELET_EVERY_S = 10.0


def worker_arguments(simulated: Path | None) -> list[str]:
    """Return the module of the NVML worker and its arguments."""
    return ["wattline_exporter.sensors.nvml.worker", *([str(simulated)] if simulated else [])]


def simulated_gpus(settings: Settings) -> tuple[simulation.SimulatedGpuState, ...]:
    """Return the GPUs of --simulate, none without it. Raises UsageError."""
    if settings.simulate is None:
        return ()
    try:
        return simulation.make_gpus(*simulation.parse_spec(settings.simulate))
    except ValueError as error:
        raise UsageError(f"--simulate: {error}") from error


class SimulationFile(NamedTuple):
    """State file of simulated GPUs; `is_new` if their counters start from 0."""

    path: Path
    is_new: bool


def simulated_file(settings: Settings) -> SimulationFile | None:
    """Return the state file of the simulated GPUs, created if it is missing or has others. Raises
    UsageError.
    """
    gpus = simulated_gpus(settings)
    if not gpus:
        return None
    path = settings.state_path / simulation.FILE_NAME
    if _is_current(path, gpus):
        return SimulationFile(path, is_new=False)
    settings.state_path.mkdir(parents=True, exist_ok=True)
    simulation.create(path, gpus, boottime())
    return SimulationFile(path, is_new=True)


def _is_current(path: Path, gpus: tuple[simulation.SimulatedGpuState, ...]) -> bool:
    """Return True if the file has these GPUs and is of this boot, so that their energy
    continues.
    """
    try:
        with simulation.Simulation.open(path) as existing:
            same = [g.product for g in existing.gpus] == [g.product for g in gpus]
            return same and existing.state.driver_loaded_at_s <= boottime()
    except simulation.StateFileError:
        return False


def process_table(settings: Settings) -> ProcessTable:
    """Return the source of the processes, grouped as the settings choose. Raises UsageError."""
    by = settings.process_group or DEFAULT_GROUP
    if by not in GROUPS:
        raise UsageError(f"--collector.processes.group: expected {' or '.join(GROUPS)}, not {by!r}")
    return ProcessTable(GROUPS[by], pids=settings.process_pids)


def gpu_indices(live: LiveState) -> dict[str, str]:
    """Return the index of each GPU by UUID; a MIG instance has its parent's. For threads, hence the
    copies.
    """
    gpus = live.gpus
    indices = {uuid: gpu.info.index for uuid, gpu in list(gpus.items())}
    for gpu in list(gpus.values()):
        indices |= {
            labels[1]: gpu.info.index
            for name, labels in list(gpu.readings)
            if name == GPU_MIG_INFO.name
        }
    return indices


def _gpu_processes(live: LiveState) -> dict[str, tuple[GpuProcess, ...]]:
    return {uuid: gpu.processes for uuid, gpu in list(live.gpus.items()) if gpu.up}


def _process_roles(worker: WorkerSupervisor | None) -> dict[str, int]:
    """Return the pids of the exporter's own processes, by role."""
    pid = worker.pid if worker else None
    return {"exporter": os.getpid(), **({"nvml_worker": pid} if pid else {})}


def polled_sources(
    settings: Settings,
    sensors: Sequence[ChosenSensor],
    live: LiveState,
    worker: WorkerSupervisor | None = None,
    pods: Sequence[Source] = (),
) -> list[PolledSource]:
    """Return the sources that the settings ask for, with those of pods. Raises UsageError and
    OperationError.
    """
    sources: list[PolledSource] = []
    context = SensorContext(sysfs=settings.sysfs, own_pids=partial(_process_roles, worker))
    for sensor in sensors:
        period_s = sensor.kind.period_s
        has_run_energy = sensor.kind.has_run_energy
        sources += [
            PolledSource(source, period_s, has_run_energy) for source in sensor.sources(context)
        ]
    indices = partial(gpu_indices, live)
    if settings.processes:
        sources.append(PolledSource(process_table(settings), PROCESSES_EVERY_S))
        group_of = partial(
            group_of_pid,
            by=GROUPS[settings.process_group or DEFAULT_GROUP],
            pids=settings.process_pids,
        )
        table = GpuProcessTable(partial(_gpu_processes, live), indices, group_of)
        sources.append(PolledSource(table, PROCESSES_EVERY_S))
    return [*sources, *(PolledSource(source, KUBELET_EVERY_S) for source in pods)]

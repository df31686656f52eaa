"""The sources that are polled, from the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from exporter.contract.installation import install
from exporter.contract.metrics import GPU_MIG_INFO
from exporter.latest_values import GpuState
from exporter.model import GpuProcess, Source
from exporter.settings import DEFAULT_GROUP, OperationError, Settings, UsageError
from exporter.sources.board import sensors
from exporter.sources.cpu_energy import model as cpu_model
from exporter.sources.cpu_energy.choose import CpuSource
from exporter.sources.cpu_energy.model import CpuModelSource, PowerModel
from exporter.sources.cpu_energy.perf import PerfSource
from exporter.sources.cpu_energy.powercap_source import RaplSource
from exporter.sources.host import HostSource
from exporter.sources.hwmon import HwmonSource, SocketSource
from exporter.sources.processes.gpu_table import GpuProcessTable
from exporter.sources.processes.table import GROUPS, ProcessTable, group_of_pid

RAPL_EVERY_S = 1.0
HWMON_EVERY_S = 1.0
HOST_EVERY_S = 5.0
PROCESSES_EVERY_S = 5.0
KUBELET_EVERY_S = 10.0


def cpu_source(settings: Settings) -> CpuSource:
    """Every way to the CPU's energy, the best first. Raises UsageError."""
    ways: list[Source] = [RaplSource(settings.sysfs), PerfSource(settings.sysfs), SocketSource(settings.sysfs)]
    model = power_model(settings)
    return CpuSource([*ways, CpuModelSource(model)] if model else ways)


def power_model(settings: Settings) -> PowerModel | None:
    """Raises UsageError."""
    if settings.cpu_power_model is None:
        return None
    try:
        return cpu_model.parse(settings.cpu_power_model)
    except ValueError as error:
        raise UsageError(f"--cpu.power-model: {error}") from error


def process_table(settings: Settings) -> ProcessTable:
    """Raises UsageError."""
    by = settings.process_group or DEFAULT_GROUP
    if by not in GROUPS:
        raise UsageError(f"--collector.processes.group: expected {' or '.join(GROUPS)}, not {by!r}")
    return ProcessTable(GROUPS[by], pids=settings.process_pids)


def kubelet_source(socket: Path, gpus: Callable[[], Mapping[str, str]]) -> Source:
    """Raises OperationError."""
    try:
        from exporter.sources.kubelet import KubeletSource
    except ModuleNotFoundError as error:
        raise OperationError(
            f"--kubelet.pod-resources: {error.name} is not installed; {install('kubernetes')}"
        ) from error
    return KubeletSource(socket, gpus)


def indices(gpus: Mapping[str, GpuState]) -> dict[str, str]:
    """The index of each GPU by UUID; a MIG instance has its parent's. Called in threads, hence the copies."""
    found = {uuid: gpu.info.index for uuid, gpu in list(gpus.items())}
    for gpu in list(gpus.values()):
        found |= {labels[1]: gpu.info.index for name, labels in list(gpu.readings) if name == GPU_MIG_INFO.name}
    return found


def processes_on(gpus: Callable[[], Mapping[str, GpuState]]) -> dict[str, tuple[GpuProcess, ...]]:
    return {uuid: gpu.processes for uuid, gpu in list(gpus().items()) if gpu.up}


def polled(
    settings: Settings, roles: dict[str, int], gpus: Callable[[], Mapping[str, GpuState]] = dict
) -> list[tuple[Source, float]]:
    def of_uuids() -> dict[str, str]:
        return indices(gpus())

    sources: list[tuple[Source, float]] = []
    if settings.rapl:
        sources.append((cpu_source(settings), RAPL_EVERY_S))
    if settings.hwmon and sensors(settings.sysfs / "class/hwmon"):
        sources.append((HwmonSource(settings.sysfs), HWMON_EVERY_S))
    if settings.host:
        sources.append((HostSource(lambda: roles), HOST_EVERY_S))
    if settings.processes:
        sources.append((process_table(settings), PROCESSES_EVERY_S))
        on_gpus = partial(processes_on, gpus)
        group_of = partial(group_of_pid, by=GROUPS[settings.process_group or DEFAULT_GROUP], pids=settings.process_pids)
        sources.append((GpuProcessTable(on_gpus, of_uuids, group_of), PROCESSES_EVERY_S))
    if settings.kubelet_socket:
        sources.append((kubelet_source(settings.kubelet_socket, of_uuids), KUBELET_EVERY_S))
    return sources

"""Composition root: from settings to a running daemon."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from aiohttp import web

from exporter import simulation
from exporter.attribution.policy import Attribution
from exporter.contract.installation import install
from exporter.contract.metrics import GPU_MIG_INFO
from exporter.daemon import Daemon
from exporter.exposition.collector import Collector
from exporter.exposition.render import MetricsRenderer
from exporter.logs import start_logging
from exporter.model import GpuProcess, Service, Source, boottime
from exporter.nvml_worker.supervisor import WorkerSupervisor
from exporter.push.client import PushClient
from exporter.push.config import PushTarget, push_target
from exporter.runs.attribution import RunAttribution
from exporter.runs.ledger import Ledger
from exporter.runs.service import RunService
from exporter.sensors.carbon import CarbonService
from exporter.sensors.hub import PolledSource, SensorHub
from exporter.sensors.live_state import LiveState
from exporter.sensors.meters import SavedTotals
from exporter.settings import DEFAULT_GROUP, LogFormat, LogLevel, OperationError, Settings, UsageError
from exporter.sources.carbon.cache import CarbonCache
from exporter.sources.carbon.config import carbon_feeds, carbon_providers
from exporter.sources.carbon.feed import CarbonFeeds
from exporter.sources.carbon.provider import CarbonProvider
from exporter.sources.cpu_energy import model as cpu_model
from exporter.sources.cpu_energy.choose import CpuSource
from exporter.sources.cpu_energy.model import CpuModelSource, PowerModel
from exporter.sources.cpu_energy.perf import PerfSource
from exporter.sources.cpu_energy.powercap import RaplSource
from exporter.sources.host import HostSource
from exporter.sources.hwmon import GraceSocketSource, HwmonSource, find_power_sensors
from exporter.sources.processes.table import GROUPS, GpuProcessTable, ProcessTable, group_of_pid
from exporter.storage.disk_health import DiskHealth
from exporter.storage.history import History
from exporter.storage.history_writer import HistoryWriter
from exporter.storage.state_file import StateError, StateFile, read_boot_id
from exporter.storage.writer import StateWriter, StorageFiles
from exporter.web.routes import Endpoints, MetricsEndpoint, web_application
from exporter.web.server import WebServer

RAPL_EVERY_S = 1.0
HWMON_EVERY_S = 1.0
HOST_EVERY_S = 5.0
PROCESSES_EVERY_S = 5.0
KUBELET_EVERY_S = 10.0

log = logging.getLogger(__name__)


async def serve(settings: Settings, level: LogLevel, log_format: LogFormat) -> None:
    """Run the daemon until SIGTERM or SIGINT, then end the process. Raises UsageError and OperationError."""
    providers = carbon_providers(settings)
    power_model(settings)  # a usage error comes before any file is made
    start_logging(level, log_format)
    target = push_target(settings)
    server = WebServer(settings)
    stopping = asyncio.Event()
    daemon = make_daemon(settings, providers, target, server, stopping)
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stopping.set)
    await daemon.run()
    log.info("stopped")
    _exit()


def make_daemon(
    settings: Settings,
    providers: Sequence[CarbonProvider],
    target: PushTarget | None,
    server: WebServer,
    stopping: asyncio.Event,
) -> Daemon:
    """Put the services together. Raises UsageError and OperationError."""
    file = StateFile(settings.state_path)
    simulated = simulated_file(settings)
    carbon = carbon_feeds(providers, CarbonCache(settings.state_path) if providers else None)
    health = DiskHealth(file.folder)
    history = HistoryWriter(History(settings.state_path), health) if settings.history else None
    live, ledger = restore(file, carbon)
    live.simulation = str(simulated) if simulated else None
    worker = WorkerSupervisor(worker_arguments(simulated), live.take_worker) if settings.nvml else None
    hub = SensorHub(live, polled_sources(settings, live, worker), worker)
    carbon_service = CarbonService(carbon, live)
    push: list[PushClient] = []
    if history and target:
        history.history.follow(target.url)
        push.append(PushClient(target, history.run))
    collector = Collector(version("wattline"), live, ledger, [health, *push, carbon_service])
    storage = StateWriter(file, ledger, health, history, collector.second)
    runs = RunService(ledger, hub, storage, stopping=stopping, exit_when_idle=settings.exit_when_idle)
    endpoints = Endpoints(
        runs=runs,
        sensors=hub,
        metrics=MetricsEndpoint(MetricsRenderer(collector.series), storage, stopping),
        history=history.history.path if history else None,
        version=version("wattline"),
    )
    http = HttpService(server, web_application(endpoints, server.access), settings.state_path)
    return Daemon([StorageFiles(storage, history), *push, storage, hub, carbon_service, runs, http], stopping)


def restore(file: StateFile, carbon: CarbonFeeds) -> tuple[LiveState, Ledger]:
    """Return sensors and ledger as a previous exporter left them. Raises StateError."""
    saved = file.load()
    same_boot = saved.boot_id == read_boot_id()
    saved_s = saved.saved_s if same_boot else None
    live = LiveState(SavedTotals(saved.totals, saved.emissions, saved.counters, saved_s), slots_at=carbon.slots_at)
    energy_j = {device: total.energy_j for device, total in saved.totals.items()}
    energies = Attribution(saved.attributed, energy_j, saved.idle_w, saved_s)
    ledger = Ledger(live, RunAttribution(live, energies, saved_s or boottime()), file)
    try:
        ledger.restore(saved, same_boot=same_boot)
    except ValueError as error:
        raise StateError(
            f"cannot read the runs in {file.folder}: {str(error).splitlines()[0]}; move it away to start afresh"
        ) from error
    return live, ledger


class HttpService(Service):
    """The web server with its application."""

    def __init__(self, server: WebServer, served: web.Application, state_path: Path) -> None:
        self._server = server
        self._served = served
        self._state_path = state_path

    async def start(self) -> None:
        address = await self._server.start(self._served)
        log.info("serving on %s, state in %s", address, self._state_path)

    async def stop(self) -> None:
        await self._server.close()


def _exit() -> NoReturn:
    """End the process at once, without waiting for threads in the resolver, a hung read or a long query."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# -- sources


def worker_arguments(simulated: Path | None) -> list[str]:
    """Return the module of the NVML worker and its arguments."""
    return ["exporter.nvml_worker.main", *([str(simulated)] if simulated else [])]


def simulated_file(settings: Settings) -> Path | None:
    """Return the state file of the simulated GPUs, created if missing. Raises UsageError."""
    if settings.simulate is None:
        return None
    try:
        gpus = simulation.make_gpus(*simulation.parse_spec(settings.simulate))
    except ValueError as error:
        raise UsageError(f"--simulate: {error}") from error
    path = settings.state_path / simulation.FILE_NAME
    if _is_current(path, gpus):
        return path
    settings.state_path.mkdir(parents=True, exist_ok=True)
    simulation.create(path, gpus, boottime())
    return path


def _is_current(path: Path, gpus: tuple[simulation.SimulatedGpuState, ...]) -> bool:
    """Return True if the file has these GPUs and is of this boot, so that their energy continues."""
    try:
        with simulation.Simulation.open(path) as found:
            same = [g.product for g in found.gpus] == [g.product for g in gpus]
            return same and found.state.driver_loaded_at_s <= boottime()
    except simulation.StateFileError:
        return False


def cpu_source(settings: Settings) -> CpuSource:
    """Return the source of CPU energy, which tries all interfaces in order of preference. Raises UsageError."""
    ways: list[Source] = [RaplSource(settings.sysfs), PerfSource(settings.sysfs), GraceSocketSource(settings.sysfs)]
    model = power_model(settings)
    return CpuSource([*ways, CpuModelSource(model)] if model else ways)


def power_model(settings: Settings) -> PowerModel | None:
    """Raises UsageError."""
    if settings.cpu_power_model is None:
        return None
    try:
        return cpu_model.parse_power_model(settings.cpu_power_model)
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


def _gpu_indices(live: LiveState) -> dict[str, str]:
    """Return the index of each GPU by UUID; a MIG instance has its parent's. For threads, hence the copies."""
    gpus = live.gpus
    found = {uuid: gpu.info.index for uuid, gpu in list(gpus.items())}
    for gpu in list(gpus.values()):
        found |= {labels[1]: gpu.info.index for name, labels in list(gpu.readings) if name == GPU_MIG_INFO.name}
    return found


def _gpu_processes(live: LiveState) -> dict[str, tuple[GpuProcess, ...]]:
    return {uuid: gpu.processes for uuid, gpu in list(live.gpus.items()) if gpu.up}


def _process_roles(worker: WorkerSupervisor | None) -> dict[str, int]:
    """Return the pids of the exporter's own processes, by role."""
    pid = worker.pid if worker else None
    return {"exporter": os.getpid(), **({"nvml_worker": pid} if pid else {})}


def polled_sources(settings: Settings, live: LiveState, worker: WorkerSupervisor | None = None) -> list[PolledSource]:
    """Return the sources that the settings ask for. Raises UsageError and OperationError."""
    found: list[PolledSource] = []
    if settings.rapl:
        found.append(PolledSource(cpu_source(settings), RAPL_EVERY_S))
    if settings.hwmon and find_power_sensors(settings.sysfs / "class/hwmon"):
        found.append(PolledSource(HwmonSource(settings.sysfs), HWMON_EVERY_S))
    if settings.host:
        found.append(PolledSource(HostSource(partial(_process_roles, worker)), HOST_EVERY_S))
    indices = partial(_gpu_indices, live)
    if settings.processes:
        found.append(PolledSource(process_table(settings), PROCESSES_EVERY_S))
        group_of = partial(group_of_pid, by=GROUPS[settings.process_group or DEFAULT_GROUP], pids=settings.process_pids)
        table = GpuProcessTable(partial(_gpu_processes, live), indices, group_of)
        found.append(PolledSource(table, PROCESSES_EVERY_S))
    if settings.kubelet_socket:
        found.append(PolledSource(kubelet_source(settings.kubelet_socket, indices), KUBELET_EVERY_S))
    return found

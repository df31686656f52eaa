"""One life of the exporter in virtual time: the product's services, from its start to its kill."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation.gpus import SimulatedGpu, Worker
from tests.simulation.virtual_time import VirtualLoop, VirtualTime
from wattline_exporter.attribution.cpu_time import CpuUsageReader, NodeCpuUsage, RunCpuUsage
from wattline_exporter.attribution.owner_counters import OwnerCounters
from wattline_exporter.attribution.policy import Attribution
from wattline_exporter.cli.daemon import Daemon
from wattline_exporter.polling.hub import PolledSource, SensorHub
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.polling.meters import SavedTotals
from wattline_exporter.runs.holders import DeviceHolders
from wattline_exporter.runs.ledger import Ledger
from wattline_exporter.runs.limits import RunLimits
from wattline_exporter.runs.run_record import RunRecord
from wattline_exporter.runs.service import RunService
from wattline_exporter.sensors.nvml.supervisor import WorkerSupervisor
from wattline_exporter.sensors.processes.procfs import ProcessKey
from wattline_exporter.sensors.readings import Batch, Device, Poll, Service, SourceError
from wattline_exporter.storage.history import History
from wattline_exporter.storage.state_file import StateFile, read_boot_id
from wattline_exporter.storage.writer import DiskHealth, HistoryWriter, StateWriter, StorageFiles
from wattline_exporter.web.metrics_page import MetricsRenderer, SavedMetrics
from wattline_exporter.web.series import ReadingSource, SeriesCollector

CPU_W, CPU_RANGE_J = 120.0, 65_536.0
CPU = Device("package", "0")


@dataclass
class Disk:
    """Faults of the disk until a time: errors of writes, and their additional duration."""

    until_s: float = 0.0
    error: str = ""
    delay_s: float = 0.0
    history_only: bool = False


@dataclass
class World:
    """Everything outside of the exporter."""

    virtual: VirtualTime
    folder: Path
    gpus: list[SimulatedGpu]
    disk: Disk = field(default_factory=Disk)
    cpu_fails_until_s: float = 0.0
    cpu_range_j: float = CPU_RANGE_J
    """Range of the package's counter, at which it wraps."""
    processes: dict[int, str] = field(default_factory=dict)
    """Run of each living process."""
    lives: int = 0
    limits: RunLimits = field(default_factory=RunLimits)
    final_records: dict[str, RunRecord] = field(default_factory=dict)
    """Records of final runs, of which the exporter keeps the figures only."""

    @property
    def rng(self) -> random.Random:
        return self.virtual.rng

    def find_process(self, pid: int) -> ProcessKey | None:
        return ProcessKey(pid, 1.0) if pid in self.processes else None


class _CpuCounter:
    """RAPL counter of one package that wraps, at constant power."""

    name = "rapl"

    def __init__(self, world: World) -> None:
        self._world = world

    def read(self) -> Batch:
        world, now_s = self._world, self._world.virtual.s
        if now_s < world.cpu_fails_until_s:
            raise SourceError("cannot read energy_uj: permission denied", "check its mode")
        counter_j = CPU_W * now_s % world.cpu_range_j
        return Batch(
            (), (Poll(CPU, now_s, now_s, counter_j=counter_j, counter_range_j=world.cpu_range_j),)
        )


class _CpuUsage(CpuUsageReader):
    """Processes of the simulation, each of which uses one CPU."""

    def __init__(self, world: World) -> None:
        self._world = world

    def read(self, runs):
        world, now_s = self._world, self._world.virtual.s
        used = {}
        for run_id, of_run in runs.items():
            pids = frozenset(p.pid for p in of_run.processes if p.pid in world.processes)
            used[run_id] = RunCpuUsage(now_s * max(1, len(of_run.processes)), pids, pids)
        return NodeCpuUsage(now_s, now_s * 4, used)


class RememberingLedger(Ledger):
    """Ledger that keeps the records of final runs in `final_records`."""

    final_records: dict[str, RunRecord]

    def _make_final(self, run: RunRecord) -> None:
        self.final_records[run.run_id] = run
        super()._make_final(run)


class Life:
    """An exporter from its start on. `failure` is the error of a bug that ended it."""

    discovers = False
    worker_type = Worker

    def __init__(self, world: World) -> None:
        self.world = world
        self.loop = VirtualLoop(world.virtual)
        self.started_s = world.virtual.s
        self.worker: Worker | None = None
        self.failure: BaseException | None = None
        self.loop.executor_delay_s, self.loop.wrap_call = self._delay_s, self._wrap
        self.loop.make_process = self._start_worker
        self.loop.set_exception_handler(self._note_error)
        self._assemble()
        self.is_stopped = False
        self.main = self.loop.create_task(self._run())

    def _assemble(self) -> None:
        world = self.world
        self.file = StateFile(world.folder)
        saved = self.file.load()
        same_boot = saved.boot_id == read_boot_id()
        saved_s = saved.saved_s if same_boot else None
        self.live = live = LiveState(
            SavedTotals(saved.totals, saved.emissions, saved.counters, saved_s, saved.polls),
            slots_at=lambda _at: (),
        )
        energy_j = {device: total.energy_j for device, total in saved.totals.items()}
        self.energies = Attribution(
            saved.attributed,
            energy_j,
            saved.idle_w,
            saved_s,
            owners=OwnerCounters(saved.owners, saved.emissions),
        )
        holders = DeviceHolders(
            live, self.energies, saved_s or world.virtual.s, self.make_cpu_usage()
        )
        self.ledger = ledger = RememberingLedger(
            live,
            holders,
            self.file,
            is_alive=self.is_alive,
            find=world.find_process,
            limits=world.limits,
        )
        ledger.final_records = world.final_records
        ledger.restore(saved, same_boot=same_boot)
        health = DiskHealth(world.folder)
        history = HistoryWriter(History(world.folder), health)
        self.history = history.history
        worker = WorkerSupervisor(["wattline_exporter.sensors.nvml.worker"], live.take_worker)
        hub = SensorHub(live, [PolledSource(_CpuCounter(world), 1.0, has_run_energy=True)], worker)
        self.with_metrics: list[ReadingSource] = [health]
        self.collector = SeriesCollector("0", live, ledger, self.with_metrics)
        self.storage = StateWriter(self.file, ledger, health, history, self.collector.second)
        self.stopping = asyncio.Event()
        self.runs = RunService(
            ledger, hub, self.storage, stopping=self.stopping, discovers=self.discovers
        )
        self.metrics = SavedMetrics(
            MetricsRenderer(self.collector.series), self.storage, self.stopping
        )
        services: list[Service] = [
            StorageFiles(self.storage, history),
            self.storage,
            hub,
            self.runs,
        ]
        services += self.further_services()
        self._daemon = Daemon(services, self.stopping)

    def is_alive(self, run: RunRecord) -> bool:
        """Return True if a process of the run is alive."""
        return any(p.pid in self.world.processes for p in run.processes)

    def make_cpu_usage(self) -> CpuUsageReader:
        return _CpuUsage(self.world)

    def further_services(self) -> list[Service]:
        return []

    async def _run(self) -> None:
        try:
            await self._daemon.run()
        except Exception as error:  # noqa: BLE001  # reported as a violation
            self.failure = error
        self.is_stopped = True

    def _note_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failure = context.get("exception") or RuntimeError(context["message"])

    # -- injection

    def _start_worker(self, protocol: Any) -> Worker:
        self.worker = self.worker_type(self.world.virtual, self.world.gpus, protocol, self.deliver)
        return self.worker

    def deliver(self, callback: Callable[..., None], *args: Any) -> None:
        if not self.loop.is_dead:
            self.loop.call_soon(callback, *args)

    def _is_affected(self, executor: Executor | None) -> bool:
        disk, name = self.world.disk, getattr(executor, "_thread_name_prefix", "")
        on_disk = name == "history" or (name == "state" and not disk.history_only)
        return on_disk and self.world.virtual.s < disk.until_s

    def _delay_s(self, executor: Executor | None) -> float:
        if not self._is_affected(executor):
            return 0.0
        return self.world.rng.uniform(0.0, self.world.disk.delay_s)

    def _wrap(self, executor: Executor | None, call: Callable[[], Any]) -> Callable[[], Any]:
        """Return a call that fails at any step of its transaction while the disk fails."""
        assert executor is None or isinstance(executor, ThreadPoolExecutor)

        def run() -> Any:
            if not self.world.disk.error or not self._is_affected(executor):
                return call()
            name = executor._thread_name_prefix if executor else ""
            connection = self.file._connection if name == "state" else self.history._connection
            connection.set_progress_handler(lambda: 1, self.world.rng.choice([1, 10, 100, 1_000]))
            try:
                return call()
            except sqlite3.OperationalError as error:
                raise sqlite3.OperationalError(self.world.disk.error) from error
            finally:
                connection.set_progress_handler(None, 0)

        return run

    # -- process

    def stop_until(self, t_s: float) -> None:
        """Stop the process until a time, as by SIGSTOP."""
        self.loop.stopped_until_s = max(self.loop.stopped_until_s, t_s)

    def request(
        self, make: Callable[[], Any], answered: Callable[[Any, BaseException | None], None]
    ) -> None:
        """Call the run service in the exporter's process; `answered` gets the result or the error.

        An exporter that stops closes its server first: it answers no more.
        """

        def done(task: asyncio.Task[Any]) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if not self.stopping.is_set():
                answered(None if error else task.result(), error)

        if not self.stopping.is_set():
            self.loop.call_soon(lambda: self.loop.create_task(make()).add_done_callback(done))

    def kill(self, *, torn: float | None = None) -> None:
        """End the process; the next one finds the files as they are. `torn`: share of the journals
        that is kept.
        """
        world = self.world
        world.lives += 1
        following = world.folder.parent / f"state-{world.lives}"
        following.mkdir()
        for path in world.folder.iterdir():
            if path.suffix == ".sqlite" or path.name.endswith("-wal"):
                shutil.copy(path, following / path.name)
                if torn is not None and path.name.endswith("-wal"):
                    with (following / path.name).open("r+b") as file:
                        file.truncate(int(torn * path.stat().st_size))
        self.loop.kill()
        if self.worker:
            self.worker.end(0)
        for close in (self.history.close, self.file.close):
            close()
        shutil.rmtree(world.folder)
        world.folder = following

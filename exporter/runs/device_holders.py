"""Attribution of the devices' energy to the runs that hold them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping

from exporter.attribution.cpu_usage import CpuUsageReader, NodeCpuUsage, RunProcesses
from exporter.attribution.policy import Attribution, DeviceLoads, cpu_loads, gpu_loads
from exporter.contract.work import SHARE_POLICY
from exporter.model import Device
from exporter.polling.live_state import LiveState
from exporter.runs.record import RunRecord

LINGER_S = 2.0
"""Time for which the driver may still list an ended process. Its energy belongs to its run."""


class DeviceHolders:
    """Division of each device's energy among runs, from scans of their processes and CPU time.

    `since_s` is the instant up to which the holders of the devices are final (CLOCK_BOOTTIME).
    """

    def __init__(
        self, live: LiveState, energies: Attribution, since_s: float, cpu: CpuUsageReader | None = None
    ) -> None:
        self.energies = energies
        self._live = live
        self._since_s = since_s
        self._cpu = cpu or CpuUsageReader()
        self._scanning = asyncio.Lock()
        self._usage: NodeCpuUsage | None = None
        self._cpu_s: Mapping[str, float] = {}
        self._busy_s = 0.0
        self._alive_s: dict[str, float] = {}
        """Time of the last scan that found a process of the run."""
        self._gone_s: dict[str, float] = {}
        """Time from which a run has no process: the first scan without one, at most LINGER_S after `_alive_s`."""
        self._owners: dict[int, tuple[str, float]] = {}
        """Run of each recent process, and the time of the last scan that found the process."""

    async def scan(self, running: Iterable[RunRecord]) -> None:
        """Read the CPU time of the runs that named processes or a cgroup, in a thread."""
        async with self._scanning:  # the reader keeps state; one scan at a time
            await self._scan(running)

    async def _scan(self, running: Iterable[RunRecord]) -> None:
        runs = {run.run_id: RunProcesses(tuple(run.processes), run.cgroup) for run in running if _has_processes(run)}
        if not runs:
            self._usage, self._cpu_s, self._busy_s, self._gone_s = None, {}, 0.0, {}
            return
        before, self._usage = self._usage, await asyncio.to_thread(self._cpu.read, runs)
        self._track(self._usage)
        if before is None:
            return
        self._cpu_s = {
            run_id: now.cpu_s - before.runs[run_id].cpu_s
            for run_id, now in self._usage.runs.items()
            if run_id in before.runs
        }
        self._busy_s = self._usage.busy_s - before.busy_s

    def _track(self, usage: NodeCpuUsage) -> None:
        alive = {run_id: usage.at_s for run_id, used in usage.runs.items() if used.family}
        self._alive_s = {run_id: s for run_id, s in self._alive_s.items() if run_id in usage.runs} | alive
        self._gone_s = {
            run_id: self._gone_s.get(run_id, min(usage.at_s, self._alive_s.get(run_id, -math.inf) + LINGER_S))
            for run_id in usage.runs.keys() - alive.keys()
        }
        recent = {pid: owner for pid, owner in self._owners.items() if usage.at_s - owner[1] < LINGER_S}
        self._owners = recent | {pid: (run_id, usage.at_s) for run_id, used in usage.runs.items() for pid in used.pids}

    @property
    def final_until_s(self) -> float:
        """Instant up to which all energy is attributed (CLOCK_BOOTTIME)."""
        return self._since_s

    def families(self) -> dict[str, frozenset[int]]:
        """Return the processes of each run, including those of runs that its processes started."""
        return {run_id: usage.family for run_id, usage in self._usage.runs.items()} if self._usage else {}

    def change_holders(self, runs: Iterable[RunRecord], from_s: float) -> None:
        """Set the holders of all devices from `from_s` on, when a run started or ended."""
        runs, from_s = list(runs), max(from_s, self._since_s)
        self._hold_since_last(runs)
        self._hold([run for run in runs if run.running], from_s)
        self.divide()
        self._since_s = from_s

    def tick(self, runs: Iterable[RunRecord], now_s: float) -> None:
        """Attribute the energy up to now, with the loads from the last scan."""
        runs = list(runs)
        for device in self._live.busy_devices():
            self.energies.note_busy(device)
        self._hold_since_last(runs)
        self.divide()
        self._since_s = now_s
        self.energies.keep([run.run_id for run in runs])

    def hold(self, runs: Iterable[RunRecord]) -> None:
        """Set the holders of all devices from `since_s` on."""
        self._hold(list(runs), self._since_s)

    def divide(self) -> None:
        """Attribute the energy of all devices up to their last polls."""
        for device, energy_j, at_s in self._live.energy.energies():
            self.energies.divide(device, energy_j, at_s)

    def shares_j(self, run: RunRecord) -> dict[Device, float]:
        """Return the energy attributed to the run so far on each of its devices, by policy idle_shared.

        It includes the energy from the run's start to its first use of a GPU that nothing else used then.
        """
        self.divide()
        return {
            device: joules + run.before_use_j(device)
            for device in run.measured()
            if (joules := self.energies.share_j(device, SHARE_POLICY, run.run_id)) is not None
        }

    def _hold_since_last(self, runs: list[RunRecord]) -> None:
        """Apply the loads of the last scan to the time before it."""
        s = self._since_s
        self._hold([run for run in runs if run.begin_s <= s and (run.end_s is None or run.end_s > s)], s)

    def _hold(self, runs: list[RunRecord], from_s: float) -> None:
        holding = [run for run in runs if not self._is_gone(run, from_s)]
        pids: dict[str, set[int]] = {run.run_id: set() for run in holding if _has_processes(run)}
        for pid, (run_id, _) in self._owners.items():
            if run_id in pids:
                pids[run_id].add(pid)
        measured = {run.run_id: set(run.measured()) for run in holding}
        for device in self._live.energy.meters:
            holders = [run_id for run_id, devices in measured.items() if device in devices]
            if loads := self._loads(device, holders, pids, any_run=bool(holding)):
                self.energies.hold(device, loads, from_s)

    def _loads(
        self, device: Device, holders: list[str], pids: Mapping[str, set[int]], *, any_run: bool
    ) -> DeviceLoads | None:
        if not any_run:
            return DeviceLoads()
        if device.kind == "gpu":
            gpu = self._live.gpus.get(device.id)
            return gpu_loads(holders, gpu.processes if gpu else (), pids)
        return cpu_loads(holders, self._cpu_s, self._busy_s, pids) if device.component else None

    def _is_gone(self, run: RunRecord, at_s: float) -> bool:
        """Return True if the run had no process at `at_s`; it then holds no device until it has a process again."""
        return not run.cgroup and self._gone_s.get(run.run_id, at_s) < at_s


def _has_processes(run: RunRecord) -> bool:
    return bool(run.processes or run.cgroup)

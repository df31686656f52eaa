"""Attribution of the devices' energy to the runs that hold them."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise

from wattline.contract.api import OTHER_RUNS
from wattline.contract.requests.served import SERVER_LABEL, SERVER_WORKLOAD
from wattline.contract.work import SHARE_POLICY
from wattline_exporter.attribution.cpu_time import CpuUsageReader, NodeCpuUsage, ScannedRun
from wattline_exporter.attribution.device_loads import (
    DeviceLoads,
    GpuLoadPeriod,
    cpu_loads,
    gpu_loads,
)
from wattline_exporter.attribution.nesting import (
    CLIENT_RANK,
    DISCOVERED_RANK,
    SERVER_RANK,
    Nesting,
    RunFamilies,
)
from wattline_exporter.attribution.policy import Attribution
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.runs import marks
from wattline_exporter.runs.run_record import RunRecord
from wattline_exporter.sensors.processes.cgroups import pids_in_cgroup
from wattline_exporter.sensors.readings import Device, Reading

LINGER_S = 2.0
"""Time for which the driver may still list an ended process. Its energy belongs to its run."""

OWNER_WITHIN_S = 5.0
"""Time after the start of a run for which its energy waits for an owner: a client names its
processes a bit later.
"""


class DeviceHolders:
    """Division of each device's energy among runs, from scans of their processes and CPU time.

    `since_s` is the instant up to which the holders of the devices are final (CLOCK_BOOTTIME).
    """

    def __init__(
        self,
        live: LiveState,
        energies: Attribution,
        since_s: float,
        cpu: CpuUsageReader | None = None,
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
        """Time from which a run has no process: the first scan without one, at most LINGER_S after
        `_alive_s`.
        """
        self._folded: list[RunRecord] = []
        """Holders that are no runs, since too many are open; their ids begin with OTHER_RUNS."""
        self._owners: dict[int, tuple[str, float]] = {}
        """Run of each recent process, and the time of the last scan that found the process."""
        self._in_common: dict[tuple[str, str], bool] = {}
        """Whether a further run has never done other work than a run, by both; also of ended runs.
        """

    async def scan(self, running: Iterable[RunRecord]) -> None:
        """Read the CPU time of the runs that named processes or a cgroup, in a thread."""
        async with self._scanning:  # the reader keeps state; one scan at a time
            await self._scan([*running, *self._folded])

    async def rescan(self, runs: Collection[RunRecord], now_s: float) -> None:
        """Scan the processes of open runs now, and set the holders from now on by their loads."""
        await self.scan([run for run in runs if run.is_open])
        self.change_holders(runs, now_s)

    async def _scan(self, running: Iterable[RunRecord]) -> None:
        runs = {
            run.run_id: ScannedRun(tuple(run.processes), run.cgroup, _nesting_rank(run))
            for run in running
            if _has_processes(run)
        }
        if not runs:
            self._usage = None
            self._cpu_s = {}
            self._busy_s = 0.0
            self._gone_s = {}
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
        self._alive_s = {
            run_id: s for run_id, s in self._alive_s.items() if run_id in usage.runs
        } | alive
        self._gone_s = {
            run_id: self._gone_s.get(
                run_id, min(usage.at_s, self._alive_s.get(run_id, -math.inf) + LINGER_S)
            )
            for run_id in usage.runs.keys() - alive.keys()
        }
        recent = {
            pid: owner for pid, owner in self._owners.items() if usage.at_s - owner[1] < LINGER_S
        }
        self._owners = recent | {
            pid: (run_id, usage.at_s) for run_id, used in usage.runs.items() for pid in used.pids
        }

    def runs_of(self, pids: Iterable[int]) -> set[str]:
        """Return the innermost runs of these processes at the last scan."""
        return {self._owners[pid][0] for pid in pids if pid in self._owners}

    def is_same_work(self, run_id: str, other: str) -> bool:
        """Return True if another run used GPUs only by processes of a run, as a job does those of
        its server.
        """
        return self._in_common.get((run_id, other), False)

    def family(self, run_id: str) -> frozenset[int]:
        """Return the processes of a run, including those of runs that its processes started."""
        usage = self._usage.runs.get(run_id) if self._usage else None
        return usage.family if usage else frozenset()

    def change_holders(self, runs: Iterable[RunRecord], from_s: float) -> None:
        """Set the holders of all devices from `from_s` on, when a run started or ended."""
        runs = [*runs, *self._folded]
        from_s = max(from_s, self._since_s)
        self._hold_since_last(runs)
        self._hold([run for run in runs if run.running], from_s)
        self.divide()
        self._since_s = from_s

    def tick(self, runs: Iterable[RunRecord], now_s: float) -> None:
        """Attribute the energy up to now, with the loads from the last scan."""
        runs = [*runs, *self._folded]
        for device in self._live.busy_devices():
            self.energies.note_busy(device)
        self._hold_since_last(runs)
        self.divide()
        self._since_s = now_s
        self.energies.keep([run.run_id for run in runs])
        known = {run.run_id for run in runs}
        self._in_common = {
            pair: is_same for pair, is_same in self._in_common.items() if known.issuperset(pair)
        }
        self._folded = [run for run in self._folded if run.running]

    def fold(self, run: RunRecord) -> RunRecord:
        """Attribute energy to OTHER_RUNS and to the owner of a run that could not begin, until its
        end.
        """
        run.run_id = f"{OTHER_RUNS} {run.run_id}"
        self._folded.append(run)
        return run

    def mark_first_use(
        self, run: RunRecord, runs: Collection[RunRecord], gpus: list[Device]
    ) -> None:
        """Take the marks of GPUs that the run uses from now on, except those that other runs hold.

        A run has none, and holds none, if all of its processes are in runs of higher rank.
        """
        if not gpus:
            return
        pids = (
            {run_id: set(usage.pids) for run_id, usage in self._usage.runs.items()}
            if self._usage
            else {}
        )
        nesting = self._nesting(
            _run_families([other for other in runs if other.running], self._usage, pids)
        )
        outer = {run_id for run_id, nested in nesting.items() if not nested.own_pids}
        others = [
            other for other in runs if other is not run and (other.end_s or math.inf) > run.begin_s
        ]
        if run.run_id not in outer:
            others = [other for other in others if other.run_id not in outer]
            marks.mark_first_use(run, self._live.energy.meters, gpus, others, self._since_s)

    def hold(self, runs: Iterable[RunRecord]) -> None:
        """Set the holders of all devices from `since_s` on."""
        self._hold(list(runs), self._since_s)

    def divide(self) -> None:
        """Attribute the energy of all devices up to their last polls, and their emissions."""
        emissions: dict[tuple[str, str], dict[tuple[str, str], float]] = defaultdict(dict)
        for (
            component,
            identity,
            basis,
            quality,
        ), grams in self._live.energy.emissions_grams.items():
            emissions[component, identity][basis, quality] = grams
        latest_s = -math.inf
        for device, energy_j, at_s in self._live.energy.energies():
            self.energies.divide(
                device, energy_j, at_s, emissions.get((str(device.component), device.id))
            )
            self._live.energy.meter(device).least_w = self._least_w(device)
            latest_s = max(latest_s, at_s)
        self.energies.owners.show(latest_s)

    def _least_w(self, device: Device) -> float:
        """Return the power below which a GPU does not fall.

        It is 0 while the idle power is unknown, and where the GPU does not report whether it is
        used: its lowest power may be that of a load.
        """
        gpu = self._live.gpus.get(device.id)
        if gpu is None or gpu.utilization() is None:
            return 0.0
        return self.energies.least_w(device)

    def readings(
        self, readable: Collection[Device], without: Collection[str], *, recorded: bool
    ) -> Iterator[Reading]:
        """Yield the attributed energies of the `readable` devices, except those of the runs
        `without`, and the owners' counters.

        `recorded`: for the local history, which has new owners above 0 earlier than the page of
        metrics.
        """
        yield from self.energies.readings(readable, without)
        yield from self.energies.owners.readings(recorded=recorded)

    def take_shares(self, run: RunRecord) -> None:
        """Set the energy attributed to an ended run on each of its devices, by policy idle_shared.

        It includes the energy from the run's start to its first use of a GPU that nothing else used
        then, at most as much as the shares leave of the run's energy: the power between two polls
        is divided as if it were constant.
        """
        self.divide()
        shares_j = {
            device: self.energies.share_j(device, SHARE_POLICY, run.run_id)
            for device in run.measured()
        }
        known = {device: joules for device, joules in shares_j.items() if joules is not None}
        for device, joules in known.items():
            marks.bound_first_use(run, device, joules)
        run.attributed_j = {
            device: joules + run.before_use_j(device) for device, joules in known.items()
        }

    def held_j(self, run: RunRecord) -> float:
        """Return the energy that is attributed to the run so far, by policy idle_shared."""
        return math.fsum(
            self.energies.share_j(device, SHARE_POLICY, run.run_id) or 0.0
            for device in run.measured()
        )

    def _hold_since_last(self, runs: list[RunRecord]) -> None:
        """Apply the loads of the last scan to the time before it, up to the exits of processes in
        that time.
        """
        s = self._since_s
        holding = [run for run in runs if run.begin_s <= s and (run.end_s is None or run.end_s > s)]
        self._hold(holding, s)
        for exited_s in sorted(
            {run.alive_s for run in holding if run.end_until_s is not None and run.alive_s > s}
        ):
            self._hold(holding, exited_s)

    def _hold(self, runs: list[RunRecord], from_s: float) -> None:
        unnamed = [run for run in runs if run.discovered is None and not run.owner.owner]
        self.energies.owners.assign(
            {run.run_id: run.owner for run in runs},
            {run.run_id: run.begin_s + OWNER_WITHIN_S for run in unnamed},
        )
        holding = [run for run in runs if not self._is_gone(run, from_s)]
        pids = self._pids(holding)
        measured = {run.run_id: set(run.measured()) for run in holding}
        families = _run_families(holding, self._usage, pids)
        on_gpus = {process.pid for gpu in self._live.gpus.values() for process in gpu.processes}
        for run_id, other, is_same in families.in_common(on_gpus):
            self._in_common[run_id, other] = is_same and self._in_common.get((run_id, other), True)
        nesting = self._nesting(families)
        for device in self._live.energy.meters:
            holders = self._holders(device, measured, nesting)
            if loads := self._loads(device, holders, pids, any_run=bool(holding)):
                self.energies.hold(device, loads, from_s)

    def _pids(self, holding: list[RunRecord]) -> dict[str, set[int]]:
        """Return the processes of the runs that named processes or a cgroup."""
        pids: dict[str, set[int]] = {run.run_id: set() for run in holding if _has_processes(run)}
        for pid, (run_id, _) in self._owners.items():
            if run_id in pids:
                pids[run_id].add(pid)
        return pids

    def _holders(
        self,
        device: Device,
        measured: Mapping[str, Collection[Device]],
        nesting: Mapping[str, Nesting],
    ) -> list[str]:
        holders = [run_id for run_id, devices in measured.items() if device in devices]
        return [
            run_id
            for run_id in holders
            if not self._is_outer_only(device, nesting.get(run_id), holders)
        ]

    def gpu_periods(
        self,
        device: Device,
        since_s: float,
        runs: Iterable[RunRecord],
        reporters: Collection[str] = (),
    ) -> Iterator[GpuLoadPeriod]:
        """Yield the loads on a GPU between the readings of its processes after `since_s`, up to the
        last scan.

        Processes of servers have the load of the run of `reporters` that reports their requests.
        """
        gpu = self._live.gpus.get(device.id)
        runs = [*runs, *self._folded]
        scanned_s = self._usage.at_s if self._usage else math.inf
        for before, listed in pairwise(gpu.lists if gpu else ()):
            begin_s = before.read_s
            end_s = listed.read_s
            if since_s < end_s <= scanned_s:
                present = [
                    run
                    for run in runs
                    if run.begin_s < end_s and (run.end_s is None or run.end_s > begin_s)
                ]
                present = [run for run in present if not self._is_gone(run, begin_s)]
                families = _run_families(present, self._usage, self._pids(present))
                pids = families.of_reporters(reporters)
                holders = [run.run_id for run in present if device in run.measured()]
                held = {each: pids.get(each, ()) for each in holders}
                on_gpu = [each.pid for each in listed.processes]
                holders = [each for each in holders if not families.is_within(each, held, on_gpu)]
                yield GpuLoadPeriod(
                    begin_s, end_s, gpu_loads(holders, listed.processes, pids).loads
                )

    def _nesting(self, runs: RunFamilies) -> dict[str, Nesting]:
        """Return the runs that contain processes of a run of higher rank."""
        scanned = self._usage.runs if self._usage else {}
        found = {}
        for run_id, family in runs.families.items():
            if inner := runs.inner(run_id):
                named = set(family).difference(*(runs.families[other] for other in inner))
                own = runs.pids[run_id] if run_id in scanned else named
                found[run_id] = Nesting(inner, frozenset(own), self._cpu_s.get(run_id, 0.0) > 0)
        return found

    def _is_outer_only(
        self, device: Device, nesting: Nesting | None, holders: Collection[str]
    ) -> bool:
        """Return True for a run that uses the device only through the runs inside it."""
        if nesting is None or nesting.inner.isdisjoint(holders):
            return False
        if device.kind == "gpu":
            gpu = self._live.gpus.get(device.id)
            return not any(
                process.pid in nesting.own_pids for process in (gpu.processes if gpu else ())
            )
        return not (nesting.own_pids or nesting.uses_cpu)

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
        """Return True if the run had no process at `at_s`; it then holds no device until it has a
        process again.
        """
        if run.end_until_s is not None and (run.unwatched or run.end_until_s <= run.alive_s):
            return run.alive_s <= at_s
        return not run.cgroup and self._gone_s.get(run.run_id, at_s) < at_s


def _has_processes(run: RunRecord) -> bool:
    return bool(run.processes or run.cgroup)


def _nesting_rank(run: RunRecord) -> int:
    """Return the rank of a run: of several runs of a process, one of the highest rank has it.

    Runs of clients have a higher one than those that servers begin for their reports, and these
    than discovered ones.
    """
    if run.discovered:
        return DISCOVERED_RANK
    return (
        SERVER_RANK
        if run.workload == SERVER_WORKLOAD and SERVER_LABEL in run.labels
        else CLIENT_RANK
    )


def _run_families(
    runs: Collection[RunRecord], usage: NodeCpuUsage | None, pids: Mapping[str, Collection[int]]
) -> RunFamilies:
    """Return the processes of runs at the scan `usage`; `pids` has those of each run that named
    some.
    """
    scanned = usage.runs if usage else {}
    families = {
        run.run_id: scanned[run.run_id].family if run.run_id in scanned else _named_pids(run)
        for run in runs
    }
    ranks = {run.run_id: _nesting_rank(run) for run in runs}
    jobs = {
        run.run_id
        for run in runs
        if run.workload == SERVER_WORKLOAD and ranks[run.run_id] == CLIENT_RANK
    }
    return RunFamilies(ranks, families, pids, jobs)


def _named_pids(run: RunRecord) -> frozenset[int]:
    """Return the pids of a run that has not been scanned yet."""
    in_cgroup = pids_in_cgroup(run.cgroup) if run.cgroup else ()
    return frozenset({process.pid for process in run.processes}.union(in_cgroup))

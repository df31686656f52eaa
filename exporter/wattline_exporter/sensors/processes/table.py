"""CPU time and memory of the largest groups of processes, on the node and on GPUs."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wattline.contract.metrics import (
    GPU_PROCESS_MEMORY,
    GPU_PROCESS_UTILIZATION,
    HOST_PROCESS_CPU,
    HOST_PROCESS_PSS,
    HOST_PROCESS_USS,
)
from wattline_exporter.sensors.processes.cgroup_paths import parse_cgroup_path
from wattline_exporter.sensors.processes.groups import (
    GpuProcessGroup,
    ProcessGroup,
    largest_gpu_groups,
    safe_label,
    select_largest,
)
from wattline_exporter.sensors.processes.procfs import (
    PROC,
    TICK_S,
    ProcessKey,
    ProcessStat,
    all_pids,
    read_stat,
)
from wattline_exporter.sensors.readings import Batch, GpuProcess, Reading, SourceError, boottime

GroupBy = Literal["name", "cgroup"]
GROUPS: dict[str, GroupBy] = {"name": "name", "cgroup": "cgroup"}

MAX_RSS_BYTES = 16 << 30
"""Limit for reading a process's memory: it takes 13 ms per GiB and blocks the process's memory
mapping.
"""
MEMORY_EVERY_S = 60.0
SPREAD_READS = 12
"""Number of reads of the table, 5 s apart, over which the reads of memory are distributed."""
MAX_RSS_BYTES_PER_READ = 4 << 30
"""Limit per read of the table, about 50 ms, unless the first process alone exceeds it."""
RECENT_S = 60.0
"""Time constant of the CPU use by which groups are ranked."""
DENIED = (
    "PSS and USS of other users' processes are missing: reading them needs CAP_SYS_PTRACE "
    "(AmbientCapabilities=CAP_SYS_PTRACE in systemd); CPU time needs no capability"
)
PROTECTED = (
    "PSS and USS of some processes are missing: a security module denies access; see: "
    "journalctl -k --grep=ptrace"
)


@dataclass(frozen=True, slots=True)
class _Memory:
    read_s: float
    pss_bytes: int
    uss_bytes: int


@dataclass
class _KnownProcess:
    """State of a process between two reads."""

    group: ProcessGroup
    own_s: float
    since_s: float
    memory: _Memory | None = None
    memory_is_denied: bool = False


@dataclass
class _GroupTotal:
    cpu_s: float = 0.0
    recent_s: float = 0.0
    memory_was_complete: bool = False


class ProcessTable:
    """Source of processes, read every 5 s; shorter processes may be missed.

    `pids` exports one series per process. `proc` is the mount point of proc.
    """

    name = "processes"

    def __init__(
        self,
        by: GroupBy = "name",
        *,
        pids: bool = False,
        proc: Path = PROC,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._by = by
        self._pids = pids
        self._proc = proc
        self._clock = clock
        self._known: dict[ProcessKey, _KnownProcess] = {}
        self._totals: dict[ProcessGroup, _GroupTotal] = {}
        self._shown_cpu: set[ProcessGroup] = set()
        self._shown_memory: set[ProcessGroup] = set()
        self._last_s: float | None = None

    def read(self) -> Batch:
        now_s = self._clock()
        try:
            found = [read_stat(pid, self._proc) for pid in all_pids(self._proc)]
        except OSError as error:
            raise SourceError(
                f"cannot read {error.filename}: {error.strerror}",
                f"check that proc is mounted: ls {self._proc}",
            ) from error
        stats = [stat for stat in found if stat and not stat.is_over]
        self._count(stats, now_s)
        by_group: dict[ProcessGroup, list[ProcessStat]] = defaultdict(list)
        for stat in stats:
            by_group[self._known[stat.process].group].append(stat)
        self._totals = {group: self._totals[group] for group in by_group}
        self._shown_cpu = select_largest(
            {group: total.recent_s for group, total in self._totals.items()}, self._shown_cpu
        )
        rss = {
            group: float(sum(stat.rss_bytes for stat in members))
            for group, members in by_group.items()
        }
        rss = {group: rss_bytes for group, rss_bytes in rss.items() if rss_bytes}
        self._shown_memory = select_largest(rss, self._shown_memory)
        chosen = {
            group: members for group, members in by_group.items() if group in self._shown_memory
        }
        self._read_memory([stat for members in chosen.values() for stat in members], now_s)
        self._last_s = now_s
        readings = [
            Reading(HOST_PROCESS_CPU, (group.name,), self._totals[group].cpu_s, group.extra)
            for group in self._shown_cpu
        ]
        for group, members in chosen.items():
            readings += self._memory_readings(group, members, now_s)
        return Batch(tuple(readings), problems=self._problems())

    def _count(self, stats: Iterable[ProcessStat], now_s: float) -> None:
        """Add the CPU time since the last read to the total of each group."""
        fade = math.exp(-(now_s - self._last_s) / RECENT_S) if self._last_s is not None else 1.0
        for total in self._totals.values():
            total.recent_s *= fade
        before = self._known
        self._known = {}
        for stat in stats:
            process = before.get(stat.process)
            if process is None:
                process = _KnownProcess(ProcessGroup(""), self._used_before(stat), now_s)
            process.group = self._group(stat, process, now_s)
            total = self._totals.setdefault(process.group, _GroupTotal())
            used_s = max(0.0, stat.own_s - process.own_s)
            total.cpu_s += used_s
            total.recent_s += used_s
            process.own_s = max(process.own_s, stat.own_s)
            self._known[stat.process] = process

    def _used_before(self, stat: ProcessStat) -> float:
        """Return the CPU time of a new process that is not counted: none if it started since the
        last read.
        """
        is_new = self._last_s is not None and stat.process.started_s > self._last_s - TICK_S
        return 0.0 if is_new else stat.own_s

    def _group(self, stat: ProcessStat, process: _KnownProcess, now_s: float) -> ProcessGroup:
        pid = str(stat.process.pid) if self._pids else ""
        if self._by == "name":
            return ProcessGroup(exported_name(stat), pid)
        if process.group.name and now_s - process.since_s > MEMORY_EVERY_S:
            return process.group  # a process is moved into its cgroup early
        return ProcessGroup(safe_label(cgroup_owner(stat.process.pid, self._proc)), pid)

    # -- memory

    def _read_memory(self, stats: list[ProcessStat], now_s: float) -> None:
        """Read the memory of a few processes, those first whose last read is oldest."""
        readable = [stat for stat in stats if self._may_read(stat, now_s)]
        readable.sort(key=lambda stat: self._read_s(stat.process))
        rss_bytes = 0
        for stat in readable[: math.ceil(len(stats) / SPREAD_READS)]:
            rss_bytes += stat.rss_bytes
            if rss_bytes > MAX_RSS_BYTES_PER_READ and stat is not readable[0]:
                return
            process = self._known[stat.process]
            try:
                memory = read_memory(stat.process.pid, now_s, self._proc)
            except PermissionError:
                process.memory_is_denied = True
                continue
            process.memory = memory or process.memory

    def _read_s(self, process: ProcessKey) -> float:
        memory = self._known[process].memory
        return memory.read_s if memory else -math.inf

    def _may_read(self, stat: ProcessStat, now_s: float) -> bool:
        if (
            stat.is_kernel
            or stat.rss_bytes > MAX_RSS_BYTES
            or self._known[stat.process].memory_is_denied
        ):
            return False
        return now_s - self._read_s(stat.process) >= MEMORY_EVERY_S

    def _memory_readings(
        self, group: ProcessGroup, members: list[ProcessStat], now_s: float
    ) -> list[Reading]:
        """Return PSS and USS of a group, nothing if the memory of a member is unknown, except for
        new ones.
        """
        counted = [self._known[stat.process] for stat in members if stat.rss_bytes]
        if any(stat.rss_bytes > MAX_RSS_BYTES for stat in members) or any(
            process.memory_is_denied for process in counted
        ):
            return []
        total = self._totals[group]
        read = [process.memory for process in counted if process.memory]
        overdue = [
            process
            for process in counted
            if not process.memory and now_s - process.since_s > MEMORY_EVERY_S
        ]
        total.memory_was_complete = total.memory_was_complete or len(read) == len(counted)
        if overdue or not read or not total.memory_was_complete:
            return []
        return [
            Reading(
                HOST_PROCESS_PSS,
                (group.name,),
                sum(memory.pss_bytes for memory in read),
                group.extra,
            ),
            Reading(
                HOST_PROCESS_USS,
                (group.name,),
                sum(memory.uss_bytes for memory in read),
                group.extra,
            ),
        ]

    def _problems(self) -> tuple[str, ...]:
        if not any(process.memory_is_denied for process in self._known.values()):
            return ()
        return (PROTECTED if may_read_all(self._proc) else DENIED,)


def may_read_all(proc: Path = PROC) -> bool:
    """Return whether this process has CAP_SYS_PTRACE (number 19)."""
    lines = (proc / "self/status").read_text().splitlines()
    return any(line.startswith("CapEff:") and int(line.split()[1], 16) >> 19 & 1 for line in lines)


def exported_name(stat: ProcessStat) -> str:
    """Return the name of the command; for kernel workers the part before the slash."""
    name = stat.name.partition("/")[0] if stat.is_kernel else stat.name
    return safe_label(name)


def cgroup_owner(pid: int, proc: Path = PROC) -> str:
    """Return the owner of the process by its cgroup, as a name or path; empty if unknown."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((parse_cgroup_path(line[3:]).text for line in lines if line.startswith("0::")), "")


def group_of_pid(pid: int, by: GroupBy, *, pids: bool, proc: Path = PROC) -> ProcessGroup:
    """Return the group of a process as in the table; one that has ended has no name."""
    stat = read_stat(pid, proc)
    name = (
        ""
        if stat is None
        else safe_label(cgroup_owner(pid, proc))
        if by == "cgroup"
        else exported_name(stat)
    )
    return ProcessGroup(name, str(pid) if pids else "")


def read_memory(pid: int, now_s: float, proc: Path = PROC) -> _Memory | None:
    """Return PSS and USS, None for a process without memory or one that has ended. Raises
    PermissionError.
    """
    try:
        file = os.open(f"{proc}/{pid}/smaps_rollup", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        lines = os.read(file, 4_096).splitlines()
    except ProcessLookupError:
        return None
    finally:
        os.close(file)
    kib = {fields[0]: int(fields[1]) for fields in map(bytes.split, lines[1:])}
    if b"Pss:" not in kib:
        return None
    unique_kib = sum(size for name, size in kib.items() if name.startswith(b"Private_"))
    return _Memory(now_s, kib[b"Pss:"] << 10, unique_kib << 10)


class GpuProcessTable:
    """Source of processes on GPUs; `on_gpus` returns them by UUID, `indices` the index of each
    GPU.
    """

    name = "gpu_processes"

    def __init__(
        self,
        on_gpus: Callable[[], Mapping[str, Sequence[GpuProcess]]],
        indices: Callable[[], Mapping[str, str]],
        group_of: Callable[[int], ProcessGroup],
    ) -> None:
        self._on_gpus = on_gpus
        self._indices = indices
        self._group_of = group_of
        self._shown: list[GpuProcessGroup] = []

    def read(self) -> Batch:
        self._shown = largest_gpu_groups(self._on_gpus(), self._group_of, self._shown)
        indices = self._indices()
        return Batch(
            tuple(
                r for shown in self._shown if shown.on in indices for r in _readings(shown, indices)
            )
        )


def _readings(group: GpuProcessGroup, indices: Mapping[str, str]) -> Iterator[Reading]:
    labels = (indices[group.on], group.uuid, group.group.name)
    if group.memory_bytes is not None:
        yield Reading(GPU_PROCESS_MEMORY, labels, float(group.memory_bytes), group.group.extra)
    if group.utilization is not None:
        yield Reading(GPU_PROCESS_UTILIZATION, labels, group.utilization, group.group.extra)

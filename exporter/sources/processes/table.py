"""CPU time and memory of the node's processes, by name or by cgroup: opt-in, and of the largest only."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from exporter.attribution.cgroups import parse_cgroup_path
from exporter.attribution.procfs import PROC, TICK_S, ProcessKey, ProcessStat, all_pids, read_stat
from exporter.contract.metrics import HOST_PROCESS_CPU, HOST_PROCESS_PSS, HOST_PROCESS_USS
from exporter.model import Batch, Reading, SourceError, boottime
from exporter.sources.processes.groups import Group, label, largest

GroupBy = Literal["name", "cgroup"]
GROUPS: dict[str, GroupBy] = {"name": "name", "cgroup": "cgroup"}

LARGEST_RSS = 16 << 30
"""Reading the memory of a process takes 13 ms a GiB under its own lock, in which it cannot map memory."""
MEMORY_EVERY_S = 60.0
SPREAD = 12
"""The reads of memory are spread over so many looks, 5 s each."""
MOST_RSS_A_LOOK = 4 << 30
"""Unless the first alone is more: some 50 ms of reading."""
RECENT_S = 60.0
"""CPU use is ranked by what was used in about this time."""
DENIED = (
    "PSS and USS of other users' processes are left out: the kernel shows them only with CAP_SYS_PTRACE "
    "(AmbientCapabilities=CAP_SYS_PTRACE in systemd); CPU time needs no capability"
)
PROTECTED = (
    "PSS and USS of some processes are left out: a security module protects them from being read; "
    "see: journalctl -k --grep=ptrace"
)


@dataclass(frozen=True, slots=True)
class _Memory:
    read_s: float
    pss_bytes: int
    uss_bytes: int


@dataclass
class _Known:
    """A process from one look to the next."""

    group: Group
    own_s: float
    since_s: float
    memory: _Memory | None = None
    memory_is_denied: bool = False


@dataclass
class _Total:
    cpu_s: float = 0.0
    recent_s: float = 0.0
    memory_was_whole: bool = False


class ProcessTable:
    """`read` every 5 s. A process that comes and goes between two looks is not seen.

    `pids` shows each process for itself. `proc` is where proc is mounted.
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
        self._known: dict[ProcessKey, _Known] = {}
        self._totals: dict[Group, _Total] = {}
        self._shown_cpu: set[Group] = set()
        self._shown_memory: set[Group] = set()
        self._last_s: float | None = None

    def read(self) -> Batch:
        now_s = self._clock()
        try:
            found = [read_stat(pid, self._proc) for pid in all_pids(self._proc)]
        except OSError as error:
            raise SourceError(
                f"cannot read {error.filename}: {error.strerror}", f"is proc mounted? see: ls {self._proc}"
            ) from error
        stats = [stat for stat in found if stat and not stat.is_over]
        self._count(stats, now_s)
        by_group: dict[Group, list[ProcessStat]] = defaultdict(list)
        for stat in stats:
            by_group[self._known[stat.process].group].append(stat)
        self._totals = {group: self._totals[group] for group in by_group}
        self._shown_cpu = largest({group: total.recent_s for group, total in self._totals.items()}, self._shown_cpu)
        held = {group: float(sum(stat.rss_bytes for stat in members)) for group, members in by_group.items()}
        held = {group: rss_bytes for group, rss_bytes in held.items() if rss_bytes}
        self._shown_memory = largest(held, self._shown_memory)
        chosen = {group: members for group, members in by_group.items() if group in self._shown_memory}
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
        """Adds to each group's total what its members have used since the last look."""
        fade = math.exp(-(now_s - self._last_s) / RECENT_S) if self._last_s is not None else 1.0
        for total in self._totals.values():
            total.recent_s *= fade
        before, self._known = self._known, {}
        for stat in stats:
            known = before.get(stat.process)
            if known is None:
                known = _Known(Group(""), self._used_before(stat), now_s)
            known.group = self._group(stat, known, now_s)
            total = self._totals.setdefault(known.group, _Total())
            used_s = max(0.0, stat.own_s - known.own_s)
            total.cpu_s += used_s
            total.recent_s += used_s
            known.own_s = max(known.own_s, stat.own_s)
            self._known[stat.process] = known

    def _used_before(self, stat: ProcessStat) -> float:
        """Of a process that is new to us: nothing, where it has started since the last look."""
        is_born = self._last_s is not None and stat.process.started_s > self._last_s - TICK_S
        return 0.0 if is_born else stat.own_s

    def _group(self, stat: ProcessStat, known: _Known, now_s: float) -> Group:
        pid = str(stat.process.pid) if self._pids else ""
        if self._by == "name":
            return Group(shown_name(stat), pid)
        if known.group.name and now_s - known.since_s > MEMORY_EVERY_S:
            return known.group  # who is put into a cgroup is put there early
        return Group(label(cgroup_of(stat.process.pid, self._proc)), pid)

    # -- memory

    def _read_memory(self, stats: list[ProcessStat], now_s: float) -> None:
        """Of those whose turn it is: few at each look, and those first that were not read for the longest time."""
        wanted = [stat for stat in stats if self._may_read(stat, now_s)]
        wanted.sort(key=lambda stat: self._read_s(stat.process))
        rss_bytes = 0
        for stat in wanted[: math.ceil(len(stats) / SPREAD)]:
            rss_bytes += stat.rss_bytes
            if rss_bytes > MOST_RSS_A_LOOK and stat is not wanted[0]:
                return
            known = self._known[stat.process]
            try:
                memory = read_memory(stat.process.pid, now_s, self._proc)
            except PermissionError:
                known.memory_is_denied = True
                continue
            known.memory = memory or known.memory

    def _read_s(self, process: ProcessKey) -> float:
        memory = self._known[process].memory
        return memory.read_s if memory else -math.inf

    def _may_read(self, stat: ProcessStat, now_s: float) -> bool:
        if stat.is_kernel or stat.rss_bytes > LARGEST_RSS or self._known[stat.process].memory_is_denied:
            return False
        return now_s - self._read_s(stat.process) >= MEMORY_EVERY_S

    def _memory_readings(self, group: Group, members: list[ProcessStat], now_s: float) -> list[Reading]:
        """Nothing where a member cannot be read, or was not yet, unless it is younger than the others' last reading."""
        counted = [self._known[stat.process] for stat in members if stat.rss_bytes]
        if any(stat.rss_bytes > LARGEST_RSS for stat in members) or any(known.memory_is_denied for known in counted):
            return []
        total = self._totals[group]
        read = [known.memory for known in counted if known.memory]
        late = [known for known in counted if not known.memory and now_s - known.since_s > MEMORY_EVERY_S]
        total.memory_was_whole = total.memory_was_whole or len(read) == len(counted)
        if late or not read or not total.memory_was_whole:
            return []
        return [
            Reading(HOST_PROCESS_PSS, (group.name,), sum(memory.pss_bytes for memory in read), group.extra),
            Reading(HOST_PROCESS_USS, (group.name,), sum(memory.uss_bytes for memory in read), group.extra),
        ]

    def _problems(self) -> tuple[str, ...]:
        if not any(known.memory_is_denied for known in self._known.values()):
            return ()
        return (PROTECTED if may_read_all(self._proc) else DENIED,)


def may_read_all(proc: Path = PROC) -> bool:
    """Whether we have CAP_SYS_PTRACE, which is number 19."""
    lines = (proc / "self/status").read_text().splitlines()
    return any(line.startswith("CapEff:") and int(line.split()[1], 16) >> 19 & 1 for line in lines)


def shown_name(stat: ProcessStat) -> str:
    """The command's name; of the kernel's workers, which are named by what they do, only what they are."""
    name = stat.name.partition("/")[0] if stat.is_kernel else stat.name
    return label(name)


def cgroup_of(pid: int, proc: Path = PROC) -> str:
    """Whose the process is by its cgroup, in a word or by its path; empty where that cannot be told."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((parse_cgroup_path(line[3:]).text for line in lines if line.startswith("0::")), "")


def group_of_pid(pid: int, by: GroupBy, *, pids: bool, proc: Path = PROC) -> Group:
    """As the table groups it; for processes on a GPU. One that is gone has no name."""
    stat = read_stat(pid, proc)
    name = "" if stat is None else label(cgroup_of(pid, proc)) if by == "cgroup" else shown_name(stat)
    return Group(name, str(pid) if pids else "")


def read_memory(pid: int, now_s: float, proc: Path = PROC) -> _Memory | None:
    """PSS and USS; None where the process is gone, or has no memory. Raises PermissionError."""
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

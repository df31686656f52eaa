"""Processes and their descendants, read from /proc.

A process is identified by its pid and its start time, since pids are reused. One read of
/proc/PID/stat takes 23 us and gives all fields; psutil takes 280 us for the same fields, and 58 us
for the start time alone (measured, psutil 7.2). Its start times are Unix times, which change when
the clock is set.
"""

from __future__ import annotations

import os
import pwd
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from wattline_exporter.sensors.processes.cgroups import CGROUPS, pids_in_cgroup

PROC = Path("/proc")
_LONGEST = 1 << 16
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
TICK_S = 1 / _TICKS_PER_S
"""Resolution of start times: they are rounded down to it."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PF_KTHREAD = 0x0020_0000


@dataclass(frozen=True)
class ProcessKey:
    """A process. `started_s` is CLOCK_BOOTTIME, which is never set."""

    pid: int
    started_s: float


class ProcessStat(NamedTuple):
    """Fields of /proc/PID/stat. `is_over`: the process has ended and was not yet waited for."""

    process: ProcessKey
    name: str
    is_over: bool
    parent: int
    threads: int
    own_s: float
    """CPU time of all its threads, including ended ones."""
    waited_s: float
    """CPU time of the children that it has waited for, and of those that they had waited for."""
    rss_bytes: int
    is_kernel: bool


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """Return the process's fields (man 5 proc_pid_stat), or None if there is none."""
    text = _read(f"{proc}/{pid}/stat")
    if text is None:
        return None
    # the command is in parentheses and may contain parentheses
    name, _, rest = text.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    return ProcessStat(
        ProcessKey(pid, int(fields[19]) / _TICKS_PER_S),
        name.decode(errors="replace"),
        fields[0] in (b"Z", b"X"),
        int(fields[1]),
        int(fields[17]),
        (int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        (int(fields[13]) + int(fields[14])) / _TICKS_PER_S,
        int(fields[21]) * _PAGE,
        bool(int(fields[6]) & _PF_KTHREAD),
    )


def _read(path: str) -> bytes | None:
    """Return a file of /proc, or None if it is gone or empty. Path.read_bytes takes three times as
    long.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = part = os.read(file, _LONGEST)
        while part:  # lists come in parts of any length
            part = os.read(file, _LONGEST)
            text += part
    except OSError:  # ESRCH: it ended after it was opened
        return None
    finally:
        os.close(file)
    return text or None


def find_process(pid: int, proc: Path = PROC) -> ProcessKey | None:
    """Return the process with this pid, or None if there is none or it has ended."""
    stat = read_stat(pid, proc)
    return None if stat is None or stat.is_over else stat.process


def is_process_alive(process: ProcessKey, proc: Path = PROC) -> bool:
    return find_process(process.pid, proc) == process


def all_pids(proc: Path = PROC) -> list[int]:
    return [int(name) for name in os.listdir(proc) if name.isdecimal()]  # noqa: PTH208  # Path makes an object of each


def node_busy_s(proc: Path = PROC) -> float:
    """Return the CPU seconds of all CPUs since boot, without idle, I/O wait and steal time.

    Guest time is part of user time. Raises OSError.
    """
    fields = (proc / "stat").read_bytes().split(b"\n", 1)[0].split()
    user, nice, system, _idle, _iowait, irq, softirq = map(int, fields[1:8])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def host_cpu_seconds() -> tuple[float, float]:
    """Return busy and total CPU seconds since boot. User time includes guest time; I/O wait is
    idle.
    """
    times = psutil.cpu_times()
    total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total_s - times.idle - getattr(times, "iowait", 0.0), total_s


class ProcessSnapshot:
    """Descendants of processes at one instant; valid for a second at most.

    The children of a process come from the kernel's lists, one per thread. Where the kernel has
    none (CONFIG_PROC_CHILDREN), or there are more threads than processes on the node, all processes
    are read once. Either takes about 10 us per item.
    """

    def __init__(self, proc: Path = PROC, max_threads: int | None = None) -> None:
        self.proc = proc
        has_lists = (proc / "thread-self/children").exists()
        # the link count of /proc is the number of processes
        self._threads_left = (
            (proc.stat().st_nlink if max_threads is None else max_threads) if has_lists else 0
        )
        self._scanned: dict[int, list[int]] | None = None

    def tree(self, process: ProcessKey) -> Iterator[ProcessStat]:
        """Yield the process and its descendants, each after its parent; nothing if it is gone."""
        root = read_stat(process.pid, self.proc)
        if root is None or root.process != process:
            return
        waiting = [root]
        while waiting:
            stat = waiting.pop()
            yield stat
            children = (read_stat(pid, self.proc) for pid in self._children(stat))
            # a reused pid has another parent
            waiting += [child for child in children if child and child.parent == stat.process.pid]

    def _children(self, stat: ProcessStat) -> list[int]:
        if stat.threads > self._threads_left or self._scanned is not None:
            return self._all_children().get(stat.process.pid, [])
        self._threads_left -= stat.threads
        folder = f"{self.proc}/{stat.process.pid}/task"
        try:
            threads = os.listdir(folder)  # noqa: PTH208  # Path makes an object of each
        except OSError:
            return []
        lists = (_read(f"{folder}/{thread}/children") or b"" for thread in threads)
        return [int(pid) for text in lists for pid in text.split()]

    def _all_children(self) -> dict[int, list[int]]:
        if self._scanned is None:
            self._scanned = defaultdict(list)
            for pid in all_pids(self.proc):
                stat = read_stat(pid, self.proc)
                if stat:
                    self._scanned[stat.parent].append(pid)
        return self._scanned


def process_family(
    processes: Iterable[ProcessKey],
    cgroup: str | None = None,
    *,
    snapshot: ProcessSnapshot | None = None,
    root: Path = CGROUPS,
) -> set[int]:
    """Return the pids of the living processes, of all their descendants, and of the cgroup."""
    seen = snapshot or ProcessSnapshot()
    trees = (stat for process in processes for stat in seen.tree(process))
    return (pids_in_cgroup(cgroup, root) if cgroup else set()) | {
        stat.process.pid for stat in trees if not stat.is_over
    }


def login_name(uid: int) -> str:
    """Return the login name of a user; the number for a user of a directory service, or of a
    container's host.
    """
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def process_user(pid: int, proc: Path = PROC) -> str:
    """Return the login name of the real user of a process, empty if it has ended."""
    status = _read(f"{proc}/{pid}/status") or b""
    uids = next((line.split()[1] for line in status.splitlines() if line.startswith(b"Uid:")), None)
    return "" if uids is None else login_name(int(uids))

"""Owners of the processes on GPUs, from /proc."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from wattline.contract.identity import OWNER_KINDS, OwnerKind
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner, owners_of_path
from wattline_exporter.sensors.processes.procfs import (
    PROC,
    ProcessKey,
    find_process,
    is_process_alive,
)

Unresolved = Literal["not_visible", "no_owner"]
"""Why a process has no owner: it is in a PID namespace that the exporter does not see, or no kind
of owner fits.
"""


@dataclass(frozen=True, slots=True)
class OwnedProcess:
    """A process on a GPU, and its owner or why it has none.

    It has no `process` once it has ended, for as long as the driver still lists its pid.
    """

    pid: int
    process: ProcessKey | None = None
    owner: CgroupOwner | None = None
    unresolved: Unresolved | None = None


@dataclass(frozen=True, slots=True)
class AssignedGpus:
    """GPUs that a scheduler assigned to an owner whose cgroup exists, by index or UUID."""

    owner: CgroupOwner
    gpus: tuple[str, ...]


@dataclass
class GpuProcesses:
    """Processes of an owner that are on GPUs, and the UUIDs of these; `shared`: those with other
    owners' processes.
    """

    processes: set[ProcessKey] = field(default_factory=set)
    gpus: dict[str, None] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)


def users_of_gpus(
    pids_on: Mapping[str, Collection[int]], owned: Mapping[int, OwnedProcess]
) -> dict[CgroupOwner, GpuProcesses]:
    """Return the use of GPUs by owner, from the pids on each GPU."""
    using: dict[CgroupOwner, GpuProcesses] = defaultdict(GpuProcesses)
    for uuid, pids in pids_on.items():
        found = [
            (each.owner, each.process)
            for each in map(owned.__getitem__, pids)
            if each.owner and each.process
        ]
        is_shared = len({owner for owner, _ in found}) > 1
        for owner, process in found:
            using[owner].processes.add(process)
            using[owner].gpus.setdefault(uuid)
            if is_shared:
                using[owner].shared.add(uuid)
    return using


class ProcessOwners:
    """Owners of processes, each read once. `kinds`: the kinds of owners for which runs are
    discovered.
    """

    def __init__(self, kinds: Collection[OwnerKind], proc: Path = PROC) -> None:
        self._kinds = [kind for kind in OWNER_KINDS if kind in kinds]
        self._proc = proc
        self._known: dict[int, OwnedProcess] = {}

    def read(self, pids: Iterable[int]) -> Mapping[int, OwnedProcess]:
        """Return the owners of these processes. One that has ended since an earlier read has none.

        A pid that was missing in a read, or named no living process, is read again: it may be
        another process.
        """
        known = self._known
        self._known = {}
        for pid in pids:
            self._known[pid] = self._check(known[pid]) if pid in known else self._find(pid)
        return self._known

    def _check(self, known: OwnedProcess) -> OwnedProcess:
        """Return the process with this pid now: the known one, another one, or none."""
        if known.process and is_process_alive(known.process, self._proc):
            return known
        now = self._find(known.pid)
        if now.process or known.unresolved == "not_visible":
            return now
        return OwnedProcess(known.pid)

    def _find(self, pid: int) -> OwnedProcess:
        process = find_process(pid, self._proc)
        if process is None:
            return OwnedProcess(pid, unresolved="not_visible")
        owner = self._owner(pid)
        return OwnedProcess(pid, process, owner, None if owner else "no_owner")

    def _owner(self, pid: int) -> CgroupOwner | None:
        """Return the outermost owner of an enabled kind; a user also by the process's user ID."""
        found = {
            owner.kind: owner
            for path in _cgroups(pid, self._proc)
            for owner in reversed(owners_of_path(path))
        }
        for kind in self._kinds:
            if kind == "user":
                uid = found[kind].id if kind in found else _user_id(pid, self._proc)
                return CgroupOwner("user", uid, "") if uid else None
            if kind in found:
                return found[kind]
        return None


def _cgroups(pid: int, proc: Path) -> list[str]:
    """Return the paths of the process in all hierarchies; that of v2 is last."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [line.split(":", 2)[2] for line in lines if line.count(":") >= 2]


def _user_id(pid: int, proc: Path) -> str:
    try:
        return str((proc / str(pid)).stat().st_uid)
    except OSError:
        return ""

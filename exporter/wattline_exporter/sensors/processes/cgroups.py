"""Control groups, v2 and v1: location, processes and CPU time of a group, and lookup of a group by
its owner.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from wattline_exporter.sensors.processes.cgroup_paths import (
    PREFIX_LENGTH,
    CgroupIdentity,
    CgroupKind,
    parse_cgroup_path,
)

CGROUPS = Path("/sys/fs/cgroup")
MAX_LISTED = 5


class MissingCgroupError(ValueError):
    """A well-formed name of a cgroup that does not exist, or not yet."""


_DEEPEST = 32
_REFRESH_S = 5.0
_V1_CPU = ("cpu,cpuacct", "cpuacct,cpu", "cpuacct")
_V1 = (*_V1_CPU, "memory", "freezer", "devices", "pids", "systemd", "cpu")
"""Hierarchies of cgroup v1 in which services, containers and jobs have their groups."""


def cgroup_hierarchies(
    root: Path = CGROUPS, *, clock: Callable[[], float] = time.monotonic
) -> tuple[Path, ...]:
    """Return the mount points of the hierarchies that can name a group: v2 first, then v1's.

    New mounts are found within _REFRESH_S seconds of the `clock`. Raises ValueError.
    """
    return _find_hierarchies(root, int(clock() // _REFRESH_S))


@lru_cache(maxsize=8)
def _find_hierarchies(root: Path, _interval: int) -> tuple[Path, ...]:
    if (root / "cgroup.controllers").exists():
        return (root,)
    names = [name for name in _V1 if (root / name).is_dir()]
    if (root / "unified/cgroup.controllers").exists():
        names.insert(0, "unified")
    if not names:
        raise ValueError(
            f"there is no cgroup file system at {root}; mount the host's there, or name the "
            "processes by pid"
        )
    return tuple(root / name for name in names)


def describe_visible_cgroups(root: Path = CGROUPS) -> str:
    """Return one line about the cgroups that the exporter sees."""
    try:
        top, *others = cgroup_hierarchies(root)
    except ValueError as error:
        return str(error)
    if _is_inside(top):
        return (
            "only its own container's cgroups, since it has a separate cgroup namespace; to see "
            "the host's: "
            "docker run --cgroupns=host, or mount the host's /sys/fs/cgroup over the container's"
        )
    if top == root:
        return f"all of the host's (v2), at {root}"
    return (
        f"all of the host's ({'v1 and v2' if top.name == 'unified' and others else 'v1'}), at "
        f"{root}"
    )


def _is_inside(top: Path) -> bool:
    """Return True in a cgroup namespace: only a host's top cgroup lacks cgroup.events (man 7
    cgroups).
    """
    return (top / "cgroup.events").exists()


def cgroup_folder(path: str, root: Path = CGROUPS) -> Path:
    """Return the folder of a cgroup in the first hierarchy that has it. Raises ValueError if there
    is no such group.
    """
    relative = path.lstrip("/")
    for hierarchy in cgroup_hierarchies(root):
        folder = hierarchy / relative
        if (folder / "cgroup.procs").exists():
            return folder
    raise ValueError(f"no cgroup {path!r} below {root}")


def has_cgroup(path: str, root: Path = CGROUPS) -> bool:
    if not path.startswith("/") or ".." in path:
        return False
    try:
        cgroup_folder(path, root)
    except (OSError, ValueError):  # the name is too long for the file system, or has a NUL
        return False
    return True


def pids_in_cgroup(path: str, root: Path = CGROUPS) -> set[int]:
    """Return the pids in a cgroup and below it that are visible in this PID namespace."""
    return set(_pids(path, root)) - {
        0
    }  # the kernel's number for a process of another PID namespace


def _pids(path: str, root: Path) -> Iterator[int]:
    try:
        top = cgroup_folder(path, root)
    except (OSError, ValueError):
        return
    for folder, _ in _walk(top, path):
        try:
            yield from map(int, (folder / "cgroup.procs").read_text().split())
        except OSError:  # the cgroup is gone, or threaded: its processes are its parent's
            continue


def is_cgroup_populated(path: str, root: Path = CGROUPS) -> bool:
    """Return True if a process lives in the cgroup or below it, in any PID namespace."""
    try:
        folder = cgroup_folder(path, root)
        return "populated 1" in (folder / "cgroup.events").read_text()
    except FileNotFoundError:  # v1 has no such file
        return any(True for _ in _pids(path, root))
    except (OSError, ValueError):
        return False


def cgroup_cpu_seconds(path: str, root: Path = CGROUPS) -> float | None:
    """Return the CPU time of all processes ever in the cgroup and below it; None if it is gone or
    not counted.
    """
    relative = path.lstrip("/")
    try:
        hierarchies = cgroup_hierarchies(root)
    except ValueError:
        return None
    for hierarchy in hierarchies:
        try:
            if hierarchy.name in _V1_CPU:
                return int((hierarchy / relative / "cpuacct.usage").read_text()) / 1e9
            fields = dict(
                line.split()
                for line in (hierarchy / relative / "cpu.stat").read_text().splitlines()
            )
        except (OSError, ValueError):
            continue
        if "usage_usec" in fields:
            return int(fields["usage_usec"]) / 1e6
    return None


def _walk(folder: Path, path: str, depth: int = 0) -> Iterator[tuple[Path, str]]:
    """Yield the cgroup and all below it, each before those inside it."""
    yield folder, path
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in names if depth < _DEEPEST else ():
        yield from _walk(folder / name, f"{path.rstrip('/')}/{name}", depth + 1)


def resolve_cgroup(text: str, root: Path = CGROUPS) -> str:
    """Return the path of a cgroup by its name: `/…`, `slurm:JOB[.STEP]`, `container:ID`, `pod:UID`.

    Raises ValueError with a remedy if there is none, or more than one.
    """
    kind, _, name = text.partition(":")
    if text.startswith("/"):
        cgroup_hierarchies(root)
        if not has_cgroup(text, root):
            raise ValueError(
                f"no cgroup {text!r} below {root}{_advice(root, 'cat /proc/PID/cgroup')}"
            )
        return text.rstrip("/") or "/"
    if kind == "container":
        return _container(name, root)
    if kind == "slurm":
        return _slurm(name, root)
    if kind == "pod":
        return _pod(name, root)
    raise ValueError(
        f"{text!r} names no cgroup; it is /PATH, slurm:JOB[.STEP], container:ID or pod:UID"
    )


def _container(name: str, root: Path) -> str:
    identity = name.rpartition("/")[2].lower()  # without a runtime's prefix, as in containerd://ID
    if not re.fullmatch(rf"[0-9a-f]{{{PREFIX_LENGTH},64}}", identity):
        raise ValueError(
            f"container:{name}: a container's id is at least {PREFIX_LENGTH} of its 64 hex digits; "
            "see: docker ps --no-trunc, podman ps --no-trunc or crictl ps --no-trunc"
        )
    return _single_match(
        f"container:{name}",
        [
            (path, who.container)
            for path, who in _topmost(root, "container")
            if who.container.startswith(identity)
        ],
        _advice(root, "docker ps --no-trunc"),
    )


def _slurm(name: str, root: Path) -> str:
    match = re.fullmatch(r"(\d+)(?:\.([\w+-]+))?", name)
    if not match:
        raise ValueError(
            f"slurm:{name}: give the job's number, or JOB.STEP such as 4711.0 or 4711.batch; see: "
            "squeue"
        )
    job = match[1]
    step = match[2] or ""
    matches = [
        (path, who.id)
        for path, who in _topmost(root, "slurm")
        if who.job == job and who.step == step
    ]
    hint = _advice(
        root, "squeue -w $(hostname -s), and ProctrackType=proctrack/cgroup in slurm.conf"
    )
    return _single_match(f"slurm:{name}", matches, hint)


def _pod(name: str, root: Path) -> str:
    pod_uid = name.lower().replace("_", "-")
    matches = [(path, who.pod_uid) for path, who in _topmost(root, "pod") if who.pod_uid == pod_uid]
    return _single_match(
        f"pod:{name}", matches, _advice(root, "kubectl get pod NAME -o jsonpath={.metadata.uid}")
    )


def pod_cgroups(root: Path = CGROUPS) -> dict[str, str]:
    """Return the path of the cgroup of each pod by UID; the walk takes about 15 ms for 1,000
    cgroups.
    """
    try:
        return {who.pod_uid: path for path, who in reversed(list(_topmost(root, "pod")))}
    except ValueError:
        return {}


def _topmost(root: Path, kind: CgroupKind) -> Iterator[tuple[str, CgroupIdentity]]:
    """Yield the topmost cgroups of that kind, without those that a container or step made inside
    its own.
    """
    seen: set[str] = set()
    for hierarchy in cgroup_hierarchies(root):
        above = CgroupIdentity("other", "")
        top_path = "\0"
        for path, who in ((path, parse_cgroup_path(path)) for _, path in _walk(hierarchy, "/")):
            if who.kind != kind or (path.startswith(f"{top_path}/") and who.id == above.id):
                continue
            above = who
            top_path = path
            if path not in seen:
                seen.add(path)
                yield path, who


def _single_match(text: str, matches: list[tuple[str, str]], hint: str) -> str:
    if not matches:
        raise MissingCgroupError(f"the exporter sees no cgroup of {text}{hint}")
    if len(matches) > 1:
        paths = ", ".join(path for path, _ in matches[:MAX_LISTED])
        raise ValueError(
            f"{text} is not one cgroup but {len(matches)}: {paths}; give the path of one"
        )
    return matches[0][0]


def _advice(root: Path, command: str) -> str:
    if _is_inside(cgroup_hierarchies(root)[0]):
        return f"; it sees {describe_visible_cgroups(root)}"
    return f"; see: {command}"

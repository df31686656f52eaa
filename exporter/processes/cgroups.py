"""Control groups (v2): location, processes, and owner of a group."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CGROUPS = Path("/sys/fs/cgroup")
MAX_LISTED = 5
_DEEPEST = 32
_PREFIX_LENGTH = 12

CgroupKind = Literal["slurm", "container", "pod", "service", "user", "other"]


@dataclass(frozen=True, slots=True)
class CgroupIdentity:
    """Owner of a cgroup: `kind` and `id` of the innermost one in its path, and all outer ones.

    The id is a job or `JOB.STEP`, a container's 64 hex digits, a pod's UID, a unit, a user's number, or the path.
    """

    kind: CgroupKind
    id: str
    container: str = ""
    pod_uid: str = ""
    job: str = ""
    step: str = ""

    @property
    def text(self) -> str:
        """Text for a label; for a job, a container and a pod, `resolve_cgroup` takes it as well."""
        if self.kind == "container":
            return f"container:{self.id[:_PREFIX_LENGTH]}"
        return self.id if self.kind in ("service", "other") else f"{self.kind}:{self.id}"


# docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope, nerdctl-ID.scope; ID, libpod-ID and crio-ID
# of the cgroupfs drivers. conmon's scopes, which monitor a container, have similar names and are excluded.
_CONTAINER = re.compile(r"(?P<engine>[a-z][a-z-]*-)?(?P<id>[0-9a-f]{64})(\.scope)?")
# kubepods-burstable-podUID.slice, where - in the UID is _; podUID of the cgroupfs driver. Of a static pod the UID is a
# hash without dashes.
_POD = re.compile(
    r"(?:[a-z-]*kubepods-(?:[a-z]+-)?)?"
    r"pod(?P<uid>[0-9a-f]{8}(?:[_-][0-9a-f]{4}){3}[_-][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)
_PODMAN_POD = re.compile(r"machine-libpod_pod_(?P<uid>[0-9a-f]{64})\.slice")
_JOB = re.compile(r"job_(?P<job>\d+)")
_STEP = re.compile(r"step_(?P<step>[\w.+-]+)")
_USER = re.compile(r"user-(?P<uid>\d+)\.slice")


def parse_cgroup_path(path: str) -> CgroupIdentity:
    """Return a cgroup's owner by its path, as systemd, cgroupfs, and Slurm's plugins v1 and v2 name it."""
    container = pod_uid = job = step = service = user = ""
    innermost: Literal["", "container", "pod", "slurm"] = ""
    in_slurm = False
    before = ""
    for name in path.split("/"):
        in_slurm = in_slurm or "slurm" in name
        if match := _POD.fullmatch(name) or _PODMAN_POD.fullmatch(name):
            pod_uid, innermost = match["uid"].replace("_", "-"), "pod"
        elif (match := _CONTAINER.fullmatch(name)) and "conmon" not in (match["engine"] or ""):
            if before == "libpod_parent" and not match["engine"]:
                pod_uid, innermost = match["id"], "pod"
            else:
                container, innermost = match["id"], "container"
        elif in_slurm and (match := _JOB.fullmatch(name)):
            job, step, innermost = match["job"], "", "slurm"
        elif job and not step and (match := _STEP.fullmatch(name)):
            step = match["step"]
        elif match := _USER.fullmatch(name):
            user = match["uid"]
        elif name.endswith(".service"):
            service = service or name
        before = name
    job_id = f"{job}.{step}" if step else job
    kind: CgroupKind = innermost or ("user" if user else "service" if service else "other")
    ids = {"container": container, "pod": pod_uid, "slurm": job_id, "user": user, "service": service, "other": path}
    return CgroupIdentity(kind, ids[kind], container=container, pod_uid=pod_uid, job=job, step=step)


def cgroup_root(root: Path = CGROUPS) -> Path:
    """Return the mount point of cgroup v2: `root`, or below it on a hybrid host. Raises ValueError."""
    for folder in (root, root / "unified"):
        if (folder / "cgroup.controllers").exists():
            return folder
    if (root / "cpu").exists() or (root / "cpuacct").exists() or (root / "memory").exists():
        raise ValueError(
            f"{root} is cgroup v1, which the exporter does not support; name the processes by pid, or boot the machine "
            "with systemd.unified_cgroup_hierarchy=1"
        )
    raise ValueError(f"there is no cgroup file system at {root}; mount the host's there, or name the processes by pid")


def describe_visible_cgroups(root: Path = CGROUPS) -> str:
    """Return one line about the cgroups that the exporter sees."""
    try:
        top = cgroup_root(root)
    except ValueError as error:
        return str(error)
    if _is_inside(top):
        return (
            "only its own container's cgroups, since it has a separate cgroup namespace; to see the host's: "
            "docker run --cgroupns=host, or mount the host's /sys/fs/cgroup over the container's"
        )
    return f"all of the host's (v2{', on a hybrid host' if top != root else ''}), at {top}"


def _is_inside(top: Path) -> bool:
    """Return True in a cgroup namespace: only a host's top cgroup lacks cgroup.events (man 7 cgroups)."""
    return (top / "cgroup.events").exists()


def cgroup_folder(path: str, root: Path = CGROUPS) -> Path:
    """Return the folder of a cgroup. Raises ValueError if cgroup v2 is not mounted."""
    return cgroup_root(root) / path.lstrip("/")


def has_cgroup(path: str, root: Path = CGROUPS) -> bool:
    try:
        return path.startswith("/") and ".." not in path and (cgroup_folder(path, root) / "cgroup.procs").exists()
    except (OSError, ValueError):  # the name is too long for the file system, or has a NUL
        return False


def pids_in_cgroup(path: str, root: Path = CGROUPS) -> set[int]:
    """Return the pids in a cgroup and below it that are visible in this PID namespace."""
    pids: set[int] = set()
    try:
        top = cgroup_folder(path, root)
    except ValueError:
        return pids
    for folder, _ in _walk(top, path):
        try:
            pids |= {int(line) for line in (folder / "cgroup.procs").read_text().split()}
        except OSError:  # the cgroup is gone, or threaded: its processes are its parent's
            continue
    return pids - {0}  # the kernel's number for a process of another PID namespace


def is_cgroup_populated(path: str, root: Path = CGROUPS) -> bool:
    """Return True if a process lives in the cgroup or below it, in any PID namespace."""
    try:
        events = (cgroup_folder(path, root) / "cgroup.events").read_text()
    except (OSError, ValueError):
        return False
    return "populated 1" in events


def cgroup_cpu_seconds(path: str, root: Path = CGROUPS) -> float | None:
    """Return the CPU time of all processes ever in the cgroup and below it; None if it is gone."""
    try:
        stat = (cgroup_folder(path, root) / "cpu.stat").read_text()
    except (OSError, ValueError):
        return None
    fields = dict(line.split() for line in stat.splitlines())
    return int(fields["usage_usec"]) / 1e6 if "usage_usec" in fields else None


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
        cgroup_root(root)
        if not has_cgroup(text, root):
            raise ValueError(f"no cgroup {text!r} below {cgroup_root(root)}{_advice(root, 'cat /proc/PID/cgroup')}")
        return text.rstrip("/") or "/"
    if kind == "container":
        return _container(name, root)
    if kind == "slurm":
        return _slurm(name, root)
    if kind == "pod":
        return _pod(name, root)
    raise ValueError(f"{text!r} names no cgroup; it is /PATH, slurm:JOB[.STEP], container:ID or pod:UID")


def _container(name: str, root: Path) -> str:
    identity = name.rpartition("/")[2].lower()  # without a runtime's prefix, as in containerd://ID
    if not re.fullmatch(rf"[0-9a-f]{{{_PREFIX_LENGTH},64}}", identity):
        raise ValueError(
            f"container:{name}: a container's id is at least {_PREFIX_LENGTH} of its 64 hex digits; "
            "see: docker ps --no-trunc, podman ps --no-trunc or crictl ps --no-trunc"
        )
    return _single_match(
        f"container:{name}",
        [(path, who.container) for path, who in _topmost(root, "container") if who.container.startswith(identity)],
        _advice(root, "docker ps --no-trunc"),
    )


def _slurm(name: str, root: Path) -> str:
    match = re.fullmatch(r"(\d+)(?:\.([\w+-]+))?", name)
    if not match:
        raise ValueError(f"slurm:{name}: give the job's number, or JOB.STEP such as 4711.0 or 4711.batch; see: squeue")
    job, step = match[1], match[2] or ""
    matches = [(path, who.id) for path, who in _topmost(root, "slurm") if who.job == job and who.step == step]
    hint = _advice(root, "squeue -w $(hostname -s), and ProctrackType=proctrack/cgroup in slurm.conf")
    return _single_match(f"slurm:{name}", matches, hint)


def _pod(name: str, root: Path) -> str:
    pod_uid = name.lower().replace("_", "-")
    matches = [(path, who.pod_uid) for path, who in _topmost(root, "pod") if who.pod_uid == pod_uid]
    return _single_match(f"pod:{name}", matches, _advice(root, "kubectl get pod NAME -o jsonpath={.metadata.uid}"))


def _topmost(root: Path, kind: CgroupKind) -> Iterator[tuple[str, CgroupIdentity]]:
    """Yield the topmost cgroups of that kind, without those that a container or step made inside its own."""
    above = CgroupIdentity("other", "")
    top_path = "\0"
    for path, who in ((path, parse_cgroup_path(path)) for _, path in _walk(cgroup_root(root), "/")):
        if who.kind != kind or (path.startswith(f"{top_path}/") and who.id == above.id):
            continue
        above, top_path = who, path
        yield path, who


def _single_match(text: str, matches: list[tuple[str, str]], hint: str) -> str:
    if not matches:
        raise ValueError(f"the exporter sees no cgroup of {text}{hint}")
    if len(matches) > 1:
        paths = ", ".join(path for path, _ in matches[:MAX_LISTED])
        raise ValueError(f"{text} is not one cgroup but {len(matches)}: {paths}; give the path of one")
    return matches[0][0]


def _advice(root: Path, command: str) -> str:
    if _is_inside(cgroup_root(root)):
        return f"; it sees {describe_visible_cgroups(root)}"
    return f"; see: {command}"

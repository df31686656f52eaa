"""Owner of a process by the path of its control group, as systemd, container runtimes and Slurm
name it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from wattline.contract.identity import OWNER_KINDS, OwnerKind

PREFIX_LENGTH = 12
"""Digits of a container's id in names and labels, as `docker ps` shows it."""

CgroupKind = Literal["slurm", "container", "pod", "service", "user", "other"]


@dataclass(frozen=True, slots=True)
class CgroupIdentity:
    """Owner of a cgroup: `kind` and `id` of the innermost one in its path, and all outer ones.

    The id is a job or `JOB.STEP`, a container's 64 hex digits, a pod's UID, a unit, a user's
    number, or the path.
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
            return f"container:{self.id[:PREFIX_LENGTH]}"
        return self.id if self.kind in ("service", "other") else f"{self.kind}:{self.id}"


# docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope, nerdctl-ID.scope; ID,
# libpod-ID and crio-ID of the cgroupfs drivers. conmon's scopes, which monitor a container, have
# similar names and are excluded.
_CONTAINER = re.compile(r"(?P<engine>[a-z][a-z-]*-)?(?P<id>[0-9a-f]{64})(\.scope)?")
# kubepods-burstable-podUID.slice, where - in the UID is _; podUID of the cgroupfs driver. Of a
# static pod the UID is a hash without dashes.
_POD = re.compile(
    r"(?:[a-z-]*kubepods-(?:[a-z]+-)?)?"
    r"pod(?P<uid>[0-9a-f]{8}(?:[_-][0-9a-f]{4}){3}[_-][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)
_PODMAN_POD = re.compile(r"machine-libpod_pod_(?P<uid>[0-9a-f]{64})\.slice")
_JOB = re.compile(r"job_(?P<job>\d+)")
_STEP = re.compile(r"step_(?P<step>[\w.+-]+)")
_USER = re.compile(r"user-(?P<uid>\d+)\.slice")


def parse_cgroup_path(path: str) -> CgroupIdentity:
    """Return a cgroup's owner by its path, as systemd, cgroupfs, and Slurm's plugins v1 and v2 name
    it.
    """
    container = pod_uid = job = step = service = user = ""
    innermost: Literal["", "container", "pod", "slurm"] = ""
    in_slurm = False
    before = ""
    for name in path.split("/"):
        in_slurm = in_slurm or "slurm" in name
        if match := _POD.fullmatch(name) or _PODMAN_POD.fullmatch(name):
            pod_uid = match["uid"].replace("_", "-")
            innermost = "pod"
        elif (match := _CONTAINER.fullmatch(name)) and "conmon" not in (match["engine"] or ""):
            if before == "libpod_parent" and not match["engine"]:
                pod_uid = match["id"]
                innermost = "pod"
            else:
                container = match["id"]
                innermost = "container"
        elif in_slurm and (match := _JOB.fullmatch(name)):
            job = match["job"]
            step = ""
            innermost = "slurm"
        elif job and not step and (match := _STEP.fullmatch(name)):
            step = match["step"]
        elif match := _USER.fullmatch(name):
            user = match["uid"]
        elif name.endswith(".service"):
            service = service or name
        before = name
    job_id = f"{job}.{step}" if step else job
    kind: CgroupKind = innermost or ("user" if user else "service" if service else "other")
    ids = {
        "container": container,
        "pod": pod_uid,
        "slurm": job_id,
        "user": user,
        "service": service,
        "other": path,
    }
    return CgroupIdentity(kind, ids[kind], container=container, pod_uid=pod_uid, job=job, step=step)


@dataclass(frozen=True, slots=True)
class CgroupOwner:
    """Job, pod, container, service or user that owns processes: its kind, its id, and the path of
    its cgroup.
    """

    kind: OwnerKind
    id: str
    path: str


def owners_of_path(path: str) -> list[CgroupOwner]:
    """Return the owners of a cgroup, at most one of each kind: the outermost, Slurm job before pod
    before container.
    """
    found: dict[OwnerKind, CgroupOwner] = {}
    for end in [*(i for i, character in enumerate(path) if character == "/" and i), len(path)]:
        outer = path[:end]
        who = parse_cgroup_path(outer)
        ids: dict[OwnerKind, str] = {
            "slurm": who.job,
            "kubernetes": who.pod_uid,
            "container": who.container,
        }
        if who.kind in ("service", "user"):
            ids[who.kind] = who.id
        for kind, identity in ids.items():
            if identity and kind not in found:
                found[kind] = CgroupOwner(kind, identity, outer)
    return [found[kind] for kind in OWNER_KINDS if kind in found]

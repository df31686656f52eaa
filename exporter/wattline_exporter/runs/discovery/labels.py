"""Run ids and labels of discovered runs.

Sources of labels: the environment of a Slurm job, the pod's, the unit, the user's login name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from wattline.contract.api import OWNER_LABELS
from wattline.contract.identity import owner_run_id
from wattline_exporter.runs.discovery.pods import KnownPod
from wattline_exporter.sensors.processes.cgroup_paths import PREFIX_LENGTH, CgroupOwner
from wattline_exporter.sensors.processes.procfs import PROC
from wattline_exporter.sensors.processes.procfs import login_name as find_login_name
from wattline_exporter.sensors.readings import printable

MAX_VALUE = 128
SLURM_CONF = Path("/etc/slurm/slurm.conf")
_DEFAULT_CLUSTER = "cluster"
_SLURM_LABELS = {
    "user": "SLURM_JOB_USER",
    "account": "SLURM_JOB_ACCOUNT",
    "partition": "SLURM_JOB_PARTITION",
    "job_name": "SLURM_JOB_NAME",
    "array_id": "SLURM_ARRAY_JOB_ID",
}


@dataclass(frozen=True, slots=True)
class Description:
    """Run id and labels of an owner. A second run of the same owner has the same `run_id`.

    `gpus`: indices or UUIDs of all GPUs that the scheduler assigned; empty if they are unknown.
    `some_gpus`: those of a part of the owner, as of one step of a Slurm job.
    """

    run_id: str
    labels: dict[str, str]
    gpus: tuple[str, ...] = ()
    some_gpus: tuple[str, ...] = ()


class OwnerLabels:
    """Descriptions of owners. `allowed`: the labels to export. `find_pod` returns a pod by its UID
    and its GPUs.
    """

    def __init__(
        self,
        allowed: Collection[str] = OWNER_LABELS,
        *,
        proc: Path = PROC,
        slurm_conf: Path = SLURM_CONF,
        login_name: Callable[[int], str] | None = None,
        find_pod: Callable[[str, Collection[str]], KnownPod | None] = lambda *_: None,
    ) -> None:
        self._allowed = allowed
        self._proc = proc
        self._slurm_conf = slurm_conf
        self._login_name = login_name or find_login_name
        self._find_pod = find_pod

    def describe(
        self, owner: CgroupOwner, pid: int | None, started_at: float, seen_on: Collection[str] = ()
    ) -> Description:
        """Return the run id and the labels of an owner.

        `pid` is one of its processes, `started_at` Unix time, `seen_on` the UUIDs of GPUs that its
        processes use.
        """
        labels: dict[str, str] = {}
        gpus: tuple[str, ...] = ()
        some_gpus: tuple[str, ...] = ()
        match owner.kind:
            case "slurm":
                environment = _environment(pid, self._proc) if pid else {}
                labels = {
                    name: environment.get(variable, "") for name, variable in _SLURM_LABELS.items()
                }
                cluster = environment.get("SLURM_CLUSTER_NAME") or _cluster_name(self._slurm_conf)
                # srun alone sets the GPUs of its step only; both name GPUs as NVML does, not as the
                # job's cgroup
                gpus, some_gpus = (
                    _listed(environment, name) for name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS")
                )
                restarts = environment.get("SLURM_RESTART_COUNT", "")
                attempt = int(restarts) + 1 if restarts.isdecimal() else 1
                run_id = owner_run_id(
                    "slurm", cluster, owner.id if attempt == 1 else f"{owner.id}.{attempt}"
                )
            case "kubernetes":
                run_id = f"pod-{owner.id}"
                pod = self._find_pod(owner.id, seen_on)
                labels, gpus = (pod.labels(), pod.gpus) if pod else ({}, ())
            case "container":
                run_id = f"container-{owner.id[:PREFIX_LENGTH]}"
            case "service":
                labels = {"unit": owner.id}
                run_id = owner_run_id(
                    "unit", owner.id.removesuffix(".service"), f"{started_at:.0f}"
                )
            case "user":
                name = self._login_name(int(owner.id))
                labels = {"user": name}
                run_id = owner_run_id("user", name, f"{started_at:.0f}")
        kept = {
            re.sub(r"\W", "_", name, flags=re.ASCII): printable(text)[:MAX_VALUE]
            for name, text in labels.items()
            if text and name in self._allowed
        }
        return Description(run_id, {"discovered": owner.kind, **kept}, gpus, some_gpus)


def _listed(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(filter(None, environment.get(name, "").split(",")))


def _environment(pid: int, proc: Path) -> Mapping[str, str]:
    """Return the environment of a process at its start; empty without the permission to read it."""
    try:
        content = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.decode(errors="replace").partition("=") for item in content.split(b"\0"))
    return {name: value for name, _, value in pairs if name}


def _cluster_name(conf: Path) -> str:
    try:
        text = conf.read_text(errors="replace")
    except OSError:
        return _DEFAULT_CLUSTER
    match = re.search(r"^\s*ClusterName\s*=\s*(\S+)", text, re.IGNORECASE | re.MULTILINE)
    return match[1] if match else _DEFAULT_CLUSTER

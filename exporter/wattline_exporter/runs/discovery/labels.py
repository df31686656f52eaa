"""Run ids and labels of discovered runs.

Sources of labels: the environment of a Slurm job, the pod's, the unit, the user's login name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from wattline.contract.api import MAX_LABEL_VALUE, OWNER_LABELS
from wattline.contract.identity import owner_run_id
from wattline_exporter.runs.discovery.pods import KnownPod
from wattline_exporter.runs.discovery.slurm import SLURM_CONF, describe_job
from wattline_exporter.sensors.processes.cgroup_paths import PREFIX_LENGTH, CgroupOwner
from wattline_exporter.sensors.processes.procfs import PROC
from wattline_exporter.sensors.processes.procfs import login_name as find_login_name
from wattline_exporter.sensors.readings import printable


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
                job = describe_job(owner.id, pid, self._proc, self._slurm_conf)
                run_id = job.run_id
                labels = job.labels
                gpus = job.gpus
                some_gpus = job.some_gpus
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
            re.sub(r"\W", "_", name, flags=re.ASCII): printable(text)[:MAX_LABEL_VALUE]
            for name, text in labels.items()
            if text and name in self._allowed
        }
        return Description(run_id, {"discovered": owner.kind, **kept}, gpus, some_gpus)

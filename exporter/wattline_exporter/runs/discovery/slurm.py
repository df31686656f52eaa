"""Slurm jobs: run ids and labels from their environment, GPUs from the folder of a prolog.

`sensors/processes/cgroup_paths.py` recognizes the cgroups of jobs and steps, as it does for pods
and containers.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wattline.contract.identity import owner_run_id
from wattline_exporter.runs.discovery.owners import AssignedGpus
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.processes.cgroups import resolve_cgroup

RETRY_S = 5.0
"""Time between two searches for the cgroup of a job: a search reads all cgroups."""
_LONGEST = 65_536
SLURM_CONF = Path("/etc/slurm/slurm.conf")
_DEFAULT_CLUSTER = "cluster"
_LABELS = {
    "user": "SLURM_JOB_USER",
    "account": "SLURM_JOB_ACCOUNT",
    "partition": "SLURM_JOB_PARTITION",
    "job_name": "SLURM_JOB_NAME",
    "array_id": "SLURM_ARRAY_JOB_ID",
}


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """Run id, labels and GPUs of a job; `some_gpus` are those of one step."""

    run_id: str
    labels: dict[str, str]
    gpus: tuple[str, ...]
    some_gpus: tuple[str, ...]


def describe_job(job_id: str, pid: int | None, proc: Path, conf: Path) -> SlurmJob:
    """Return the job by the environment of its process `pid`.

    `conf` is slurm.conf, which names the cluster where the environment does not.
    """
    environment = _environment(pid, proc) if pid else {}
    cluster = environment.get("SLURM_CLUSTER_NAME") or _cluster_name(conf)
    # srun alone sets the GPUs of its step only; both name GPUs as NVML does, not as the job's
    # cgroup
    gpus, some_gpus = (_listed(environment, name) for name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS"))
    restarts = environment.get("SLURM_RESTART_COUNT", "")
    attempt = int(restarts) + 1 if restarts.isdecimal() else 1
    return SlurmJob(
        owner_run_id("slurm", cluster, job_id if attempt == 1 else f"{job_id}.{attempt}"),
        {name: environment.get(variable, "") for name, variable in _LABELS.items()},
        gpus,
        some_gpus,
    )


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


class JobMappingFolder:
    """Jobs and their GPUs from a folder that a prolog script writes, as for dcgm-exporter.

    Each file is named by the index or UUID of a GPU, or INDEX.INSTANCE for a MIG instance, and has
    one job ID per line. https://github.com/NVIDIA/dcgm-exporter, option --hpc-job-mapping-dir.
    `read` blocks for some milliseconds.
    """

    def __init__(
        self,
        folder: Path,
        resolve: Callable[[str], str] = resolve_cgroup,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._resolve = resolve
        self._clock = clock
        self._paths: dict[str, str] = {}
        self._retry_s: dict[str, float] = {}

    def read(self) -> Mapping[CgroupOwner, AssignedGpus]:
        """Return the jobs whose cgroup exists. A folder that is missing has none."""
        gpus: dict[str, list[str]] = defaultdict(list)
        for gpu, jobs in self._files():
            for job in jobs:
                gpus[job].append(gpu.partition(".")[0] if gpu[:1].isdecimal() else gpu)
        self._find_cgroups(gpus.keys())
        owners = {job: CgroupOwner("slurm", job, path) for job, path in self._paths.items()}
        return {
            owner: AssignedGpus(owner, tuple(dict.fromkeys(gpus[job])))
            for job, owner in owners.items()
        }

    def _files(self) -> list[tuple[str, list[str]]]:
        try:
            files = sorted(path for path in self._folder.iterdir() if not path.name.startswith("."))
        except OSError:
            return []
        found = []
        for path in files:
            with suppress(OSError, UnicodeDecodeError):  # an epilog removes files at any time
                if path.is_file():
                    found.append((path.name, path.read_text()[:_LONGEST].split()))
        return found

    def _find_cgroups(self, jobs: Collection[str]) -> None:
        self._paths = {job: path for job, path in self._paths.items() if job in jobs}
        self._retry_s = {job: s for job, s in self._retry_s.items() if job in jobs}
        for job in jobs - self._paths.keys():
            if self._clock() < self._retry_s.get(job, 0.0):
                continue
            try:
                self._paths[job] = self._resolve(f"slurm:{job}")
            except ValueError:  # not yet: the prolog runs before the job
                self._retry_s[job] = self._clock() + RETRY_S

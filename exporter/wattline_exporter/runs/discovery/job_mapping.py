"""GPUs assigned to Slurm jobs, from a folder that a prolog script writes, as for dcgm-exporter.

Each file is named by the index or UUID of a GPU, or INDEX.INSTANCE for a MIG instance, and has one
job ID per line. https://github.com/NVIDIA/dcgm-exporter, option --hpc-job-mapping-dir
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.processes.cgroups import resolve_cgroup

RETRY_S = 5.0
"""Time between two searches for the cgroup of a job: a search reads all cgroups."""
_LONGEST = 65_536


@dataclass(frozen=True, slots=True)
class AssignedJob:
    """A Slurm job whose cgroup exists, and the GPUs that were assigned to it, by index or UUID."""

    owner: CgroupOwner
    gpus: tuple[str, ...]


class JobMappingFolder:
    """Assigned jobs of this node; `read` blocks for some milliseconds."""

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

    def read(self) -> Mapping[CgroupOwner, AssignedJob]:
        """Return the jobs whose cgroup exists. A folder that is missing has none."""
        gpus: dict[str, list[str]] = defaultdict(list)
        for gpu, jobs in self._files():
            for job in jobs:
                gpus[job].append(gpu.partition(".")[0] if gpu[:1].isdecimal() else gpu)
        self._find_cgroups(gpus.keys())
        owners = {job: CgroupOwner("slurm", job, path) for job, path in self._paths.items()}
        return {
            owner: AssignedJob(owner, tuple(dict.fromkeys(gpus[job])))
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

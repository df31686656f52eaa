"""Real cgroups (v2) with unmodified programs in them, for tests as root."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from wattline_exporter.sensors.processes.procfs import ProcessKey, find_process
from wattline_exporter.sensors.readings import boottime


def cgroup2_mount() -> Path | None:
    """Return the mount point of cgroup v2 where this process may create groups, or None."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2" and os.geteuid() == 0 and os.access(where, os.W_OK):
            return Path(where)
    return None


@dataclass
class Program:
    """A program that sleeps until it is stopped. `ended_s`: time at which its exit was seen
    (CLOCK_BOOTTIME).
    """

    process: subprocess.Popen[bytes]
    key: ProcessKey
    ended_s: float = 0.0

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.ended_s = boottime()


@dataclass
class Groups:
    """Cgroups below one folder, which are removed with their processes."""

    root: Path
    top: str
    programs: list[Program] = field(default_factory=list)

    def start(
        self, path: str | None = None, *, program: str = "sleep", **environment: str
    ) -> Program:
        """Start a program in the group, which is made; None is this process's own group."""
        process = subprocess.Popen(
            [program, "600"], env={"PATH": os.environ["PATH"], **environment}
        )
        if path is not None:
            self.make(path)
            (self.root / self.top / path / "cgroup.procs").write_text(str(process.pid))
        key = find_process(process.pid)
        assert key
        self.programs.append(Program(process, key))
        return self.programs[-1]

    def make(self, path: str) -> None:
        (self.root / self.top / path).mkdir(parents=True, exist_ok=True)

    def remove(self, path: str = "") -> None:
        """Remove the empty groups of a path and below it, as soon as the kernel lets them go."""
        top = self.root / self.top / path
        for folder in sorted([*top.rglob("*"), top], reverse=True):
            for _ in range(200):
                if not folder.is_dir():
                    break
                try:
                    folder.rmdir()
                except OSError:
                    time.sleep(0.01)


@contextmanager
def cgroups(root: Path) -> Iterator[Groups]:
    groups = Groups(root, f"wattline-test-{os.getpid()}.slice")
    try:
        yield groups
    finally:
        for program in groups.programs:
            program.stop()
        groups.remove()

"""Proc file system of plain files, with the parts that the exporter reads."""

from __future__ import annotations

import shutil
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

TICKS_PER_S = 100
PAGE = 4_096


@dataclass
class FakeProcess:
    """Process with times in ticks."""

    pid: int
    parent: int
    started: int
    own: int = 0
    waited: int = 0
    name: str = "python3"
    state: str = "S"
    threads: int = 1
    rss_bytes: int = 0
    is_kernel: bool = False
    cgroup: str = "/"

    @property
    def stat(self) -> str:
        fields = ["0"] * 50
        fields[0], fields[1] = self.state, str(self.parent)
        fields[6] = str(0x0020_8040 if self.is_kernel else 0x0040_0100)
        fields[11], fields[12] = str(self.own - self.own // 3), str(self.own // 3)
        fields[13], fields[14] = str(self.waited - self.waited // 2), str(self.waited // 2)
        fields[17], fields[19], fields[21] = (
            str(self.threads),
            str(self.started),
            str(self.rss_bytes // PAGE),
        )
        return f"{self.pid} ({self.name}) {' '.join(fields)}\n"


@dataclass
class ProcessTree:
    """Tree of processes. `has_children_lists`: the kernel has /proc/PID/task/TID/children."""

    root: Path
    has_children_lists: bool = True
    processes: dict[int, FakeProcess] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        if self.has_children_lists:
            (self.root / "thread-self").mkdir()
            (self.root / "thread-self/children").write_text("")
        self.busy(0)

    def busy(self, ticks: int, idle: int = 0, steal: int = 0) -> None:
        """Add CPU time of the node, in ticks."""
        (self.root / "stat").write_text(
            f"cpu  {ticks} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
        )

    def put(self, process: FakeProcess) -> FakeProcess:
        self.processes[process.pid] = process
        self.show()
        return process

    def add(self, pid: int, parent: int = 1, started: int = 1, **more: object) -> FakeProcess:
        return self.put(FakeProcess(pid, parent, started, **more))  # type: ignore[arg-type]  # the fields of FakeProcess

    def add_quietly(self, pid: int, parent: int = 1, started: int = 1, **more: object) -> None:
        """Add a process without writing files, since writing all after each of a thousand takes
        long.
        """
        self.processes[pid] = FakeProcess(pid, parent, started, **more)  # type: ignore[arg-type]  # the fields of FakeProcess

    def remove(self, pid: int) -> None:
        del self.processes[pid]
        shutil.rmtree(self.root / str(pid))
        self.show()

    def show(self) -> None:
        """Write all changes."""
        children: dict[int, list[str]] = defaultdict(list)
        for process in self.processes.values():
            children[process.parent].append(str(process.pid))
        for pid, process in self.processes.items():
            folder = self.root / str(pid)
            (folder / f"task/{pid}").mkdir(parents=True, exist_ok=True)
            (folder / "stat").write_text(process.stat)
            (folder / "cgroup").write_text(f"0::{process.cgroup}\n")
            if self.has_children_lists:
                own = children[pid]
                (folder / f"task/{pid}/children").write_text("".join(f"{child} " for child in own))

    def smaps(self, pid: int, pss_kb: int, uss_kb: int) -> Path:
        file = self.root / str(pid) / "smaps_rollup"
        file.parent.mkdir(exist_ok=True)
        clean, dirty = uss_kb // 4, uss_kb - uss_kb // 4
        file.write_text(
            "55d0c0000000-7ffd00000000 ---p 00000000 00:00 0    [rollup]\n"
            f"Rss:            {pss_kb * 2:8} kB\nPss:            {pss_kb:8} kB\nPss_Dirty:      "
            f"{dirty:8} kB\n"
            f"Shared_Clean:          4 kB\nPrivate_Clean:  {clean:8} kB\nPrivate_Dirty:  {dirty:8} "
            "kB\n"
        )
        return file

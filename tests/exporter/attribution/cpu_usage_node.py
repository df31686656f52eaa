"""Fake node whose processes and cgroups are files and whose clock is a number."""

from __future__ import annotations

from tests.fakes.cgroup_tree import CgroupTree
from tests.fakes.process_tree import ProcessTree
from wattline_exporter.attribution.cpu_time import CpuUsageReader, ScannedRun
from wattline_exporter.sensors.processes.procfs import find_process


class Node:
    """Fake node; times are in ticks of 10 ms, as in procfs."""

    def __init__(self, folder, **more):
        self.proc = ProcessTree(folder / "proc", **more)
        self.groups = CgroupTree(folder / "cgroup")
        self.now_s = 100.0
        self.usage = CpuUsageReader(self.proc.root, self.groups.root, clock=lambda: self.now_s)
        self.runs: dict[str, ScannedRun] = {}

    def read(self):
        self.proc.show()
        self.now_s += 1
        return self.usage.read(self.runs)

    def cpu_s(self):
        return {run_id: run.cpu_s for run_id, run in self.read().runs.items()}

    def run(self, run_id, *pids, cgroup=None, is_discovered=False):
        found = [find_process(pid, self.proc.root) for pid in pids]
        self.runs[run_id] = ScannedRun(
            tuple(process for process in found if process), cgroup, 0 if is_discovered else 2
        )

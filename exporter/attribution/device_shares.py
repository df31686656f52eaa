"""Which runs hold which device, and how much each of them loads it (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from exporter.attribution.policy import NO_RUN, Tenancy
from exporter.model import Device, GpuProcess
from exporter.runs.record import RunRecord


def of_gpu(
    device: Device, runs: Iterable[RunRecord], processes: Iterable[GpuProcess], pids: Mapping[str, Collection[int]]
) -> Tenancy:
    """A run loads a GPU by its processes there: by the time their kernels ran, else by their memory, else by number.

    `pids` are those of each run that named processes or a cgroup. A run that named none stands for all processes
    there that are of no other run; it and the runs with processes hold the GPU from their begin to their end.
    """
    holding = [run for run in runs if device in run.measured()]
    loads: dict[str, float] = {run.run_id: 0.0 for run in holding}
    found = list(processes)
    for process, weight in zip(found, _weights(found), strict=True):
        owner = next((run.run_id for run in holding if process.pid in pids.get(run.run_id, ())), NO_RUN)
        loads[owner] = loads.get(owner, 0.0) + weight
    return Tenancy(_claimed(loads, [run.run_id for run in holding if run.run_id not in pids]))


def _weights(processes: list[GpuProcess]) -> list[float]:
    if any(process.utilization is not None for process in processes):
        return [process.utilization or 0.0 for process in processes]
    if any(process.memory_bytes is not None for process in processes):
        return [float(process.memory_bytes or 0) for process in processes]
    return [1.0] * len(processes)


def _claimed(loads: dict[str, float], claimants: list[str]) -> dict[str, float]:
    """What is of no run goes to those who stand for it, in equal parts."""
    if not claimants:
        return loads
    unclaimed = loads.pop(NO_RUN, 0.0)
    return {
        run_id: load + (unclaimed / len(claimants) if run_id in claimants else 0.0) for run_id, load in loads.items()
    }


def of_cpu(
    device: Device, runs: Iterable[RunRecord], cpu_s: Mapping[str, float], busy_s: float, pids: Mapping[str, object]
) -> Tenancy:
    """A run loads the node's CPUs by the CPU time of its processes since the last look; `busy_s` is that of all.

    Processes are not bound to packages, so each package and its memory are divided alike.
    """
    holding = [run for run in runs if device in run.measured()]
    loads = {run.run_id: max(0.0, cpu_s.get(run.run_id, 0.0)) for run in holding}
    loads[NO_RUN] = max(0.0, busy_s - sum(loads.values()))
    return Tenancy(_claimed(loads, [run.run_id for run in holding if run.run_id not in pids]))

"""Loads of the runs that hold a device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wattline_exporter.sensors.readings import GpuProcess

NO_RUN = ""


class GpuUse(NamedTuple):
    """Time of a run that used GPUs of another one (CLOCK_BOOTTIME); the end is None while it
    runs.
    """

    run_id: str
    begin_s: float
    end_s: float | None


@dataclass(frozen=True, slots=True)
class DeviceLoads:
    """Runs that hold a device, and their loads in any one unit. The key NO_RUN is the load of other
    processes.
    """

    loads: Mapping[str, float] = field(default_factory=dict)

    @property
    def holders(self) -> list[str]:
        return list(self.loads)


class GpuLoadPeriod(NamedTuple):
    """Mean loads of the runs that hold a GPU, between two readings of its processes
    (CLOCK_BOOTTIME).
    """

    begin_s: float
    end_s: float
    loads: Mapping[str, float]


def gpu_loads(
    holders: Sequence[str], processes: Iterable[GpuProcess], pids: Mapping[str, Collection[int]]
) -> DeviceLoads:
    """Return the loads on a GPU that the runs `holders` hold, by kernel time, else by memory, else
    by process count.

    `pids` has the processes of each run that named processes or a cgroup. The runs that named none
    share the load of all processes that belong to no other run. All `holders` hold the GPU, even
    without load.
    """
    loads: dict[str, float] = dict.fromkeys(holders, 0.0)
    running = list(processes)
    for process, weight in zip(running, _weights(running), strict=True):
        owner = next((run_id for run_id in holders if process.pid in pids.get(run_id, ())), NO_RUN)
        loads[owner] = loads.get(owner, 0.0) + weight
    return DeviceLoads(_assign_rest(loads, holders, pids))


def cpu_loads(
    holders: Sequence[str], cpu_s: Mapping[str, float], busy_s: float, pids: Mapping[str, object]
) -> DeviceLoads:
    """Return the loads on a CPU package or its memory, by the runs' CPU time since the last scan.

    `busy_s` is the CPU time of the whole node. Processes are not bound to packages, so all have the
    same loads.
    """
    loads = {run_id: max(0.0, cpu_s.get(run_id, 0.0)) for run_id in holders}
    loads[NO_RUN] = max(0.0, busy_s - sum(loads.values()))
    return DeviceLoads(_assign_rest(loads, holders, pids))


def _weights(processes: list[GpuProcess]) -> list[float]:
    if any(process.utilization is not None for process in processes):
        return [process.utilization or 0.0 for process in processes]
    if any(process.memory_bytes is not None for process in processes):
        return [float(process.memory_bytes or 0) for process in processes]
    return [1.0] * len(processes)


def _assign_rest(
    loads: dict[str, float], holders: Sequence[str], pids: Mapping[str, object]
) -> dict[str, float]:
    """Divide the load of no run equally among the runs that named no processes, if there are
    any.
    """
    claimants = [run_id for run_id in holders if run_id not in pids]
    if not claimants:
        return loads
    rest = loads.pop(NO_RUN, 0.0)
    return {
        run_id: load + (rest / len(claimants) if run_id in claimants else 0.0)
        for run_id, load in loads.items()
    }


def divide_by_weight(amount: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Divide by weight into whole numbers; the last one gets the rounding difference."""
    total = sum(weights.values())
    shares = {name: int(amount * (weight / total)) for name, weight in weights.items()}
    shares[next(reversed(shares))] += amount - sum(shares.values())
    return shares

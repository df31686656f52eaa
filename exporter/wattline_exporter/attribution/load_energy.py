"""Energies of GPUs, divided among runs by the mean loads between two readings of their
processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from wattline.contract.api import OTHER_RUNS
from wattline.contract.metrics import RUN_LOAD_ENERGY, RUN_LOAD_TIMESTAMP
from wattline.contract.work import SHARE_POLICY
from wattline_exporter.attribution.device_loads import NO_RUN, DeviceLoads, GpuLoadPeriod
from wattline_exporter.attribution.policy import UJ_PER_J, split_energy
from wattline_exporter.sensors.readings import Device, Reading

KEPT_S = 60.0
"""Time for which the energy of a run that holds the GPU no more is reported."""


class _GpuEnergy:
    def __init__(self) -> None:
        self.end_s, self.end_j = float("-inf"), 0.0
        """End of the last period, and the energy of the GPU up to it."""
        self.runs: dict[str, tuple[int, float]] = {}
        """Microjoules of each run, and the end of its last period."""


class LoadEnergies:
    """Energies of runs by the loads of the same time, known about two seconds later. Times are
    CLOCK_BOOTTIME.

    Attributed energies are known at once, by the loads before. Energies start at 0 with the
    exporter.
    """

    def __init__(self) -> None:
        self._gpus: dict[Device, _GpuEnergy] = {}

    def add(
        self,
        device: Device,
        periods: Iterable[GpuLoadPeriod],
        energy_at: Callable[[float], float],
        idle_w: float,
    ) -> None:
        """Add consecutive periods, the first one with several runs; `energy_at` is the energy up to
        an instant.
        """
        periods = list(periods)
        if device not in self._gpus and all(
            len(loads.keys() - {NO_RUN}) < 2 for _, _, loads in periods
        ):
            return
        gpu = self._gpus.setdefault(device, _GpuEnergy())
        for begin_s, end_s, loads in periods:
            begin_j = gpu.end_j if begin_s == gpu.end_s else energy_at(begin_s)
            gpu.end_s, gpu.end_j = end_s, max(begin_j, energy_at(end_s))
            energy_uj, idle_uj = (
                int((gpu.end_j - begin_j) * UJ_PER_J),
                int(idle_w * (end_s - begin_s) * UJ_PER_J),
            )
            parts_uj = split_energy(
                energy_uj, idle_uj, DeviceLoads(loads), SHARE_POLICY, idle_by_load=False
            )
            for run_id, part_uj in parts_uj.items():
                name = OTHER_RUNS if run_id.startswith(OTHER_RUNS) else run_id
                gpu.runs[name] = gpu.runs.get(name, (0, 0.0))[0] + part_uj, end_s
        gpu.runs = {
            run_id: each for run_id, each in gpu.runs.items() if each[1] >= gpu.end_s - KEPT_S
        }

    def keep(self, devices: Iterable[Device]) -> None:
        """Forget all other GPUs."""
        self._gpus = {device: self._gpus[device] for device in devices if device in self._gpus}

    def readings(self, unix_offset_s: float) -> Iterator[Reading]:
        """Yield the energies, and the Unix times up to which they are known."""
        for device, gpu in self._gpus.items():
            if gpu.runs and device.component:
                at = round(gpu.end_s + unix_offset_s, 3)
                yield Reading(RUN_LOAD_TIMESTAMP, (device.component, device.id), at)
                for run_id, (energy_uj, _) in gpu.runs.items():
                    yield Reading(
                        RUN_LOAD_ENERGY, (run_id, device.component, device.id), energy_uj / UJ_PER_J
                    )

"""One GPU: energy at each poll, readings once a second, processes at a slower rate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pynvml

from wattline_exporter.sensors.nvml.card import GpuHandle, NvmlQuery, decode_fields, field_call
from wattline_exporter.sensors.nvml.gpu_readings import GpuReadings
from wattline_exporter.sensors.nvml.mig import MigInstances
from wattline_exporter.sensors.readings import Device, GpuProcess, Poll, Reading

_PROCESS_TYPES = ("Compute", "Graphics", "MPSCompute")
_UNKNOWN_MEMORY = (1 << 64) - 1
_SAMPLE_PERIOD_US = 1_000_000
"""Longest time between two samples of a driver (nvmlUtilization_t)."""
_SILENT_US = 30_000_000
"""Time without new samples after which the driver's clock may have been set back."""


class GpuProcessReader:
    """Reader of the processes of one GPU."""

    def __init__(self, card: GpuHandle, query: NvmlQuery) -> None:
        self._card = card
        self._query = query
        self._read_until_us = 0
        """Time of the last read, by the driver's clock."""
        self._offset_us: int | None = None
        self._newest_us = self._updated_us = 0

    def of_gpu(self) -> list[GpuProcess]:
        """Return the processes with their mean utilization since the last read, at first over the
        last second.

        Utilization is None where the GPU reports none for any process, and 0 where it reports none
        for this one.
        """
        memory = self.memory(self._card.handle)
        shares = self._shares()
        return [
            GpuProcess(pid, used, None if shares is None else shares.get(pid, 0.0))
            for pid, used in memory.items()
        ]

    def of_instances(self, instances: Iterable[tuple[str, Any]]) -> list[GpuProcess]:
        """Return the processes on instances, given by UUID and handle. The driver reports no
        utilization for them.
        """
        return [
            GpuProcess(pid, used, None, uuid)
            for uuid, handle in instances
            for pid, used in self.memory(handle).items()
        ]

    def memory(self, handle: Any) -> dict[int, int | None]:
        """Return memory by PID. A process with compute and graphics is in two lists, with the same
        memory in each.
        """
        memory_by_pid: dict[int, int | None] = {}
        for process_type in _PROCESS_TYPES:
            call = getattr(self._card.api, f"nvmlDeviceGet{process_type}RunningProcesses")
            for process in self._query(("processes", process_type), partial(call, handle)) or ():
                used = process.usedGpuMemory
                pid = int(process.pid)
                before = memory_by_pid.get(int(process.pid))
                memory_by_pid[pid] = (
                    before if used in {None, _UNKNOWN_MEMORY} else max(int(used), before or 0)
                )
        return dict(sorted(memory_by_pid.items()))

    def _shares(self) -> dict[int, float] | None:
        """Return the busy share by PID, of processes that ran at all.

        The driver's samples have timestamps of another clock, whose offset is taken from the newest
        sample.
        """
        now_us = int(self._card.now() * 1e6)
        restarts = now_us - self._updated_us > _SILENT_US  # its clock may have been set back
        samples = self._query(
            "process utilization", lambda: self._samples(0 if restarts else self._read_until_us)
        )
        if samples is None:
            return None
        newest_us = max((int(sample.timeStamp) for sample in samples), default=0)
        if newest_us in {0, self._newest_us}:
            samples = []  # no new sample: nothing ran
        else:
            if newest_us < self._newest_us:
                self._read_until_us = 0
            self._newest_us = newest_us
            self._updated_us = now_us
            self._offset_us = newest_us - now_us
        if self._offset_us is None:
            return {}
        since_us = self._read_until_us
        until_us = now_us + self._offset_us
        self._read_until_us = until_us
        return mean_shares(samples, since_us or until_us - _SAMPLE_PERIOD_US, until_us)

    def _samples(self, since_us: int) -> list[Any]:
        try:
            return list(self._card.api.nvmlDeviceGetProcessUtilization(self._card.handle, since_us))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return []  # no newer sample: nothing ran
            raise


def mean_shares(samples: Iterable[Any], since_us: int, until_us: int) -> dict[int, float]:
    """Return the mean share by PID. A sample covers the time since the previous sample of its
    process.

    After the last kernel of a process there are no samples.
    """
    before_us: dict[int, int] = {}
    busy_us: dict[int, float] = {}
    for sample in sorted(samples, key=lambda sample: int(sample.timeStamp)):
        pid = int(sample.pid)
        at_us = int(sample.timeStamp)
        covered_us = max(0, at_us - before_us.get(pid, since_us))
        busy_us[pid] = busy_us.get(pid, 0.0) + covered_us * min(100, sample.smUtil) / 100
        before_us[pid] = at_us
    return {
        pid: busy / (until_us - since_us) for pid, busy in busy_us.items() if until_us > since_us
    }


_ENERGY_FIELDS = (
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
    pynvml.NVML_FI_DEV_POWER_INSTANT,
    pynvml.NVML_FI_DEV_POWER_AVERAGE,
)


class NvmlGpu:
    """One attached GPU. All methods may hang, and raise NVMLError when the GPU is lost or the
    driver is gone.
    """

    def __init__(self, card: GpuHandle) -> None:
        self.info = card.info
        self.handle = card.handle
        """NVML handle, for `XidWatch.register`."""
        self._card = card
        self._device = Device("gpu", card.info.uuid)
        self._energy_query = NvmlQuery(card.now, retries_soon=True)
        self._read_fields = field_call(card, _ENERGY_FIELDS)
        self._query = NvmlQuery(card.now, tolerates_unknown=True)
        self._readings = GpuReadings(card, self._query)
        self._mig = MigInstances(card, self._query)
        self._processes = GpuProcessReader(card, self._query)

    def poll(self) -> Poll:
        """Read energy and power, in one call where the GPU supports the fields, else by the older
        calls.
        """
        query = self._energy_query
        api = self._card.api
        handle = self.handle
        now = self._card.now
        before_s = now()
        counter_j = instant_w = average_w = None
        fields = query("fields", self._read_fields)
        if fields is not None:
            counter_j, instant_w, average_w = [
                None if value is None or kind == pynvml.NVML_VALUE_TYPE_DOUBLE else value / 1e3
                for kind, _, value in decode_fields(fields)
            ]  # NVML documents integers: a double is the older calls' value read in the wrong type
        if counter_j is None:
            counter_j = query(
                "counter", lambda: api.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
            )
        averages = average_w is None and counter_j is None and self._card.usage_is_average
        if averages or (instant_w is None and average_w is None):
            usage_w = query("power", lambda: api.nvmlDeviceGetPowerUsage(handle) / 1e3)
            instant_w, average_w = (
                (instant_w, usage_w) if self._card.usage_is_average else (usage_w, None)
            )
        return Poll(self._device, before_s, now(), counter_j, instant_w, average_w)

    def readings(self) -> Iterator[Reading]:
        """Yield the readings of the GPU and of its MIG instances. Unsupported values are left
        out.
        """
        self._update_instances()
        yield from self._readings.read()
        yield from self._mig.readings()

    def instances(self) -> tuple[str, ...]:
        """Return the UUIDs of the MIG instances at the last call of `readings`, `processes` or
        `pids`.
        """
        return tuple(instance.uuid for instance in self._mig.instances)

    def processes(self) -> list[GpuProcess]:
        """Return compute and graphics processes, with memory, and utilization since the last
        call.
        """
        self._update_instances()
        if not self._mig.is_on:
            return self._processes.of_gpu()
        return self._processes.of_instances(
            (instance.uuid, instance.handle) for instance in self._mig.instances
        )

    def pids(self) -> list[int]:
        """Return the PIDs on the GPU, in this PID namespace."""
        self._update_instances()
        handles = (
            [instance.handle for instance in self._mig.instances]
            if self._mig.is_on
            else [self.handle]
        )
        return sorted({pid for handle in handles for pid in self._processes.memory(handle)})

    def _update_instances(self) -> None:
        if self._mig.update():
            self._query.forget()
            self._readings.forget()

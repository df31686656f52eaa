"""One GPU: energy at each poll, readings once a second, processes at a slower rate."""

from __future__ import annotations

from collections.abc import Iterator

import pynvml

from exporter.model import Device, GpuProcess, Poll, Reading
from exporter.sources.nvml.card import GpuHandle, decode_fields
from exporter.sources.nvml.errors import NvmlQuery
from exporter.sources.nvml.mig import MigInstances
from exporter.sources.nvml.processes import GpuProcessReader
from exporter.sources.nvml.readings import GpuReadings

_ENERGY_FIELDS = (
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
    pynvml.NVML_FI_DEV_POWER_INSTANT,
    pynvml.NVML_FI_DEV_POWER_AVERAGE,
)


class NvmlGpu:
    """One attached GPU. All methods may hang, and raise NVMLError when the GPU is lost or the driver is gone."""

    def __init__(self, card: GpuHandle) -> None:
        self.info = card.info
        self.handle = card.handle
        """NVML handle, for `XidWatch.register`."""
        self._card = card
        self._device = Device("gpu", card.info.uuid)
        self._energy_query = NvmlQuery(card.now)
        self._query = NvmlQuery(card.now, tolerates_unknown=True)
        self._readings = GpuReadings(card, self._query)
        self._mig = MigInstances(card, self._query)
        self._processes = GpuProcessReader(card, self._query)

    def poll(self) -> Poll:
        """Read energy and power, in one call where the GPU supports the fields, else by the older calls."""
        query, api, handle, now = self._energy_query, self._card.api, self.handle, self._card.now
        before_s = now()
        counter_j = instant_w = average_w = None
        fields = query("fields", lambda: api.nvmlDeviceGetFieldValues(handle, _ENERGY_FIELDS))
        if fields is not None:
            counter_j, instant_w, average_w = (
                None if value is None else value / 1e3 for *_, value in decode_fields(fields)
            )
        if counter_j is None:
            counter_j = query("counter", lambda: api.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
        averages = average_w is None and counter_j is None and self._card.usage_is_average
        if averages or (instant_w is None and average_w is None):
            usage_w = query("power", lambda: api.nvmlDeviceGetPowerUsage(handle) / 1e3)
            instant_w, average_w = (instant_w, usage_w) if self._card.usage_is_average else (usage_w, None)
        return Poll(self._device, before_s, now(), counter_j, instant_w, average_w)

    def readings(self) -> Iterator[Reading]:
        """Yield the readings of the GPU and of its MIG instances. Unsupported values are left out."""
        self._update_instances()
        yield from self._readings.read()
        yield from self._mig.readings()

    def instances(self) -> tuple[str, ...]:
        """Return the UUIDs of the MIG instances at the last call of `readings`, `processes` or `pids`."""
        return tuple(instance.uuid for instance in self._mig.instances)

    def processes(self) -> list[GpuProcess]:
        """Return compute and graphics processes, with memory, and utilization since the last call."""
        self._update_instances()
        if not self._mig.is_on:
            return self._processes.of_gpu()
        return self._processes.of_instances((instance.uuid, instance.handle) for instance in self._mig.instances)

    def pids(self) -> list[int]:
        """Return the PIDs on the GPU, in this PID namespace."""
        self._update_instances()
        handles = [instance.handle for instance in self._mig.instances] if self._mig.is_on else [self.handle]
        return sorted({pid for handle in handles for pid in self._processes.memory(handle)})

    def _update_instances(self) -> None:
        if self._mig.update():
            self._query.forget()
            self._readings.forget()

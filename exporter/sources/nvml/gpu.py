"""One GPU: its energy at each poll, its readings once a second, its processes now and then."""

from __future__ import annotations

from collections.abc import Iterator

import pynvml

from exporter.model import Device, GpuProcess, Poll, Reading
from exporter.sources.nvml.card import Card, decode
from exporter.sources.nvml.errors import Ask
from exporter.sources.nvml.mig import Mig
from exporter.sources.nvml.processes import Processes
from exporter.sources.nvml.readings import Table

_ENERGY_FIELDS = (
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
    pynvml.NVML_FI_DEV_POWER_INSTANT,
    pynvml.NVML_FI_DEV_POWER_AVERAGE,
)


class NvmlGpu:
    """One GPU. All calls may hang, and raise NVMLError when the card is lost or the driver is gone."""

    def __init__(self, card: Card) -> None:
        self.info = card.info
        self.handle = card.handle
        """NVML's, for `XidWatch.register`."""
        self._card = card
        self._device = Device("gpu", card.info.uuid)
        self._ask_energy = Ask(card.now)
        self._ask = Ask(card.now, tolerates_unknown=True)
        self._table = Table(card, self._ask)
        self._mig = Mig(card, self._ask)
        self._processes = Processes(card, self._ask)

    def poll(self) -> Poll:
        """Energy and power, in one call where the card has the fields, else by the older calls."""
        ask, api, handle, now = self._ask_energy, self._card.api, self.handle, self._card.now
        before_s = now()
        counter_j = instant_w = average_w = None
        fields = ask("fields", lambda: api.nvmlDeviceGetFieldValues(handle, _ENERGY_FIELDS))
        if fields is not None:
            counter_j, instant_w, average_w = (None if value is None else value / 1e3 for *_, value in decode(fields))
        if counter_j is None:
            counter_j = ask("counter", lambda: api.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
        averages = average_w is None and counter_j is None and self._card.usage_is_average
        if averages or (instant_w is None and average_w is None):
            usage_w = ask("power", lambda: api.nvmlDeviceGetPowerUsage(handle) / 1e3)
            instant_w, average_w = (instant_w, usage_w) if self._card.usage_is_average else (usage_w, None)
        return Poll(self._device, before_s, now(), counter_j, instant_w, average_w)

    def readings(self) -> Iterator[Reading]:
        """What is read once a second, of the card and of its MIG instances. What the card does not have is left out."""
        self._look_for_instances()
        yield from self._table.read()
        yield from self._mig.readings()

    def instances(self) -> tuple[str, ...]:
        """The UUIDs of the MIG instances, as they were at the last `readings`, `processes` or `pids`."""
        return tuple(instance.uuid for instance in self._mig.instances)

    def processes(self) -> list[GpuProcess]:
        """Each process that computes or draws, with its memory, and its utilization since the last call."""
        self._look_for_instances()
        if not self._mig.is_on:
            return self._processes.of_card()
        return self._processes.of_instances((instance.uuid, instance.handle) for instance in self._mig.instances)

    def pids(self) -> list[int]:
        """The processes on the GPU, as this PID namespace numbers them."""
        self._look_for_instances()
        handles = [instance.handle for instance in self._mig.instances] if self._mig.is_on else [self.handle]
        return sorted({pid for handle in handles for pid in self._processes.memory(handle)})

    def _look_for_instances(self) -> None:
        if self._mig.look():
            self._ask.forget()
            self._table.forget()

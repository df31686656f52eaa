"""What a card is."""
# ruff: noqa: N802  # the functions' names are pynvml's

from __future__ import annotations

from typing import Any

import pynvml

from exporter.sources.simulated.library import Handle, Library


class Card(Library):
    def nvmlDeviceGetUUID(self, handle: Handle) -> str:
        gpu, _, instance = self._any(handle)
        return instance.uuid if instance else gpu.uuid

    def nvmlDeviceGetName(self, handle: Handle) -> str:
        gpu, _, instance = self._any(handle)
        return f"{gpu.product.name} MIG {instance.profile}" if instance else gpu.product.name

    def nvmlDeviceGetArchitecture(self, handle: Handle) -> int:
        return self._gpu(handle)[0].product.architecture

    def nvmlDeviceGetCudaComputeCapability(self, handle: Handle) -> tuple[int, int]:
        return self._gpu(handle)[0].product.compute_capability

    def nvmlDeviceGetPciInfo(self, handle: Handle) -> Any:
        gpu, _ = self._gpu(handle)
        domain, bus, device = gpu.pci_bus_id.split(":")
        return pynvml.nvmlPciInfo_t(
            busIdLegacy=gpu.pci_bus_id[4:].encode(),
            domain=int(domain, 16),
            bus=int(bus, 16),
            device=int(device.split(".")[0], 16),
            pciDeviceId=gpu.product.pci_device_id,
            busId=gpu.pci_bus_id.encode(),
        )

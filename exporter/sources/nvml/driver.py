"""NVML driver: initialization, its GPUs, and attaching one of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from exporter.model import GpuInfo, boottime
from exporter.sources.nvml.card import GpuHandle, nvml_text
from exporter.sources.nvml.errors import nvml_source_error, optional
from exporter.sources.nvml.gpu import NvmlGpu

_AMPERE = 7
_GA100 = (8, 0)
_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
}
_DRIVER_FOLDERS = (Path("proc/driver/nvidia/gpus"), Path("sys/bus/pci/drivers/nvidia"))
_PCI_BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)


def bound_gpus(root: Path) -> frozenset[str]:
    """Return the PCI bus ids, in NVML's form, of the GPUs that are bound to the driver now.

    NVML lists the GPUs of the time when it was initialized. This finds GPUs that were added, or bound to VFIO and back,
    without a call to the driver and without keeping the GPU open.
    """
    for folder in _DRIVER_FOLDERS:
        try:
            names = [entry.name for entry in (root / folder).iterdir()]
        except OSError:
            continue
        found = (_PCI_BUS_ID.fullmatch(name) for name in names)
        return frozenset(f"{int(match[1], 16):08X}:{match[2].upper()}" for match in found if match)
    return frozenset()


class Nvml:
    """NVML driver. `api` is the module pynvml, or an object with its functions."""

    def __init__(self, api: Any = pynvml, *, now: Callable[[], float] = boottime) -> None:
        self.api = api
        self._now = now

    def open(self) -> None:
        """Initialize NVML without attaching GPUs, which hangs on a failing one. Raises SourceError."""
        try:
            self.api.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_ATTACH)
        except pynvml.NVMLError as error:
            raise nvml_source_error(error) from error

    def count(self) -> int:
        """Return the number of GPUs when NVML was initialized."""
        return int(self.api.nvmlDeviceGetCount())

    def bound(self, root: Path = Path("/")) -> frozenset[str]:
        """Return the PCI bus ids of the GPUs bound now. Other GPUs than at `open` require a new process."""
        simulated = getattr(self.api, "bound_gpus", None)
        return frozenset(simulated()) if simulated else bound_gpus(root)

    def gpu(self, index: int) -> NvmlGpu:
        """Attach one GPU. May hang; raises NVMLError."""
        api = self.api
        handle = api.nvmlDeviceGetHandleByIndex(index)
        architecture = optional(lambda: int(api.nvmlDeviceGetArchitecture(handle)))
        info = GpuInfo(
            index=str(index),
            uuid=nvml_text(api.nvmlDeviceGetUUID(handle)),
            name=nvml_text(api.nvmlDeviceGetName(handle)),
            architecture=_ARCHITECTURES.get(architecture or -1, ""),
            pci_bus_id=optional(lambda: nvml_text(api.nvmlDeviceGetPciInfo(handle).busId)) or "",
            driver_version=optional(lambda: nvml_text(api.nvmlSystemGetDriverVersion())) or "",
        )
        capability = optional(lambda: tuple(api.nvmlDeviceGetCudaComputeCapability(handle)))
        # "a 1 s average on Ampere (except GA100) or newer": NVML's documentation of nvmlDeviceGetPowerUsage
        averages = (architecture or 0) >= _AMPERE and capability != _GA100
        return NvmlGpu(GpuHandle(api, handle, info, averages, self._now))

"""The driver as a whole, and which GPUs it has."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from exporter.model import Gpu, boottime
from exporter.sources.nvml.card import Card, text
from exporter.sources.nvml.errors import describe, optional
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
_GPUS_OF_DRIVER = (Path("proc/driver/nvidia/gpus"), Path("sys/bus/pci/drivers/nvidia"))
_PCI_BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)


def bound_gpus(root: Path) -> frozenset[str]:
    """The PCI bus ids, as NVML writes them, of the GPUs that the driver has now; none where it is not loaded.

    NVML knows the GPUs that there were when it was initialized. A GPU that was bound to VFIO or back, or added, is seen
    here, without a call to the driver and without holding the card.
    """
    for folder in _GPUS_OF_DRIVER:
        try:
            names = [entry.name for entry in (root / folder).iterdir()]
        except OSError:
            continue
        found = (_PCI_BUS_ID.fullmatch(name) for name in names)
        return frozenset(f"{int(match[1], 16):08X}:{match[2].upper()}" for match in found if match)
    return frozenset()


class Nvml:
    """The driver as a whole. `api` is the module pynvml, or one with its functions."""

    def __init__(self, api: Any = pynvml, *, now: Callable[[], float] = boottime) -> None:
        self.api = api
        self._now = now

    def open(self) -> None:
        """Starts NVML without attaching any GPU, since attaching hangs on a sick one. Raises SourceError."""
        try:
            self.api.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_ATTACH)
        except pynvml.NVMLError as error:
            raise describe(error) from error

    def count(self) -> int:
        """Of the GPUs that there were when NVML was initialized."""
        return int(self.api.nvmlDeviceGetCount())

    def bound(self, root: Path = Path("/")) -> frozenset[str]:
        """The PCI bus ids of the GPUs that there are now; another set than at `open` needs NVML in a new process."""
        simulated = getattr(self.api, "bound_gpus", None)
        return frozenset(simulated()) if simulated else bound_gpus(root)

    def gpu(self, index: int) -> NvmlGpu:
        """Attaches one GPU. May hang; raises NVMLError."""
        api = self.api
        handle = api.nvmlDeviceGetHandleByIndex(index)
        architecture = optional(lambda: int(api.nvmlDeviceGetArchitecture(handle)))
        info = Gpu(
            index=str(index),
            uuid=text(api.nvmlDeviceGetUUID(handle)),
            name=text(api.nvmlDeviceGetName(handle)),
            architecture=_ARCHITECTURES.get(architecture or -1, ""),
            pci_bus_id=optional(lambda: text(api.nvmlDeviceGetPciInfo(handle).busId)) or "",
            driver_version=optional(lambda: text(api.nvmlSystemGetDriverVersion())) or "",
        )
        capability = optional(lambda: tuple(api.nvmlDeviceGetCudaComputeCapability(handle)))
        # "a 1 s average on Ampere (except GA100) or newer": NVML's documentation of nvmlDeviceGetPowerUsage
        averages = (architecture or 0) >= _AMPERE and capability != _GA100
        return NvmlGpu(Card(api, handle, info, averages, self._now))

"""NVML driver: initialization, its GPUs, and XID errors.

The library is `pynvml` of the package nvidia-ml-py, or another object with the same functions.
Every call may hang on a failing GPU, so these modules run in the NVML worker process.
"""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from wattline_exporter.sensors.nvml.card import (
    UNSUPPORTED,
    GpuHandle,
    if_supported,
    nvml_source_error,
    nvml_text,
)
from wattline_exporter.sensors.nvml.gpu import NvmlGpu
from wattline_exporter.sensors.readings import GpuInfo, boottime

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

    NVML lists the GPUs of the time when it was initialized. This finds GPUs that were added, or
    bound to VFIO and back, without a call to the driver and without keeping the GPU open.
    """
    for folder in _DRIVER_FOLDERS:
        try:
            names = [entry.name for entry in (root / folder).iterdir()]
        except OSError:
            continue
        matches = (_PCI_BUS_ID.fullmatch(name) for name in names)
        return frozenset(
            f"{int(match[1], 16):08X}:{match[2].upper()}" for match in matches if match
        )
    return frozenset()


class Nvml:
    """NVML driver. `api` is the module pynvml, or an object with its functions."""

    def __init__(self, api: Any = pynvml, *, now: Callable[[], float] = boottime) -> None:
        self.api = api
        self._now = now

    def open(self) -> None:
        """Initialize NVML without attaching GPUs, which hangs on a failing one. Raises
        SourceError.
        """
        try:
            self.api.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_ATTACH)
        except pynvml.NVMLError as error:
            raise nvml_source_error(error) from error

    def count(self) -> int:
        """Return the number of GPUs when NVML was initialized."""
        return int(self.api.nvmlDeviceGetCount())

    def bound(self, root: Path = Path("/")) -> frozenset[str]:
        """Return the PCI bus ids of the GPUs bound now. Other GPUs than at `open` require a new
        process.
        """
        simulated = getattr(self.api, "bound_gpus", None)
        return frozenset(simulated()) if simulated else bound_gpus(root)

    def gpu(self, index: int) -> NvmlGpu:
        """Attach one GPU. May hang; raises NVMLError."""
        api = self.api
        handle = api.nvmlDeviceGetHandleByIndex(index)
        architecture = if_supported(lambda: int(api.nvmlDeviceGetArchitecture(handle)))
        info = GpuInfo(
            index=str(index),
            uuid=nvml_text(api.nvmlDeviceGetUUID(handle)),
            name=nvml_text(api.nvmlDeviceGetName(handle)),
            architecture=_ARCHITECTURES.get(architecture or -1, ""),
            pci_bus_id=if_supported(lambda: nvml_text(api.nvmlDeviceGetPciInfo(handle).busId))
            or "",
            driver_version=if_supported(lambda: nvml_text(api.nvmlSystemGetDriverVersion())) or "",
        )
        capability = if_supported(lambda: tuple(api.nvmlDeviceGetCudaComputeCapability(handle)))
        # "a 1 s average on Ampere (except GA100) or newer": NVML's documentation of
        # nvmlDeviceGetPowerUsage
        averages = (architecture or 0) >= _AMPERE and capability != _GA100
        return NvmlGpu(GpuHandle(api, handle, info, averages, self._now))


_XID = pynvml.nvmlEventTypeXidCriticalError


class XidWatch:
    """Event set of all GPUs, for a dedicated thread that calls `wait` in a loop.

    Other threads may call `register` at any time, also again for the same GPU.
    """

    def __init__(self, api: Any = pynvml) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._gpus: dict[object, tuple[Any, str]] = {}
        self._set: Any = None

    def register(self, handle: Any) -> bool:
        """Register a GPU for later XIDs. Return False where it has no such events. May hang; raises
        NVMLError.
        """
        api = self._api
        try:
            if not api.nvmlDeviceGetSupportedEventTypes(handle) & _XID:
                return False
            uuid = nvml_text(
                api.nvmlDeviceGetUUID(handle)
            )  # now, since a GPU that fell off the bus no longer reports it
            registered_in = None
            while registered_in is None or registered_in is not self._set:
                with self._lock:
                    if self._set is None:
                        self._set = api.nvmlEventSetCreate()
                    self._gpus[_key(handle)] = handle, uuid
                    registered_in = self._set
                api.nvmlDeviceRegisterEvents(
                    handle, _XID, registered_in
                )  # without the lock: it may hang
        except pynvml.NVMLError as error:
            self._gpus.pop(_key(handle), None)
            if error.value in UNSUPPORTED:
                return False
            raise
        return True

    def wait(self, timeout_s: float) -> tuple[str, int] | None:
        """Return UUID and number of the next XID, or None after the timeout. Raises NVMLError.

        While a GPU of the set is lost, NVML ends every wait at once: the set is then replaced by
        one without that GPU.
        """
        with self._lock:
            events = self._set
        if events is None:
            time.sleep(timeout_s)
            return None
        try:
            event = self._api.nvmlEventSetWait_v2(events, round(timeout_s * 1e3))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                self._drop_lost()
            elif error.value != pynvml.NVML_ERROR_TIMEOUT:
                raise
            return None
        gpu = self._gpus.get(_key(event.device))
        return (gpu[1], int(event.eventData)) if gpu else None

    def _drop_lost(self) -> None:
        """Replace the event set. XIDs that occur between the two sets are missed.

        The old set, of a few bytes, is not freed, since another thread may be registering a GPU in
        it.
        """
        with self._lock:
            events = self._set = self._api.nvmlEventSetCreate()
            gpus = list(self._gpus.items())
        for key, (handle, _) in gpus:
            try:
                self._api.nvmlDeviceRegisterEvents(handle, _XID, events)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_GPU_IS_LOST:
                    raise
                self._gpus.pop(key, None)
        with self._lock:
            if not self._gpus:
                self._set = None


def _key(handle: Any) -> object:
    """Return a comparable key: pynvml's handles are pointer objects, which compare by identity."""
    return (
        ctypes.cast(handle, ctypes.c_void_p).value
        if isinstance(handle, pynvml.c_nvmlDevice_t)
        else handle
    )

"""Power limits and locked clocks of real cards, through NVML: the only use of it in this package."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from workloads.caps.gpu_set import NOT_ALLOWED, CapsError, NotAllowedError, PowerLimitRange


class NvmlGpuSet:
    def __init__(self, gpus: Sequence[str] | None) -> None:
        try:
            import pynvml
        except ImportError as error:
            from exporter.contract.installation import install

            raise CapsError(f"pynvml cannot be imported; {install('workloads')}") from error
        self.simulation: str | None = None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise CapsError(f"there is no NVIDIA driver to set power limits with: {error}; try: nvidia-smi") from error
        try:
            self._names: dict[str, str] = {}
            self._handles: dict[str, Any] = {}
            for gpu in gpus if gpus is not None else map(str, range(pynvml.nvmlDeviceGetCount())):
                self._add(gpu)
        except BaseException:
            self.close()
            raise
        self.uuids = tuple(self._handles)

    def name(self, uuid: str) -> str:
        return self._names[uuid]

    def power(self, uuid: str) -> PowerLimitRange:
        nvml, handle = self._nvml, self._handles[uuid]
        with self._said(f"the power limit of {self.name(uuid)} cannot be read"):
            least_mw, most_mw = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
            default_mw = nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
            now_mw = nvml.nvmlDeviceGetPowerManagementLimit(handle)
        return PowerLimitRange(least_mw / 1e3, most_mw / 1e3, default_mw / 1e3, now_mw / 1e3)

    def enforced_w(self, uuid: str) -> float:
        with self._said(f"the power limit of {self.name(uuid)} cannot be read"):
            return float(self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._handles[uuid])) / 1e3

    def set_power_limit(self, uuid: str, watts: float) -> None:
        with self._said(f"the power limit of {self.name(uuid)} cannot be set"):
            self._nvml.nvmlDeviceSetPowerManagementLimit(self._handles[uuid], round(watts * 1e3))

    def sm_clocks(self, uuid: str) -> tuple[float, ...]:
        """Those at the fastest memory clock."""
        nvml, handle = self._nvml, self._handles[uuid]
        with self._said(f"the clocks of {self.name(uuid)} cannot be read"):
            try:
                memory_mhz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
                clocks_mhz = nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
                return ()
        return tuple(sorted(mhz * 1e6 for mhz in clocks_mhz))

    def sm_clock(self, uuid: str) -> float:
        with self._said(f"the clock of {self.name(uuid)} cannot be read"):
            return float(self._nvml.nvmlDeviceGetClockInfo(self._handles[uuid], self._nvml.NVML_CLOCK_SM)) * 1e6

    def lock_sm_clock(self, uuid: str, hertz: float | None) -> None:
        nvml, handle = self._nvml, self._handles[uuid]
        with self._said(f"the clock of {self.name(uuid)} cannot be locked"):
            if hertz is None:
                nvml.nvmlDeviceResetGpuLockedClocks(handle)
            else:
                nvml.nvmlDeviceSetGpuLockedClocks(handle, round(hertz / 1e6), round(hertz / 1e6))

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):  # a driver that is gone needs no goodbye
            self._nvml.nvmlShutdown()

    def _add(self, gpu: str) -> None:
        nvml = self._nvml
        if gpu.startswith("MIG-"):
            raise CapsError(
                f"{gpu} is a part of a card, whose power limit is the whole card's; give the card's own UUID"
            )
        try:
            handle = (
                nvml.nvmlDeviceGetHandleByIndex(int(gpu)) if gpu.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(gpu)
            )
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument) as error:
            raise CapsError(f"there is no GPU {gpu} here; nvidia-smi -L lists those that there are") from error
        except nvml.NVMLError as error:
            raise CapsError(
                f"GPU {gpu} cannot be used: {error}; see nvidia-smi, or leave it out with --gpus"
            ) from error
        with self._said(f"GPU {gpu} cannot be asked for its name"):
            uuid = nvml.nvmlDeviceGetUUID(handle)
            self._names[uuid] = f"GPU {nvml.nvmlDeviceGetIndex(handle)} ({nvml.nvmlDeviceGetName(handle)})"
            self._handles[uuid] = handle

    @contextlib.contextmanager
    def _said(self, what: str) -> Iterator[None]:
        nvml = self._nvml
        try:
            yield
        except nvml.NVMLError_NoPermission as error:
            raise NotAllowedError(f"{what}: {NOT_ALLOWED}") from error
        except nvml.NVMLError_NotSupported as error:
            raise CapsError(f"{what}: this card does not support it; leave it out with --gpus") from error
        except nvml.NVMLError as error:
            raise CapsError(f"{what}: {error}; see nvidia-smi") from error

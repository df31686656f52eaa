"""Power limits and clock locks of real GPUs, through NVML."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from workloads.caps.gpu_set import NOT_ALLOWED, CapsError, NotAllowedError, PowerLimitRange


class NvmlGpuSet:
    """Real GPUs by UUID or index; None: all of the node."""

    def __init__(self, gpus: Sequence[str] | None) -> None:
        try:
            import pynvml
        except ImportError as error:
            from exporter.contract.command_line import install

            raise CapsError(f"cannot import pynvml; {install('workloads')}") from error
        self.simulation: str | None = None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise CapsError(f"cannot use NVML: no NVIDIA driver: {error}; check it with nvidia-smi") from error
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
        with self._failing_with(f"cannot read the power limit of {self.name(uuid)}"):
            least_mw, most_mw = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
            default_mw = nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
            now_mw = nvml.nvmlDeviceGetPowerManagementLimit(handle)
        return PowerLimitRange(least_mw / 1e3, most_mw / 1e3, default_mw / 1e3, now_mw / 1e3)

    def enforced_w(self, uuid: str) -> float:
        with self._failing_with(f"cannot read the power limit of {self.name(uuid)}"):
            return float(self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._handles[uuid])) / 1e3

    def set_power_limit(self, uuid: str, watts: float) -> None:
        with self._failing_with(f"cannot set the power limit of {self.name(uuid)}"):
            self._nvml.nvmlDeviceSetPowerManagementLimit(self._handles[uuid], round(watts * 1e3))

    def sm_clocks(self, uuid: str) -> tuple[float, ...]:
        """Return the clocks that are supported at the highest memory clock."""
        nvml, handle = self._nvml, self._handles[uuid]
        with self._failing_with(f"cannot read the clocks of {self.name(uuid)}"):
            try:
                memory_mhz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
                clocks_mhz = nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
                return ()
        return tuple(sorted(mhz * 1e6 for mhz in clocks_mhz))

    def sm_clock(self, uuid: str) -> float:
        with self._failing_with(f"cannot read the clock of {self.name(uuid)}"):
            return float(self._nvml.nvmlDeviceGetClockInfo(self._handles[uuid], self._nvml.NVML_CLOCK_SM)) * 1e6

    def lock_sm_clock(self, uuid: str, hertz: float | None) -> None:
        nvml, handle = self._nvml, self._handles[uuid]
        with self._failing_with(f"cannot lock the clock of {self.name(uuid)}"):
            if hertz is None:
                nvml.nvmlDeviceResetGpuLockedClocks(handle)
            else:
                nvml.nvmlDeviceSetGpuLockedClocks(handle, round(hertz / 1e6), round(hertz / 1e6))

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):  # the driver may have been unloaded
            self._nvml.nvmlShutdown()

    def _add(self, gpu: str) -> None:
        nvml = self._nvml
        if gpu.startswith("MIG-"):
            raise CapsError(f"{gpu} is a MIG instance, which has no power limit; use the UUID of its GPU")
        try:
            handle = (
                nvml.nvmlDeviceGetHandleByIndex(int(gpu)) if gpu.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(gpu)
            )
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument) as error:
            raise CapsError(f"there is no GPU {gpu} on this node; nvidia-smi -L lists the GPUs") from error
        except nvml.NVMLError as error:
            raise CapsError(f"cannot use GPU {gpu}: {error}; see nvidia-smi, or exclude it with --gpus") from error
        with self._failing_with(f"cannot read the name of GPU {gpu}"):
            uuid = nvml.nvmlDeviceGetUUID(handle)
            self._names[uuid] = f"GPU {nvml.nvmlDeviceGetIndex(handle)} ({nvml.nvmlDeviceGetName(handle)})"
            self._handles[uuid] = handle

    @contextlib.contextmanager
    def _failing_with(self, failure: str) -> Iterator[None]:
        nvml = self._nvml
        try:
            yield
        except nvml.NVMLError_NoPermission as error:
            raise NotAllowedError(f"{failure}: {NOT_ALLOWED}") from error
        except nvml.NVMLError_NotSupported as error:
            raise CapsError(f"{failure}: not supported by this GPU; exclude it with --gpus") from error
        except nvml.NVMLError as error:
            raise CapsError(f"{failure}: {error}; see nvidia-smi") from error

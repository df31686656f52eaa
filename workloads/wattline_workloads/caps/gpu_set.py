"""GPUs whose power limit and SM clock can be set: interface, NVML, simulation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from wattline_exporter.simulation import (
    Fault,
    SimulatedGpuState,
    Simulation,
    StateFileError,
    clocks_mhz,
    sm_clock_mhz,
)

NOT_ALLOWED = (
    "permission denied, root or the capability CAP_SYS_ADMIN is required; use sudo -E, or a "
    "container with "
    "--cap-add SYS_ADMIN"
)


class CapsError(Exception):
    """Error with a one-line message: the cause and the remedy."""


class NotAllowedError(CapsError):
    """Change that the driver denies to this user."""


@dataclass(frozen=True, slots=True)
class PowerLimitRange:
    """Supported, default and currently requested power limits of a GPU."""

    least_w: float
    most_w: float
    default_w: float
    now_w: float


@dataclass(frozen=True, slots=True)
class Cap:
    """Power limit or clock lock of a run."""

    kind: Literal["power_limit_watts", "sm_clock_hertz"]
    value: float

    def __str__(self) -> str:
        return (
            f"{self.value:g} W" if self.kind == "power_limit_watts" else f"{self.value / 1e6:g} MHz"
        )


class GpuSet(Protocol):
    """GPUs of a node, by UUID. Every method raises CapsError."""

    uuids: tuple[str, ...]
    simulation: str | None
    """State file of simulated GPUs; None for real ones."""

    def name(self, uuid: str) -> str:
        """Return the name for messages: `GPU 0 (NVIDIA H200)`."""
        ...

    def power(self, uuid: str) -> PowerLimitRange: ...

    def enforced_w(self, uuid: str) -> float:
        """Return the lowest of all limits that the GPU obeys."""
        ...

    def set_power_limit(self, uuid: str, watts: float) -> None: ...

    def sm_clocks(self, uuid: str) -> tuple[float, ...]:
        """Return the clocks that the GPU can be locked to, in ascending order; empty if it cannot
        be locked.
        """
        ...

    def sm_clock(self, uuid: str) -> float:
        """Return the current SM clock in hertz."""
        ...

    def lock_sm_clock(self, uuid: str, hertz: float | None) -> None:
        """Lock the clock; None removes the lock. An earlier lock cannot be read, so it cannot be
        restored.
        """
        ...

    def close(self) -> None: ...


class NvmlGpuSet:
    """Real GPUs, through NVML; `gpus` are UUIDs or indices, None: all of the node."""

    def __init__(self, gpus: Sequence[str] | None) -> None:
        try:
            import pynvml
        except ImportError as error:
            from wattline.command_line import install

            raise CapsError(f"cannot import pynvml; {install('workloads')}") from error
        self.simulation: str | None = None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise CapsError(
                f"cannot use NVML: no NVIDIA driver: {error}; check it with nvidia-smi"
            ) from error
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
        nvml = self._nvml
        handle = self._handles[uuid]
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
        nvml = self._nvml
        handle = self._handles[uuid]
        with self._failing_with(f"cannot read the clocks of {self.name(uuid)}"):
            try:
                memory_mhz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
                clocks_mhz = nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
                return ()
        return tuple(sorted(mhz * 1e6 for mhz in clocks_mhz))

    def sm_clock(self, uuid: str) -> float:
        with self._failing_with(f"cannot read the clock of {self.name(uuid)}"):
            return (
                float(
                    self._nvml.nvmlDeviceGetClockInfo(self._handles[uuid], self._nvml.NVML_CLOCK_SM)
                )
                * 1e6
            )

    def lock_sm_clock(self, uuid: str, hertz: float | None) -> None:
        nvml = self._nvml
        handle = self._handles[uuid]
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
            raise CapsError(
                f"{gpu} is a MIG instance, which has no power limit; use the UUID of its GPU"
            )
        try:
            handle = (
                nvml.nvmlDeviceGetHandleByIndex(int(gpu))
                if gpu.isdecimal()
                else nvml.nvmlDeviceGetHandleByUUID(gpu)
            )
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument) as error:
            raise CapsError(
                f"there is no GPU {gpu} on this node; nvidia-smi -L lists the GPUs"
            ) from error
        except nvml.NVMLError as error:
            raise CapsError(
                f"cannot use GPU {gpu}: {error}; see nvidia-smi, or exclude it with --gpus"
            ) from error
        with self._failing_with(f"cannot read the name of GPU {gpu}"):
            uuid = nvml.nvmlDeviceGetUUID(handle)
            self._names[uuid] = (
                f"GPU {nvml.nvmlDeviceGetIndex(handle)} ({nvml.nvmlDeviceGetName(handle)})"
            )
            self._handles[uuid] = handle

    @contextlib.contextmanager
    def _failing_with(self, failure: str) -> Iterator[None]:
        nvml = self._nvml
        try:
            yield
        except nvml.NVMLError_NoPermission as error:
            raise NotAllowedError(f"{failure}: {NOT_ALLOWED}") from error
        except nvml.NVMLError_NotSupported as error:
            raise CapsError(
                f"{failure}: not supported by this GPU; exclude it with --gpus"
            ) from error
        except nvml.NVMLError as error:
            raise CapsError(f"{failure}: {error}; see nvidia-smi") from error


class SimulatedGpuSet:
    """Simulated GPUs of a state file; `gpus` are UUIDs or indices, None: all."""

    def __init__(self, path: Path, gpus: Sequence[str] | None) -> None:
        self.simulation: str | None = str(path.absolute())
        with _as_caps_error():
            self._file = Simulation.open(path)
        here = self._file.gpus
        unknown = [
            wanted
            for wanted in gpus or ()
            if not any(wanted in {gpu.uuid, str(gpu.index)} for gpu in here)
        ]
        if unknown:
            self._file.close()
            raise CapsError(
                f"GPU {unknown[0]} is not one of the {len(here)} GPUs simulated in {path}; choose "
                "others with --gpus"
            )
        chosen = [gpu for gpu in here if gpus is None or {gpu.uuid, str(gpu.index)} & set(gpus)]
        self._index = {gpu.uuid: gpu.index for gpu in chosen}
        self.uuids = tuple(self._index)

    def name(self, uuid: str) -> str:
        gpu = self._gpu(uuid)
        return f"GPU {gpu.index} ({gpu.product.name})"

    def power(self, uuid: str) -> PowerLimitRange:
        gpu = self._responding(uuid)
        product = gpu.product
        return PowerLimitRange(
            product.limit_min_w, product.limit_max_w, product.limit_default_w, gpu.limit_w
        )

    def enforced_w(self, uuid: str) -> float:
        return self._responding(uuid).limit_w

    def set_power_limit(self, uuid: str, watts: float) -> None:
        gpu = self._settable(uuid)
        if not gpu.faults & Fault.UNMOVED:
            with _as_caps_error():
                self._file.set_limit(gpu.index, watts)

    def sm_clocks(self, uuid: str) -> tuple[float, ...]:
        return tuple(mhz * 1e6 for mhz in clocks_mhz(self._responding(uuid)))

    def sm_clock(self, uuid: str) -> float:
        return sm_clock_mhz(self._responding(uuid), self._file.now()) * 1e6

    def lock_sm_clock(self, uuid: str, hertz: float | None) -> None:
        gpu = self._settable(uuid)
        if not gpu.faults & Fault.UNMOVED:
            with _as_caps_error():
                self._file.lock_clock(gpu.index, None if hertz is None else round(hertz / 1e6))

    def close(self) -> None:
        self._file.close()

    def _gpu(self, uuid: str) -> SimulatedGpuState:
        return self._file.gpus[self._index[uuid]]

    def _responding(self, uuid: str) -> SimulatedGpuState:
        gpu = self._gpu(uuid)
        if gpu.faults & (Fault.LOST | Fault.UNBOUND):
            raise CapsError(f"{self.name(uuid)} is lost; reset it, or exclude it with --gpus")
        return gpu

    def _settable(self, uuid: str) -> SimulatedGpuState:
        gpu = self._responding(uuid)
        if gpu.faults & Fault.FORBIDDEN:
            raise NotAllowedError(f"cannot set {self.name(uuid)}: {NOT_ALLOWED}")
        return gpu


@contextlib.contextmanager
def _as_caps_error() -> Iterator[None]:
    try:
        yield
    except (StateFileError, ValueError) as error:
        raise CapsError(str(error)) from error


def open_gpu_set(gpus: Sequence[str] | None, simulation: str | None) -> GpuSet:
    """Open `gpus` (UUIDs or indices; None: all of the node).

    `simulation` is the state file of simulated GPUs; without it NVML is used. Raises CapsError.
    """
    if simulation is not None:
        return SimulatedGpuSet(Path(simulation), gpus)
    return NvmlGpuSet(gpus)

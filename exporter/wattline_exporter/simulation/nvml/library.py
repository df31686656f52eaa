"""Simulated NVML library: initialization, identity of GPUs, and XID events."""
# ruff: noqa: N802  # the functions' names are pynvml's

from __future__ import annotations

import time
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pynvml

from wattline_exporter.simulation import (
    Fault,
    SimulatedGpuState,
    SimulatedInstance,
    Simulation,
    SimulationState,
    clock_s,
)

_HANG_POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class Handle:
    """Handle of a GPU by its position in the state file, or of its MIG instance by its number from
    1.
    """

    position: int
    instance: int = 0


def raise_nvml_error(code: int) -> NoReturn:
    raise pynvml.NVMLError(code)


class Library:
    """Initialization of NVML, and the checks that start every call."""

    def __init__(self, path: Path) -> None:
        self.simulation = Simulation.open(path)
        self._initialized_for: float | None = None
        self._positions: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        """Return constants, structs and exceptions of pynvml. Functions that are not simulated fail
        as not found.
        """
        value = getattr(pynvml, name)
        if name.startswith("nvml") and isinstance(value, types.FunctionType):

            def not_found(*_: object, **__: object) -> None:
                raise_nvml_error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

            return not_found
        return value

    def bound_gpus(self) -> frozenset[str]:
        """Return the PCI bus ids of the GPUs bound to the driver now."""
        state = self.simulation.state
        return frozenset(
            gpu.pci_bus_id
            for gpu in state.gpus
            if state.driver_loaded and not gpu.faults & Fault.UNBOUND
        )

    def nvmlInit(self) -> None:
        self.nvmlInitWithFlags(0)

    def nvmlInitWithFlags(self, flags: int) -> None:
        """Attach to every GPU, which hangs on a failing one, unless the flags exclude attaching."""
        attach = not flags & pynvml.NVML_INIT_FLAG_NO_ATTACH
        hanging = Fault.INIT_HANG | Fault.HANG if attach else Fault.INIT_HANG
        while (state := self.simulation.state).driver_loaded:
            if not any(gpu.faults & hanging for gpu in state.gpus):
                self._initialized_for = state.driver_loaded_at_s
                self._positions = tuple(
                    gpu.index for gpu in state.gpus if not gpu.faults & Fault.UNBOUND
                )
                return
            time.sleep(_HANG_POLL_S)
        raise_nvml_error(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    def nvmlShutdown(self) -> None:
        if self._initialized_for is None:
            raise_nvml_error(pynvml.NVML_ERROR_UNINITIALIZED)
        self._initialized_for = None

    def _state(self) -> SimulationState:
        state = self.simulation.state
        if not state.driver_loaded or self._initialized_for != state.driver_loaded_at_s:
            raise_nvml_error(pynvml.NVML_ERROR_UNINITIALIZED)
        return state

    def _call(self) -> SimulationState:
        """Simulate the start of a driver call: the check of the driver, and the call's latency."""
        state = self._state()
        if state.call_latency_us:
            time.sleep(state.call_latency_us / 1e6)
        return state

    def _any(self, handle: Handle) -> tuple[SimulatedGpuState, float, SimulatedInstance | None]:
        """Return the GPU, the time of the call, and the MIG instance of the handle, if any."""
        self._call()
        while True:
            now = clock_s()  # before the state, so that the state includes every change up to now
            state = self._state()
            gpu = state.gpus[handle.position]
            if not gpu.faults & Fault.HANG:
                break
            time.sleep(_HANG_POLL_S)
        if gpu.faults & (Fault.LOST | Fault.UNBOUND):
            raise_nvml_error(pynvml.NVML_ERROR_GPU_IS_LOST)
        instance = next((one for one in gpu.instances or () if one.number == handle.instance), None)
        if handle.instance and instance is None:
            raise_nvml_error(pynvml.NVML_ERROR_NOT_FOUND)
        return gpu, state.clock_s or now, instance

    def _gpu(self, handle: Handle) -> tuple[SimulatedGpuState, float]:
        """Return GPU and time for a call that MIG instances do not support."""
        gpu, now, instance = self._any(handle)
        if instance:
            raise_nvml_error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return gpu, now

    def nvmlSystemGetDriverVersion(self) -> str:
        self._call()
        return "SIMULATED 580.95.05"

    def nvmlDeviceGetCount(self) -> int:
        self._call()
        return len(self._positions)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        self._call()
        if not 0 <= index < len(self._positions):
            raise_nvml_error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        handle = Handle(self._positions[index])
        self._gpu(handle)
        return handle


class Identity(Library):
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


_WAIT_POLL_S = 0.25


@dataclass
class EventSet:
    """Set of GPUs registered for XID events."""

    delivered: dict[Handle, int] = field(default_factory=dict)
    """Number of XIDs of each GPU that were delivered, or occurred before it was registered."""


@dataclass(frozen=True, slots=True)
class XidEventData:
    """Event data with the attributes of pynvml's c_nvmlEventData_t, whose device must be a
    pointer.
    """

    device: Handle
    eventData: int  # noqa: N815  # pynvml's name
    eventType: int = pynvml.nvmlEventTypeXidCriticalError  # noqa: N815  # pynvml's name


class Events(Library):
    def nvmlDeviceGetSupportedEventTypes(self, handle: Handle) -> int:
        self._gpu(handle)
        return int(pynvml.nvmlEventTypeXidCriticalError)

    def nvmlEventSetCreate(self) -> EventSet:
        self._call()
        return EventSet()

    def nvmlEventSetFree(self, eventSet: EventSet) -> None:  # noqa: N803  # pynvml's
        eventSet.delivered.clear()

    def nvmlDeviceRegisterEvents(self, handle: Handle, eventTypes: int, eventSet: EventSet) -> None:  # noqa: N803  # pynvml's
        gpu, _ = self._gpu(handle)
        if eventTypes & ~pynvml.nvmlEventTypeXidCriticalError:
            raise_nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        eventSet.delivered[handle] = gpu.xid_count

    def nvmlEventSetWait_v2(self, eventSet: EventSet, timeoutms: int) -> XidEventData:  # noqa: N803  # pynvml's
        until_s = time.monotonic() + timeoutms / 1e3
        while True:
            for handle in list(eventSet.delivered):
                event = self._take(eventSet, handle)
                if event:
                    return event
            if time.monotonic() >= until_s:
                raise_nvml_error(pynvml.NVML_ERROR_TIMEOUT)
            time.sleep(_WAIT_POLL_S)

    def _take(self, events: EventSet, handle: Handle) -> XidEventData | None:
        gpu = self._call().gpus[handle.position]
        if gpu.faults & (Fault.LOST | Fault.UNBOUND):
            raise_nvml_error(pynvml.NVML_ERROR_GPU_IS_LOST)
        new = min(gpu.xid_count - events.delivered[handle], len(gpu.xids))
        if not new:
            return None
        events.delivered[handle] = gpu.xid_count - new + 1
        return XidEventData(handle, gpu.xids[-new])

"""The library itself: initialization, and what every call goes through first."""
# ruff: noqa: N802  # the functions' names are pynvml's

from __future__ import annotations

import time
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pynvml

from exporter.simulation import Fault, Gpu, Instance, Simulation, State, boottime

_HANG_POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class Handle:
    """A GPU by its place in the state file, or a MIG instance of it by its number from 1."""

    place: int
    instance: int = 0


def fail(code: int) -> NoReturn:
    raise pynvml.NVMLError(code)


class Library:
    def __init__(self, path: Path) -> None:
        self.simulation = Simulation.open(path)
        self._initialized_for: float | None = None
        self._places: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        """Constants, structs and exceptions of pynvml; a function of the driver that is not simulated is not found."""
        value = getattr(pynvml, name)
        if name.startswith("nvml") and isinstance(value, types.FunctionType):

            def not_found(*_: object, **__: object) -> None:
                fail(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

            return not_found
        return value

    def bound_gpus(self) -> frozenset[str]:
        """The PCI bus ids of the GPUs that the driver has now, whatever it had when it was initialized."""
        state = self.simulation.state
        return frozenset(gpu.pci_bus_id for gpu in state.gpus if state.driver_loaded and not gpu.faults & Fault.UNBOUND)

    def nvmlInit(self) -> None:
        self.nvmlInitWithFlags(0)

    def nvmlInitWithFlags(self, flags: int) -> None:
        """Attaches to every GPU, and so hangs on a sick one, unless the flags say not to attach."""
        attach = not flags & pynvml.NVML_INIT_FLAG_NO_ATTACH
        hanging = Fault.INIT_HANG | Fault.HANG if attach else Fault.INIT_HANG
        while (state := self.simulation.state).driver_loaded:
            if not any(gpu.faults & hanging for gpu in state.gpus):
                self._initialized_for = state.driver_loaded_at_s
                self._places = tuple(gpu.index for gpu in state.gpus if not gpu.faults & Fault.UNBOUND)
                return
            time.sleep(_HANG_POLL_S)
        fail(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    def nvmlShutdown(self) -> None:
        if self._initialized_for is None:
            fail(pynvml.NVML_ERROR_UNINITIALIZED)
        self._initialized_for = None

    def _state(self) -> State:
        state = self.simulation.state
        if not state.driver_loaded or self._initialized_for != state.driver_loaded_at_s:
            fail(pynvml.NVML_ERROR_UNINITIALIZED)
        return state

    def _call(self) -> State:
        """Every call to the driver begins here."""
        state = self._state()
        if state.call_latency_us:
            time.sleep(state.call_latency_us / 1e6)
        return state

    def _any(self, handle: Handle) -> tuple[Gpu, float, Instance | None]:
        """The GPU, the instant at which it is looked at, and the MIG instance of the handle, if it is of one."""
        self._call()
        while True:
            now = boottime()  # before the state, which then holds every change up to now
            state = self._state()
            gpu = state.gpus[handle.place]
            if not gpu.faults & Fault.HANG:
                break
            time.sleep(_HANG_POLL_S)
        if gpu.faults & (Fault.LOST | Fault.UNBOUND):
            fail(pynvml.NVML_ERROR_GPU_IS_LOST)
        instance = next((one for one in gpu.instances or () if one.number == handle.instance), None)
        if handle.instance and instance is None:
            fail(pynvml.NVML_ERROR_NOT_FOUND)
        return gpu, state.clock_s or now, instance

    def _gpu(self, handle: Handle) -> tuple[Gpu, float]:
        """Likewise for a call that MIG instances do not answer."""
        gpu, now, instance = self._any(handle)
        if instance:
            fail(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return gpu, now

    def nvmlSystemGetDriverVersion(self) -> str:
        self._call()
        return "SIMULATED 580.95.05"

    def nvmlDeviceGetCount(self) -> int:
        self._call()
        return len(self._places)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        self._call()
        if not 0 <= index < len(self._places):
            fail(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        handle = Handle(self._places[index])
        self._gpu(handle)
        return handle


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


_WAIT_POLL_S = 0.25


@dataclass
class EventSet:
    seen: dict[Handle, int] = field(default_factory=dict)
    """How many XIDs of the GPU have been taken or came before."""


@dataclass(frozen=True, slots=True)
class Event:
    """As pynvml's c_nvmlEventData_t, whose device would have to be a pointer."""

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
        eventSet.seen.clear()

    def nvmlDeviceRegisterEvents(self, handle: Handle, eventTypes: int, eventSet: EventSet) -> None:  # noqa: N803  # pynvml's
        gpu, _ = self._gpu(handle)
        if eventTypes & ~pynvml.nvmlEventTypeXidCriticalError:
            fail(pynvml.NVML_ERROR_NOT_SUPPORTED)
        eventSet.seen[handle] = gpu.xid_count

    def nvmlEventSetWait_v2(self, eventSet: EventSet, timeoutms: int) -> Event:  # noqa: N803  # pynvml's
        until_s = time.monotonic() + timeoutms / 1e3
        while True:
            for handle in list(eventSet.seen):
                event = self._take(eventSet, handle)
                if event:
                    return event
            if time.monotonic() >= until_s:
                fail(pynvml.NVML_ERROR_TIMEOUT)
            time.sleep(_WAIT_POLL_S)

    def _take(self, events: EventSet, handle: Handle) -> Event | None:
        gpu = self._call().gpus[handle.place]
        if gpu.faults & (Fault.LOST | Fault.UNBOUND):
            fail(pynvml.NVML_ERROR_GPU_IS_LOST)
        new = min(gpu.xid_count - events.seen[handle], len(gpu.xids))
        if not new:
            return None
        events.seen[handle] = gpu.xid_count - new + 1
        return Event(handle, gpu.xids[-new])

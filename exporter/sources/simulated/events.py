"""Event sets, for XIDs: those that happen after a card was registered, each once."""
# ruff: noqa: N802  # the functions' names are pynvml's

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pynvml

from exporter.simulation import Fault
from exporter.sources.simulated.library import Handle, Library, fail

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

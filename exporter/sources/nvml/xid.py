"""XID errors, which the driver reports as events."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

import pynvml

from exporter.sources.nvml.card import nvml_text
from exporter.sources.nvml.errors import UNSUPPORTED

_XID = pynvml.nvmlEventTypeXidCriticalError


class XidWatch:
    """Event set of all GPUs, for a dedicated thread that calls `wait` in a loop.

    Other threads may call `register` at any time, also again for the same GPU.
    """

    def __init__(self, api: Any = pynvml) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._cards: dict[object, tuple[Any, str]] = {}
        self._set: Any = None

    def register(self, handle: Any) -> bool:
        """Register a GPU for later XIDs. Return False where it has no such events. May hang; raises NVMLError."""
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
                    self._cards[_key(handle)] = handle, uuid
                    registered_in = self._set
                api.nvmlDeviceRegisterEvents(handle, _XID, registered_in)  # without the lock: it may hang
        except pynvml.NVMLError as error:
            self._cards.pop(_key(handle), None)
            if error.value in UNSUPPORTED:
                return False
            raise
        return True

    def wait(self, timeout_s: float) -> tuple[str, int] | None:
        """Return UUID and number of the next XID, or None after the timeout. Raises NVMLError.

        While a GPU of the set is lost, NVML ends every wait at once: the set is then replaced by one without that GPU.
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
        card = self._cards.get(_key(event.device))
        return (card[1], int(event.eventData)) if card else None

    def _drop_lost(self) -> None:
        """Replace the event set. XIDs that occur between the two sets are missed.

        The old set, of a few bytes, is not freed, since another thread may be registering a GPU in it.
        """
        with self._lock:
            events = self._set = self._api.nvmlEventSetCreate()
            cards = list(self._cards.items())
        for key, (handle, _) in cards:
            try:
                self._api.nvmlDeviceRegisterEvents(handle, _XID, events)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_GPU_IS_LOST:
                    raise
                self._cards.pop(key, None)
        with self._lock:
            if not self._cards:
                self._set = None


def _key(handle: Any) -> object:
    """Return a comparable key: pynvml's handles are pointer objects, which compare by identity."""
    return ctypes.cast(handle, ctypes.c_void_p).value if isinstance(handle, pynvml.c_nvmlDevice_t) else handle

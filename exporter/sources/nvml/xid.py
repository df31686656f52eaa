"""XIDs: what the driver reports as wrong with a card, as it happens."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

import pynvml

from exporter.sources.nvml.card import text
from exporter.sources.nvml.errors import LACKING

_XID = pynvml.nvmlEventTypeXidCriticalError


class XidWatch:
    """One event set of all cards, for a thread of its own that calls `wait` again and again.

    `register` may be called from other threads meanwhile, whenever a card was attached, also once more.
    """

    def __init__(self, api: Any = pynvml) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._cards: dict[object, tuple[Any, str]] = {}
        self._set: Any = None

    def register(self, handle: Any) -> bool:
        """False where the card has no such events. XIDs from before are not reported. May hang; raises NVMLError."""
        api = self._api
        try:
            if not api.nvmlDeviceGetSupportedEventTypes(handle) & _XID:
                return False
            uuid = text(api.nvmlDeviceGetUUID(handle))  # now, since a card that fell off the bus cannot tell any more
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
            if error.value in LACKING:
                return False
            raise
        return True

    def wait(self, timeout_s: float) -> tuple[str, int] | None:
        """The card's UUID and the number of the next XID; None where there was none. Raises NVMLError.

        NVML ends every wait at once while a card of the set is lost: the set is then made anew without that one.
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
                self._drop_the_lost()
            elif error.value != pynvml.NVML_ERROR_TIMEOUT:
                raise
            return None
        card = self._cards.get(_key(event.device))
        return (card[1], int(event.eventData)) if card else None

    def _drop_the_lost(self) -> None:
        """XIDs that come just now, between the two sets, are missed.

        The old set is not freed, since a thread may be about to register in it: a few bytes for each card that is lost.
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
    """Handles of pynvml are pointers, which compare by where they are kept, not by where they point."""
    return ctypes.cast(handle, ctypes.c_void_p).value if isinstance(handle, pynvml.c_nvmlDevice_t) else handle

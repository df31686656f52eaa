"""What NVML's error codes mean: a card that lacks something, one that cannot tell just now, a driver that is gone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pynvml

from exporter.model import SourceError, boottime

AGAIN_S = 10.0
LACKING = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    }
)
_NOT_NOW = frozenset(
    {
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_CORRUPTED_INFOROM,
        pynvml.NVML_ERROR_IN_USE,
        pynvml.NVML_ERROR_NOT_READY,
    }
)
_DRIVER_GONE = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
_UNLOADED = (pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_REMEDIES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver on this machine: install one, or use --simulate 2xH200",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "load the driver: sudo nvidia-modprobe, then nvidia-smi",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "library and kernel module differ: reboot, or reload the module",
    pynvml.NVML_ERROR_NO_PERMISSION: "no access to /dev/nvidia*: check its permissions, or the container's devices",
}


def describe(error: pynvml.NVMLError) -> SourceError:
    return SourceError(f"NVML: {error}", _REMEDIES.get(error.value, "see what nvidia-smi says"))


def driver_is_gone(error: pynvml.NVMLError) -> bool:
    return error.value in _DRIVER_GONE


def is_unloaded(error: BaseException | None) -> bool:
    """Whether the driver was seen not to be loaded, or went while it was open: its counters come back from 0."""
    return isinstance(error, pynvml.NVMLError) and error.value in _UNLOADED


def optional(read: Callable[[], Any]) -> Any:
    """The value, or None where the card does not tell it; other errors are the caller's."""
    try:
        return read()
    except pynvml.NVMLError as error:
        if error.value in LACKING or error.value in _NOT_NOW:
            return None
        raise


class Ask:
    """Asks a card, and remembers: what it said it lacks for good, what it could not tell just now for ten seconds.

    `tolerates_unknown`: NVML's "Unknown Error" too is no more than a value that is missing. It stands at single values
    of cards that are otherwise well, and for cards that are ill as a whole; the reading of energy tells which.
    """

    def __init__(self, now: Callable[[], float] = boottime, *, tolerates_unknown: bool = False) -> None:
        self._now = now
        self._not_now = _NOT_NOW | ({pynvml.NVML_ERROR_UNKNOWN} if tolerates_unknown else set())
        self._again_s: dict[object, float] = {}

    def __call__(self, what: object, read: Callable[[], Any]) -> Any:
        """The answer, or None."""
        if self.is_silent(what):
            return None
        try:
            return read()
        except pynvml.NVMLError as error:
            if not self.takes(what, error.value):
                raise
            return None

    def is_silent(self, what: object) -> bool:
        again_s = self._again_s.get(what)
        return again_s is not None and self._now() < again_s

    def takes(self, what: object, code: int) -> bool:
        """Whether that error means a value that is missing; it is then remembered."""
        if code in LACKING:
            self._again_s[what] = math.inf
        elif code in self._not_now:
            self._again_s[what] = self._now() + AGAIN_S
        else:
            return False
        return True

    def is_lacking(self, what: object) -> bool:
        """Whether the card has said that it will never tell."""
        return self._again_s.get(what) == math.inf

    def forget(self) -> None:
        """Ask for everything again: the card is in another mode now."""
        self._again_s.clear()

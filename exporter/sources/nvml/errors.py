"""Meaning of NVML error codes: unsupported, temporarily unavailable, or no driver."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pynvml

from exporter.model import SourceError, boottime

RETRY_S = 10.0
"""Time until a temporarily unavailable value is read again."""
UNSUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    }
)
_UNAVAILABLE = frozenset(
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
    pynvml.NVML_ERROR_NO_PERMISSION: "no access to /dev/nvidia*: check its permissions or the container's devices",
}


def nvml_source_error(error: pynvml.NVMLError) -> SourceError:
    return SourceError(f"NVML: {error}", _REMEDIES.get(error.value, "see what nvidia-smi says"))


def driver_is_gone(error: pynvml.NVMLError) -> bool:
    return error.value in _DRIVER_GONE


def is_unloaded(error: BaseException | None) -> bool:
    """Return whether the driver was unloaded, now or while NVML was open: its counters restart from 0."""
    return isinstance(error, pynvml.NVMLError) and error.value in _UNLOADED


def optional(read: Callable[[], Any]) -> Any:
    """Return the value, or None where the GPU does not provide it. Other errors are raised."""
    try:
        return read()
    except pynvml.NVMLError as error:
        if error.value in UNSUPPORTED or error.value in _UNAVAILABLE:
            return None
        raise


class NvmlQuery:
    """Queries of one GPU. Unsupported values are not read again, unavailable ones only after RETRY_S.

    `tolerates_unknown`: NVML's "Unknown Error" counts as an unavailable value. Healthy GPUs report it for single values
    and failing GPUs for all of them; the read of energy, which does not tolerate it, distinguishes them.
    """

    def __init__(self, now: Callable[[], float] = boottime, *, tolerates_unknown: bool = False) -> None:
        self._now = now
        self._unavailable = _UNAVAILABLE | ({pynvml.NVML_ERROR_UNKNOWN} if tolerates_unknown else set())
        self._retry_s: dict[object, float] = {}

    def __call__(self, what: object, read: Callable[[], Any]) -> Any:
        """Return the result of `read`, or None where the value is missing."""
        if self.is_paused(what):
            return None
        try:
            return read()
        except pynvml.NVMLError as error:
            if not self.tolerates(what, error.value):
                raise
            return None

    def is_paused(self, what: object) -> bool:
        retry_s = self._retry_s.get(what)
        return retry_s is not None and self._now() < retry_s

    def tolerates(self, what: object, code: int) -> bool:
        """Return whether the error means a missing value, and remember it."""
        if code in UNSUPPORTED:
            self._retry_s[what] = math.inf
        elif code in self._unavailable:
            self._retry_s[what] = self._now() + RETRY_S
        else:
            return False
        return True

    def is_unsupported(self, what: object) -> bool:
        """Return whether the GPU has reported that it does not support the value."""
        return self._retry_s.get(what) == math.inf

    def forget(self) -> None:
        """Forget all errors, after a change of the GPU's mode."""
        self._retry_s.clear()

"""Access to one GPU: NVML errors, its handle, its labels, and field values in one call."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import pynvml

from exporter.model import GpuInfo, SourceError, boottime

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
    return SourceError(f"NVML: {error}", _REMEDIES.get(error.value, "check it with nvidia-smi"))


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


@dataclass(frozen=True, slots=True)
class GpuHandle:
    """One attached GPU. `api` is pynvml or replaces it; `now` is CLOCK_BOOTTIME, or a test's clock."""

    api: Any
    handle: Any
    info: GpuInfo
    usage_is_average: bool = False
    now: Callable[[], float] = boottime

    @property
    def labels(self) -> tuple[str, str]:
        return self.info.index, self.info.uuid


def nvml_text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_FIELD = Struct("=24xii8s")
"""nvmlFieldValue_t: id, scope, timestamp and latency (skipped), then value type, status and value."""
_MEMBERS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: Struct("=d"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: Struct("=I"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: Struct("=Q"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: Struct("=Q"),
}
WIDE = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
_SLOWDOWN_FIELDS_ADDED = (570, 0)
_SLOWDOWN_FIELDS_RENUMBERED = (580, 82)


def decode_fields(fields: Any) -> Iterator[tuple[int, int, float | None]]:
    """Yield type, status and value of each field, whose union member depends on the driver.

    All structures are unpacked at once: each attribute of pynvml's costs a Python call, and this runs 200 times a
    second.
    """
    for kind, status, value in _FIELD.iter_unpack(fields):
        read = _MEMBERS.get(kind) if status == pynvml.NVML_SUCCESS else None
        yield kind, status, None if read is None else read.unpack_from(value)[0]


class FieldReader:
    """Field values read in one call. Fields that the GPU does not support are not read again.

    On some GPUs an unsupported memory temperature alone takes a millisecond.
    """

    def __init__(self, card: GpuHandle, query: NvmlQuery) -> None:
        self._card = card
        self._query = query

    def read(self, fields: Sequence[int], *, only_wide: frozenset[int] = frozenset()) -> dict[int, float]:
        """Return the available values. Fields in `only_wide` must have 64 bits."""
        readable = [field for field in fields if not self._query.is_paused(("field", field))]
        if not readable:
            return {}
        answer = self._query("fields", lambda: self._card.api.nvmlDeviceGetFieldValues(self._card.handle, readable))
        if answer is None:
            return {}
        values = {}
        for field, (kind, status, value) in zip(readable, decode_fields(answer), strict=True):
            if field in only_wide and value is not None and kind not in WIDE:
                self._query.tolerates(("field", field), pynvml.NVML_ERROR_NOT_SUPPORTED)
            elif value is not None:
                values[field] = float(value)
            elif not self._query.tolerates(("field", field), status):
                self._query.tolerates(("field", field), pynvml.NVML_ERROR_NO_DATA)
        return values

    def lacks(self, field: int) -> bool:
        return self._query.is_unsupported(("field", field)) or self._query.is_unsupported("fields")


def clock_event_fields(driver_version: str) -> dict[str, int]:
    """Return the fields that count, in nanoseconds, how long each clock event reason was active.

    Driver 570 added those of the slowdowns, and 580.82 renumbered them: their old numbers are now settings of power
    smoothing. https://docs.nvidia.com/deploy/nvml-api/known-issues.html
    """
    fields = {
        "sw_power_cap": pynvml.NVML_FI_DEV_PERF_POLICY_POWER,
        "sync_boost": pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST,
    }
    match = re.search(r"(\d+)\.(\d+)", driver_version)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version >= _SLOWDOWN_FIELDS_ADDED:
        first = 269 if version >= _SLOWDOWN_FIELDS_RENUMBERED else 251
        slowdowns = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
        fields |= {reason: first + i for i, reason in enumerate(slowdowns)}
    return fields

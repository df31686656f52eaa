"""Access to one GPU: NVML errors, its handle, its labels, and field values in one call."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

import pynvml

from wattline_exporter.sensors.readings import GpuInfo, SourceError, boottime

RETRY_S = 10.0
"""Time until a temporarily unavailable value is read again."""
UNSUPPORTED_RETRY_S = 600.0
"""Time until a value that the GPU reported as unsupported is read again: a driver may report that
in error.
"""
ENERGY_RETRY_S = 60.0
"""Longest time until a missing energy or power is read again."""
FIRST_RETRY_S = 0.05
"""Time until the third attempt to read a missing energy or power; it doubles with each further
attempt.
"""
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
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver on this machine: install one, or use "
    "--simulate 2xH200",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "load the driver: sudo nvidia-modprobe, then nvidia-smi",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "library and kernel module differ: reboot, or "
    "reload the module",
    pynvml.NVML_ERROR_NO_PERMISSION: "no access to /dev/nvidia*: check its permissions or the "
    "container's devices",
}


def nvml_source_error(error: pynvml.NVMLError) -> SourceError:
    return SourceError(f"NVML: {error}", _REMEDIES.get(error.value, "check it with nvidia-smi"))


def driver_is_gone(error: pynvml.NVMLError) -> bool:
    return error.value in _DRIVER_GONE


def is_unloaded(error: BaseException | None) -> bool:
    """Return whether the driver was unloaded, now or while NVML was open: its counters restart from
    0.
    """
    return isinstance(error, pynvml.NVMLError) and error.value in _UNLOADED


def if_supported(read: Callable[[], Any]) -> Any:
    """Return the value, or None where the GPU does not provide it. Other errors are raised."""
    try:
        return read()
    except pynvml.NVMLError as error:
        if error.value in UNSUPPORTED or error.value in _UNAVAILABLE:
            return None
        raise


class _Failure(NamedTuple):
    """Failed reads of one value in a row."""

    attempts: int
    retry_s: float
    unsupported: bool


class NvmlQuery:
    """Queries of one GPU. A missing value is read again after a while, since any error may be
    temporary.

    `tolerates_unknown`: NVML's "Unknown Error" counts as an unavailable value. Healthy GPUs report
    it for single values and failing GPUs for all of them; the read of energy, which does not
    tolerate it, distinguishes them. `retries_soon`: the first attempts follow each other within a
    second, for energy and power.
    """

    def __init__(
        self,
        now: Callable[[], float] = boottime,
        *,
        tolerates_unknown: bool = False,
        retries_soon: bool = False,
    ) -> None:
        self._now = now
        self._unavailable = _UNAVAILABLE | (
            {pynvml.NVML_ERROR_UNKNOWN} if tolerates_unknown else set()
        )
        self._retries_soon = retries_soon
        self._failures: dict[object, _Failure] = {}

    def __call__(self, what: object, read: Callable[[], Any]) -> Any:
        """Return the result of `read`, or None where the value is missing."""
        if self._failures and self.is_paused(what):
            return None
        try:
            value = read()
        except pynvml.NVMLError as error:
            if not self.tolerates(what, error.value):
                raise
            return None
        if self._failures:
            self.succeeded(what)
        return value

    def is_paused(self, what: object) -> bool:
        failure = self._failures.get(what)
        return failure is not None and self._now() < failure.retry_s

    def succeeded(self, what: object) -> None:
        """Forget the errors of a value that was read."""
        self._failures.pop(what, None)

    def tolerates(self, what: object, code: int) -> bool:
        """Return whether the error means a missing value, and remember it."""
        unsupported = code in UNSUPPORTED
        if not unsupported and code not in self._unavailable:
            return False
        before = self._failures.get(what)
        count = before.attempts + 1 if before else 1
        wait_s = UNSUPPORTED_RETRY_S if unsupported else RETRY_S
        if self._retries_soon:
            longest_s = ENERGY_RETRY_S if unsupported else RETRY_S
            wait_s = (
                0.0 if count == 1 else min(FIRST_RETRY_S * 2.0 ** min(count - 2, 16), longest_s)
            )
        self._failures[what] = _Failure(count, self._now() + wait_s, unsupported)
        return True

    def is_unsupported(self, what: object) -> bool:
        """Return whether the GPU's last answer was that it does not support the value."""
        failure = self._failures.get(what)
        return failure is not None and failure.unsupported

    def forget(self) -> None:
        """Forget all errors, after a change of the GPU's mode."""
        self._failures.clear()


@dataclass(frozen=True, slots=True)
class GpuHandle:
    """One attached GPU. `api` is pynvml or replaces it; `now` is CLOCK_BOOTTIME, or a test's
    clock.
    """

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
"""nvmlFieldValue_t: id, scope, timestamp and latency (skipped), then value type, status and value.
"""
_MEMBERS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: Struct("=d").unpack_from,
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: Struct("=I").unpack_from,
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: Struct("=Q").unpack_from,
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: Struct("=Q").unpack_from,
}
WIDE = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
_SLOWDOWN_FIELDS_ADDED = (570, 0)
_SLOWDOWN_FIELDS_RENUMBERED = (580, 82)


def decode_fields(fields: Any) -> list[tuple[int, int, float | None]]:
    """Return type, status and value of each field, whose union member depends on the driver.

    All structures are unpacked at once: each attribute of pynvml's costs a Python call, and this
    runs 200 times a second.
    """
    return [
        (
            kind,
            status,
            _MEMBERS[kind](value)[0]
            if status == pynvml.NVML_SUCCESS and kind in _MEMBERS
            else None,
        )
        for kind, status, value in _FIELD.iter_unpack(fields)
    ]


def field_call(card: GpuHandle, fields: Sequence[int]) -> Callable[[], Any]:
    """Return a function that reads the same fields into the same array each time. It raises
    NVMLError.

    pynvml's own function builds a new array, which takes ten times as long as the call of the
    driver.
    """
    library = getattr(card.api, "nvmlLib", None)
    call = getattr(library, "nvmlDeviceGetFieldValues", None)
    if call is None:
        return lambda: card.api.nvmlDeviceGetFieldValues(card.handle, fields)
    empty = (pynvml.c_nvmlFieldValue_t * len(fields))()
    for value, field in zip(empty, fields, strict=True):
        value.fieldId = field
    values = type(empty)()
    size = ctypes.sizeof(empty)
    handle = card.handle
    count = len(fields)
    read_bytes = memoryview(values).cast(
        "B"
    )  # unpacking takes half the time of that of an array of structures

    def read() -> Any:
        ctypes.memmove(values, empty, size)  # no value of an earlier call remains
        code = call(handle, count, values)
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)
        return read_bytes

    return read


class FieldReader:
    """Field values read in one call. Fields that the GPU does not support are read rarely.

    On some GPUs an unsupported memory temperature alone takes a millisecond.
    """

    def __init__(self, card: GpuHandle, query: NvmlQuery) -> None:
        self._card = card
        self._query = query

    def read(
        self, fields: Sequence[int], *, only_wide: frozenset[int] = frozenset()
    ) -> dict[int, float]:
        """Return the available values. Fields in `only_wide` must have 64 bits."""
        readable = [field for field in fields if not self._query.is_paused(("field", field))]
        if not readable:
            return {}
        answer = self._query(
            "fields", lambda: self._card.api.nvmlDeviceGetFieldValues(self._card.handle, readable)
        )
        if answer is None:
            return {}
        values = {}
        for field, (kind, status, value) in zip(readable, decode_fields(answer), strict=True):
            if field in only_wide and value is not None and kind not in WIDE:
                self._query.tolerates(("field", field), pynvml.NVML_ERROR_NOT_SUPPORTED)
            elif value is not None:
                values[field] = float(value)
                self._query.succeeded(("field", field))
            elif not self._query.tolerates(("field", field), status):
                self._query.tolerates(("field", field), pynvml.NVML_ERROR_NO_DATA)
        return values

    def lacks(self, field: int) -> bool:
        return self._query.is_unsupported(("field", field)) or self._query.is_unsupported("fields")


def clock_event_fields(driver_version: str) -> dict[str, int]:
    """Return the fields that count, in nanoseconds, how long each clock event reason was active.

    Driver 570 added those of the slowdowns, and 580.82 renumbered them: their old numbers are now
    settings of power smoothing. https://docs.nvidia.com/deploy/nvml-api/known-issues.html
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

"""Access to one GPU: its NVML handle, its labels, and field values in one call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import pynvml

from exporter.model import GpuInfo, boottime
from exporter.sources.nvml.errors import NvmlQuery


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

    def read(self, wanted: Sequence[int], *, only_wide: frozenset[int] = frozenset()) -> dict[int, float]:
        """Return the available values. Fields in `only_wide` must have 64 bits."""
        readable = [field for field in wanted if not self._query.is_paused(("field", field))]
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
    found = re.search(r"(\d+)\.(\d+)", driver_version)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version >= _SLOWDOWN_FIELDS_ADDED:
        first = 269 if version >= _SLOWDOWN_FIELDS_RENUMBERED else 251
        slowdowns = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
        fields |= {reason: first + i for i, reason in enumerate(slowdowns)}
    return fields

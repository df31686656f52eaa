"""What all that reads one card needs to know of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import pynvml

from exporter.model import Gpu, boottime
from exporter.sources.nvml.errors import Ask


@dataclass(frozen=True, slots=True)
class Card:
    """`api` is pynvml or stands for it; `now` is CLOCK_BOOTTIME; tests give their own."""

    api: Any
    handle: Any
    info: Gpu
    usage_is_average: bool = False
    now: Callable[[], float] = boottime

    @property
    def labels(self) -> tuple[str, str]:
        return self.info.index, self.info.uuid


def text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_FIELD = Struct("=24xii8s")
"""nvmlFieldValue_t: id, scope, time stamp and latency, then the value's type, the call's status and the value."""
_MEMBERS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: Struct("=d"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: Struct("=I"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: Struct("=Q"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: Struct("=Q"),
}
WIDE = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
_EVENTS_CAME = (570, 0)
_RENUMBERED = (580, 82)


def decode(fields: Any) -> Iterator[tuple[int, int, float | None]]:
    """Type, status and value of each field, of a union whose member depends on the driver.

    The structures are unpacked at once: pynvml's attributes cost a Python call each, and this runs 200 times a second.
    """
    for kind, status, value in _FIELD.iter_unpack(fields):
        read = _MEMBERS.get(kind) if status == pynvml.NVML_SUCCESS else None
        yield kind, status, None if read is None else read.unpack_from(value)[0]


class Fields:
    """Field values in one call; a field that the card lacks costs nothing from then on.

    That is worth it: an unsupported memory temperature alone takes a millisecond on some cards.
    """

    def __init__(self, card: Card, ask: Ask) -> None:
        self._card = card
        self._ask = ask

    def read(self, wanted: Sequence[int], *, only_wide: frozenset[int] = frozenset()) -> dict[int, float]:
        """What the card tells of `wanted`. Those in `only_wide` count only where the driver gives them 64 bits."""
        asked = [field for field in wanted if not self._ask.is_silent(("field", field))]
        if not asked:
            return {}
        answer = self._ask("fields", lambda: self._card.api.nvmlDeviceGetFieldValues(self._card.handle, asked))
        if answer is None:
            return {}
        values = {}
        for field, (kind, status, value) in zip(asked, decode(answer), strict=True):
            if field in only_wide and value is not None and kind not in WIDE:
                self._ask.takes(("field", field), pynvml.NVML_ERROR_NOT_SUPPORTED)
            elif value is not None:
                values[field] = float(value)
            elif not self._ask.takes(("field", field), status):
                self._ask.takes(("field", field), pynvml.NVML_ERROR_NO_DATA)
        return values

    def lacks(self, field: int) -> bool:
        return self._ask.is_lacking(("field", field)) or self._ask.is_lacking("fields")


def clock_event_fields(driver_version: str) -> dict[str, int]:
    """The fields that count, in nanoseconds, for how long a clock-event reason held.

    Those of the slowdowns came with driver 570 and got other numbers with 580.82; under their old numbers the driver
    now gives settings of the power smoothing, and the reverse. https://docs.nvidia.com/deploy/nvml-api/known-issues.html
    """
    fields = {
        "sw_power_cap": pynvml.NVML_FI_DEV_PERF_POLICY_POWER,
        "sync_boost": pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST,
    }
    found = re.search(r"(\d+)\.(\d+)", driver_version)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version >= _EVENTS_CAME:
        first = 269 if version >= _RENUMBERED else 251
        slowdowns = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
        fields |= {reason: first + i for i, reason in enumerate(slowdowns)}
    return fields

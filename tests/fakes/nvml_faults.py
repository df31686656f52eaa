"""Faults of the loadable driver with begin and end; `tests/fakes/nvml/scheduled_faults.c` reads their file."""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum
from pathlib import Path
from typing import Self

ENVIRONMENT = "WATTLINE_SIMULATED_FAULTS"
_RECORD = struct.Struct("<2I3d")
_BEGIN_AT = 8
_RECORDS = 16


class FaultKind(IntEnum):
    """Kinds of faults: each call fails with an NVML error code, power reads a number of watts, the counter's slope."""

    ERROR = 1
    POWER = 2
    COUNTER_SLOPE = 3


class ScheduledFaults:
    """Faults of one simulated node, which running processes see at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(_RECORD.size * _RECORDS))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._count = 0

    def add(self, gpu: int, kind: FaultKind, begin_s: float, end_s: float, value: float) -> None:
        """Let the fault last from `begin_s` to `end_s`, in seconds of CLOCK_BOOTTIME."""
        start = self._count * _RECORD.size
        self._map[start : start + _RECORD.size] = _RECORD.pack(gpu, kind, 0.0, end_s, value)
        self._map[start + _BEGIN_AT : start + _BEGIN_AT + 8] = struct.pack("<d", begin_s)
        self._count += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

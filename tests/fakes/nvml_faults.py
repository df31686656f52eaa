"""Faults of the loadable driver with begin and end; `tests/fakes/nvml/scheduled_faults.c` reads
their file.
"""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum
from pathlib import Path
from typing import Self

ENVIRONMENT = "WATTLINE_SIMULATED_FAULTS"
ALL_GPUS = 2**32 - 1
"""Place of a fault of the whole driver, initialization included; only `ERROR`."""
_RECORD = struct.Struct("<2I4d")
_BEGIN_AT = 8
_RECORDS = 64


class Quantity(IntEnum):
    """Quantities whose reading fails."""

    ANY = 0
    COUNTER = 1
    POWER = 2


class FaultKind(IntEnum):
    """Kinds of faults, with their value and a second one, which is 0 by default.

    ERROR: calls fail with an NVML error code, a share of them unless that is 0. POWER: watts that
    are reported. COUNTER_SLOPE: ratio to the true slope from the begin on. COUNTER_STEP: joules
    that are added once, or each time a second value in seconds has passed. COUNTER_RESTART: joules
    at the begin. COUNTER_SCALE: ratio to the true counter. COUNTER_READS: joules, below 0 for
    2^64-1 mJ, in a share of the calls. COUNTER_NOISE: largest error in joules. COUNTER_LATE: delay
    in seconds. POWER_SCALE: ratio to the true power. POWER_RANDOM: highest watts. FIELD_ERROR: NVML
    error code of a Quantity. FIELD_TYPE: value type. FIELD_TIME: timestamp. SLOW: seconds of each
    call. SPIN: calls use the CPU until the end of the fault. END: calls end the process by a
    signal; 0: by exit(0). UUID: another UUID. PROCESSES: number of further processes.
    """

    ERROR = 1
    POWER = 2
    COUNTER_SLOPE = 3
    COUNTER_STEP = 4
    COUNTER_RESTART = 5
    COUNTER_SCALE = 6
    COUNTER_READS = 7
    COUNTER_NOISE = 8
    COUNTER_LATE = 9
    POWER_SCALE = 10
    POWER_RANDOM = 11
    FIELD_ERROR = 12
    FIELD_TYPE = 13
    FIELD_TIME = 14
    SLOW = 15
    SPIN = 16
    END = 17
    UUID = 18
    PROCESSES = 19


class ScheduledFaults:
    """Faults of one simulated node, which running processes see at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(_RECORD.size * _RECORDS))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._count = 0

    def add(  # noqa: PLR0917  # the members of a record
        self,
        gpu: int,
        kind: FaultKind,
        begin_s: float,
        end_s: float,
        value: float = 0.0,
        second: float = 0.0,
    ) -> None:
        """Let the fault last from `begin_s` to `end_s`, in seconds of CLOCK_BOOTTIME."""
        start = self._count * _RECORD.size
        self._map[start : start + _RECORD.size] = _RECORD.pack(gpu, kind, 0.0, end_s, value, second)
        self._map[start + _BEGIN_AT : start + _BEGIN_AT + 8] = struct.pack("<d", begin_s)
        self._count += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

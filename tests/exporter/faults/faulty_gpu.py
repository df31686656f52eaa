"""Driver calls of a simulated GPU with a fault, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct

import pynvml

from wattline_exporter.runs import marks as run_marks
from wattline_exporter.simulation import SimulatedGpuState
from wattline_exporter.simulation.sensors import average_w, counter_j, instant_w

_FIELDS = Struct("=" + 3 * "24xiiQ")
"""Three nvmlFieldValue_t: value type, status and value of each; the other members are empty."""
_LONG, _INT = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
_64_BITS, _32_BITS = 2**64, 2**32
START_S = 1_000.0
WATCHED_S = run_marks.DOUBTED_S + 1.0
"""Time after the run's end for which the GPU is polled, since late doubts may widen the interval.
"""


@dataclass
class Answers:
    """Answers of the driver for one GPU at one instant, which a fault may change. Powers in mW,
    energy in mJ.

    `error`: NVML's code for the calls named in `failing`, all of them where it is empty.
    """

    t_s: float
    counter_mj: float | None
    instant_mw: float | None
    average_mw: float | None
    error: int | None = None
    failing: tuple[str, ...] = ()
    call_s: float = 0.0001
    kind: int | None = None
    status: int | None = None


Fault = Callable[["FaultyGpu", Answers], None]


@dataclass
class FaultyGpu:
    """Driver calls of one simulated GPU, with a fault from `fault_s` on. `memory` is the fault's
    own.
    """

    gpu: SimulatedGpuState
    rng: random.Random
    fault: Fault | None = None
    fault_s: float = float("inf")
    clock_s: float = START_S
    memory: dict[str, float] = field(default_factory=dict)
    has_counter: bool = True
    has_average: bool = True
    watched_s: float = WATCHED_S

    def now(self) -> float:
        return self.clock_s

    @property
    def since_s(self) -> float:
        """Time since the start of the fault."""
        return self.clock_s - self.fault_s

    def _answers(self, call: str) -> Answers:
        read_s = self.clock_s + 0.00005
        answers = Answers(
            self.clock_s,
            round(counter_j(self.gpu, read_s) * 1e3) if self.has_counter else None,
            round(instant_w(self.gpu, read_s) * 1e3),
            round(average_w(self.gpu, read_s) * 1e3) if self.has_average else None,
        )
        if self.fault and self.since_s >= 0:
            self.fault(self, answers)
        self.clock_s += answers.call_s
        if answers.error is not None and (not answers.failing or call in answers.failing):
            raise pynvml.NVMLError(answers.error)
        return answers

    def nvmlDeviceGetFieldValues(self, _handle, _fields):  # noqa: N802  # pynvml's name
        """Return the fields of energy and power as bytes, as the product reads them from the
        driver's array.
        """
        answers = self._answers("fields")
        counter_mj, instant_mw, average_mw = (
            answers.counter_mj,
            answers.instant_mw,
            answers.average_mw,
        )
        if (
            answers.kind is None
            and answers.status is None
            and None not in (counter_mj, instant_mw, average_mw)
        ):
            numbers = (
                int(counter_mj) % _64_BITS,
                int(instant_mw) % _32_BITS,
                int(average_mw) % _32_BITS,
            )
            return _FIELDS.pack(_LONG, 0, numbers[0], _INT, 0, numbers[1], _INT, 0, numbers[2])
        packed = []
        for number, usual in zip(
            (counter_mj, instant_mw, average_mw), (_LONG, _INT, _INT), strict=True
        ):
            kind = usual if answers.kind is None else answers.kind
            is_missing = number is None or answers.status is not None
            status = (answers.status or pynvml.NVML_ERROR_NOT_SUPPORTED) if is_missing else 0
            packed += [
                kind,
                status,
                0 if is_missing else int(number) % (_64_BITS if kind == _LONG else _32_BITS),
            ]
        return _FIELDS.pack(*packed)

    def nvmlDeviceGetTotalEnergyConsumption(self, _handle):  # noqa: N802  # pynvml's name
        answers = self._answers("counter")
        if answers.counter_mj is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return int(answers.counter_mj)

    def nvmlDeviceGetPowerUsage(self, _handle):  # noqa: N802  # pynvml's name
        answers = self._answers("power")
        watts = answers.average_mw if self.has_average else answers.instant_mw
        return int(watts or 0)

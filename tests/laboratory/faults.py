"""Faults of GPU sensors and driver calls, by name, for virtual time and for the loadable driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pynvml

from tests.exporter.faults.faulty_gpu import Answers, FaultyGpu
from tests.exporter.faults.faulty_gpu import Fault as VirtualFault
from tests.fakes.nvml_faults import FaultKind, Quantity, ScheduledFaults
from wattline_exporter.simulation import Fault, Simulation
from wattline_exporter.simulation.sensors import counter_j

FOREVER_S = 1e6
_MOST_MW = 2**32 - 1
_MOST_MJ = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Event:
    """Fault of one GPU in a run, with its times in seconds of CLOCK_BOOTTIME."""

    simulation: Simulation
    scheduled: ScheduledFaults
    gpu: int
    at_s: float
    end_s: float
    """End of the run."""


Action = Callable[[Event], None]


def set_fault(fault: Fault, *, on: bool) -> Action:
    """Return an action that starts or ends a fault of the simulated GPU."""
    return lambda event: event.simulation.set_fault(event.gpu, fault, on=on)


@dataclass(frozen=True, slots=True)
class SensorFault:
    """Change of the driver's answers for some seconds; FaultKind describes the two values."""

    kind: FaultKind
    seconds: float
    value: float = 0.0
    second: float = 0.0

    def schedule(self, event: Event) -> None:
        """Prepare the fault in the loadable driver."""
        until_s = event.at_s + self.seconds
        event.scheduled.add(event.gpu, self.kind, event.at_s, until_s, self.value, self.second)

    def __call__(self, gpu: FaultyGpu, answers: Answers) -> None:
        """Change the answers of a GPU in virtual time."""
        if gpu.since_s >= self.seconds:
            return
        if self.kind is FaultKind.ERROR:
            if self._is_hit(gpu):
                answers.error = int(self.value)
        elif self.kind is FaultKind.SLOW:
            answers.call_s = self.value
        elif self.kind is FaultKind.FIELD_TYPE:
            answers.kind = int(self.value)
        elif self.kind is FaultKind.FIELD_ERROR:
            self._fail_fields(answers)
        elif self.kind.name.startswith("POWER"):
            answers.instant_mw = self._power_mw(gpu, answers.instant_mw)
            answers.average_mw = self._power_mw(gpu, answers.average_mw)
        elif answers.counter_mj is not None:
            answers.counter_mj = self._counter_mj(gpu, answers.counter_mj)

    def _is_hit(self, gpu: FaultyGpu) -> bool:
        """Return whether this call is one of the share that the second value states; 0: all."""
        return self.second <= 0.0 or gpu.rng.random() < self.second

    def _fail_fields(self, answers: Answers) -> None:
        if self.second == Quantity.COUNTER:
            answers.counter_mj = None
        elif self.second == Quantity.POWER:
            answers.instant_mw = None
            answers.average_mw = None
        else:
            answers.status = int(self.value)
            answers.error = int(self.value)
            answers.failing = ("counter", "power")

    def _power_mw(self, gpu: FaultyGpu, power_mw: float | None) -> float | None:
        if power_mw is None:
            return None
        changed_mw = {
            FaultKind.POWER: self.value * 1e3,
            FaultKind.POWER_SCALE: self.value * power_mw,
            FaultKind.POWER_RANDOM: gpu.rng.uniform(0.0, self.value * 1e3),
        }[self.kind]
        return min(changed_mw, _MOST_MW)

    def _counter_mj(self, gpu: FaultyGpu, counter_mj: float) -> float:
        before_mj = gpu.memory.setdefault("before the fault", counter_mj)
        match self.kind:
            case FaultKind.COUNTER_SLOPE:
                changed_mj = before_mj + self.value * (counter_mj - before_mj)
            case FaultKind.COUNTER_STEP:
                steps = 1 + int(gpu.since_s / self.second) if self.second > 0 else 1
                changed_mj = counter_mj + self.value * 1e3 * steps
            case FaultKind.COUNTER_RESTART:
                changed_mj = counter_mj - before_mj + self.value * 1e3
            case FaultKind.COUNTER_SCALE:
                changed_mj = counter_mj * self.value
            case FaultKind.COUNTER_READS:
                read_mj = _MOST_MJ if self.value < 0 else self.value * 1e3
                changed_mj = read_mj if self._is_hit(gpu) else counter_mj
            case FaultKind.COUNTER_NOISE:
                changed_mj = counter_mj + gpu.rng.uniform(-1.0, 1.0) * self.value * 1e3
            case FaultKind.COUNTER_LATE:
                changed_mj = round(counter_j(gpu.gpu, gpu.clock_s - self.value) * 1e3)
            case _:
                raise ValueError(f"no virtual fault of kind {self.kind.name}")
        return changed_mj


CODES = {
    "UNINITIALIZED": 1,
    "INVALID_ARGUMENT": 2,
    "NOT_SUPPORTED": 3,
    "NO_PERMISSION": 4,
    "NOT_FOUND": 6,
    "INSUFFICIENT_POWER": 8,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": 10,
    "IRQ_ISSUE": 11,
    "FUNCTION_NOT_FOUND": 13,
    "CORRUPTED_INFOROM": 14,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "OPERATING_SYSTEM": 17,
    "IN_USE": 19,
    "MEMORY": 20,
    "NO_DATA": 21,
    "ARGUMENT_VERSION_MISMATCH": 25,
    "NOT_READY": 27,
    "UNKNOWN": 999,
}
"""Numbers of NVML's errors."""


def error(code: str, seconds: float, share: float = 0.0) -> SensorFault:
    """Return a fault of all calls, or of a share of them."""
    return SensorFault(FaultKind.ERROR, seconds, CODES[code], share)


def counter_slope(ratio: float, seconds: float = FOREVER_S) -> SensorFault:
    """Return a fault of a counter that counts this ratio of the energy; 0: it is frozen."""
    return SensorFault(FaultKind.COUNTER_SLOPE, seconds, ratio)


def no_counter(seconds: float) -> SensorFault:
    return SensorFault(FaultKind.FIELD_ERROR, seconds, CODES["NOT_SUPPORTED"], Quantity.COUNTER)


def no_power(seconds: float) -> SensorFault:
    return SensorFault(FaultKind.FIELD_ERROR, seconds, CODES["NOT_SUPPORTED"], Quantity.POWER)


def _forever(kind: FaultKind, value: float, second: float = 0.0) -> SensorFault:
    return SensorFault(kind, FOREVER_S, value, second)


SENSOR_FAULTS: Mapping[str, SensorFault] = {
    **{f"{code} for 0.1 s": error(code, 0.1) for code in CODES},
    "IN_USE for 6 s": error("IN_USE", 6.0),
    "TIMEOUT for 6 s": error("TIMEOUT", 6.0),
    "NO_PERMISSION in 30 % of calls": error("NO_PERMISSION", FOREVER_S, 0.3),
    "UNKNOWN in 10 % of calls": error("UNKNOWN", FOREVER_S, 0.1),
    "hang of 30 s in a call": SensorFault(FaultKind.SLOW, 6.0, 30.0),
    "each call takes 0.3 s": _forever(FaultKind.SLOW, 0.3),
    "each call takes 5 s": _forever(FaultKind.SLOW, 5.0),
    "no counter permanently": no_counter(FOREVER_S),
    "no counter for 6 s": no_counter(6.0),
    "power not supported for 6 s": no_power(6.0),
    "fields without data for 3 s": SensorFault(FaultKind.FIELD_ERROR, 3.0, CODES["NO_DATA"]),
    "counter falls by 1 mJ every 0.73 s": _forever(FaultKind.COUNTER_STEP, -0.001, 0.73),
    "counter falls by 5 J every 0.73 s": _forever(FaultKind.COUNTER_STEP, -5.0, 0.73),
    "counter falls by 100 J once": _forever(FaultKind.COUNTER_STEP, -100.0),
    "counter jumps +200 J": _forever(FaultKind.COUNTER_STEP, 200.0),
    "counter jumps +500 J every 4 s": _forever(FaultKind.COUNTER_STEP, 500.0, 4.0),
    "counter jumps +900 J": _forever(FaultKind.COUNTER_STEP, 900.0),
    "counter jumps +1500 J": _forever(FaultKind.COUNTER_STEP, 1_500.0),
    "counter jumps +1e6 J": _forever(FaultKind.COUNTER_STEP, 1e6),
    "counter x 1000": _forever(FaultKind.COUNTER_SCALE, 1_000.0),
    "counter / 1000": _forever(FaultKind.COUNTER_SCALE, 0.001),
    "counter halves once": _forever(FaultKind.COUNTER_SCALE, 0.5),
    "counter slope / 1000": counter_slope(0.001),
    "counter slope x 1000": counter_slope(1_000.0),
    "counter frozen permanently": counter_slope(0.0),
    "counter frozen 10 s, then correct": counter_slope(0.0, 10.0),
    "counter frozen 4 s, then correct": counter_slope(0.0, 4.0),
    "counter 30 % slow": counter_slope(0.7),
    "counter 30 % fast": counter_slope(1.3),
    "counter reads 0 in 2 % of calls": _forever(FaultKind.COUNTER_READS, 0.0, 0.02),
    "counter reads 0 in 30 % of calls": _forever(FaultKind.COUNTER_READS, 0.0, 0.3),
    "counter reads 2^64-1 in 2 % of calls": _forever(FaultKind.COUNTER_READS, -1.0, 0.02),
    "counter reads 2^64-1 in 50 % of calls": _forever(FaultKind.COUNTER_READS, -1.0, 0.5),
    "counter restarts": _forever(FaultKind.COUNTER_RESTART, 0.0),
    "counter restarts at 3,000 J": _forever(FaultKind.COUNTER_RESTART, 3_000.0),
    "counter with noise of 20 J": _forever(FaultKind.COUNTER_NOISE, 20.0),
    "counter 2 s late": _forever(FaultKind.COUNTER_LATE, 2.0),
    "power 65,535 W": _forever(FaultKind.POWER, 65_535.0),
    "power 0 W": _forever(FaultKind.POWER, 0.0),
    "power random up to 700 W": _forever(FaultKind.POWER_RANDOM, 700.0),
    "power 2^32-1 mW": _forever(FaultKind.POWER, 1e9),
    "power stuck at 300 W": _forever(FaultKind.POWER, 300.0),
    "field type unsigned long": _forever(
        FaultKind.FIELD_TYPE, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG
    ),
    "field type double": _forever(FaultKind.FIELD_TYPE, pynvml.NVML_VALUE_TYPE_DOUBLE),
    "field type 99": _forever(FaultKind.FIELD_TYPE, 99),
}
"""Faults of a GPU with an energy counter."""
POWER_FAULTS: Mapping[str, SensorFault] = {
    **{
        name: SENSOR_FAULTS[name]
        for name in (
            "power 0 W",
            "power 65,535 W",
            "power stuck at 300 W",
            "power 2^32-1 mW",
            "UNKNOWN in 10 % of calls",
        )
    },
    "power in W instead of mW": _forever(FaultKind.POWER_SCALE, 0.001),
}
"""Faults of a GPU without one."""


# -- faults in virtual time that the loadable driver has in its simulated GPU, or not at all


def hang(seconds: float = 1e9) -> VirtualFault:
    """Let one call take until the end of the fault."""

    def fault(gpu: FaultyGpu, answers: Answers) -> None:
        answers.call_s = max(0.0001, seconds - gpu.since_s)

    return fault


def _failing_call(call: str, code: str) -> VirtualFault:
    def fault(_gpu: FaultyGpu, answers: Answers) -> None:
        answers.error = CODES[code]
        answers.failing = (call,)

    return fault


def _reloaded(silent_s: float) -> VirtualFault:
    """Let the driver be gone for a while, after which the counter begins at 0."""
    gone = error("DRIVER_NOT_LOADED", silent_s)
    restarted = _forever(FaultKind.COUNTER_RESTART, 0.0)

    def fault(gpu: FaultyGpu, answers: Answers) -> None:
        gone(gpu, answers)
        if gpu.since_s >= silent_s:
            restarted(gpu, answers)

    return fault


VIRTUAL_FAULTS: Mapping[str, VirtualFault] = {
    **SENSOR_FAULTS,
    "NOT_SUPPORTED for 2 s": error("NOT_SUPPORTED", 2.0),
    "NOT_SUPPORTED in 5 % of calls": error("NOT_SUPPORTED", FOREVER_S, 0.05),
    "fields not supported permanently": _failing_call("fields", "NOT_SUPPORTED"),
    "lost for 6 s": error("GPU_IS_LOST", 6.0),
    "lost permanently": error("GPU_IS_LOST", FOREVER_S),
    "hang for 3 s": hang(3.0),
    "hang permanently": hang(),
    "each call takes 1.5 s": _forever(FaultKind.SLOW, 1.5),
    "driver gone for 2 s": error("DRIVER_NOT_LOADED", 2.0),
    "driver gone permanently": error("DRIVER_NOT_LOADED", FOREVER_S),
    "driver gone for 2 s, counter from 0": _reloaded(2.0),
    "no counter for 0.2 s": no_counter(0.2),
    "counter at half the slope": counter_slope(0.5),
    "power in W instead of mW": POWER_FAULTS["power in W instead of mW"],
}
"""Faults of a GPU with an energy counter, in virtual time."""
_VIRTUAL_POWER_FAULTS: Mapping[str, VirtualFault] = {
    **POWER_FAULTS,
    "power x 1000": _forever(FaultKind.POWER_SCALE, 1_000.0),
    "power 0 W for 0.5 s": SensorFault(FaultKind.POWER, 0.5, 0.0),
    "lost for 3 s": error("GPU_IS_LOST", 3.0),
    "lost permanently": error("GPU_IS_LOST", FOREVER_S),
    "hang for 3 s": hang(3.0),
    "hang permanently": hang(),
    "NO_PERMISSION in 30 % of calls": SENSOR_FAULTS["NO_PERMISSION in 30 % of calls"],
    "NOT_SUPPORTED for 0.1 s": SENSOR_FAULTS["NOT_SUPPORTED for 0.1 s"],
    "each call takes 0.3 s": SENSOR_FAULTS["each call takes 0.3 s"],
    "driver gone for 2 s": error("DRIVER_NOT_LOADED", 2.0),
}
VIRTUAL_POWER_FAULTS: Mapping[str, VirtualFault] = {
    f"no counter: {name}": fault for name, fault in _VIRTUAL_POWER_FAULTS.items()
}
"""Faults of a GPU without one, in virtual time."""

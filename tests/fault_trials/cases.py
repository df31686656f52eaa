"""Faults of sensors, driver calls and driver, each with a name and its schedule in the loadable
driver.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pynvml

from tests.fakes.nvml_faults import ALL_GPUS, FaultKind, Quantity, ScheduledFaults
from wattline_exporter.simulation import Fault, Simulation

FOREVER_S = 1e6
SHORT_S = 0.1


@dataclass(frozen=True, slots=True)
class Event:
    """Time of a fault, in seconds of CLOCK_BOOTTIME, and the GPU that it affects."""

    simulation: Simulation
    scheduled: ScheduledFaults
    gpu: int
    at_s: float

    def add(self, kind: FaultKind, seconds: float, value: float = 0.0, second: float = 0.0) -> None:
        self.scheduled.add(self.gpu, kind, self.at_s, self.at_s + seconds, value, second)


Action = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of fault.

    `schedule` prepares it; `actions` change the simulation, by seconds after the time of the fault.
    `initial` are properties of the GPU from the start. A case with an own node may disturb the
    worker process; with `affects_all`, it affects all GPUs. The run lasts between the two
    `seconds`.
    """

    name: str
    schedule: Action | None = None
    actions: Mapping[float, Action] = field(default_factory=dict)
    initial: Fault = Fault.NONE
    has_own_node: bool = False
    affects_all: bool = False
    seconds: tuple[float, float] = (8.0, 11.0)


def _case(
    name: str, kind: FaultKind, seconds: float, value: float = 0.0, second: float = 0.0
) -> Case:
    return Case(name, lambda event: event.add(kind, seconds, value, second))


def _error(name: str, code: int, seconds: float, share: float = 0.0) -> Case:
    return _case(name, FaultKind.ERROR, seconds, code, share)


def _ended(name: str, number: int, seconds: float) -> Case:
    return Case(
        name,
        lambda event: event.add(FaultKind.END, seconds, number),
        has_own_node=True,
        affects_all=True,
        seconds=(8.0 + seconds, 11.0 + seconds),
    )


def _driver_error(code: str, number: int) -> Case:
    def schedule(event: Event) -> None:
        event.scheduled.add(ALL_GPUS, FaultKind.ERROR, event.at_s, event.at_s + 5.0, number)

    return Case(
        f"all calls and GPUs {code} for 5 s",
        schedule,
        has_own_node=True,
        affects_all=True,
        seconds=(12.0, 14.0),
    )


def _field_error(
    name: str, quantity: Quantity, seconds: float, code: int = pynvml.NVML_ERROR_NOT_SUPPORTED
) -> Case:
    return _case(name, FaultKind.FIELD_ERROR, seconds, code, quantity)


def _set(fault: Fault, *, on: bool) -> Action:
    return lambda event: event.simulation.set_fault(event.gpu, fault, on=on)


def _set_other(fault: Fault, *, on: bool) -> Action:
    """Return an action on the last GPU, which no run uses."""
    return lambda event: event.simulation.set_fault(len(event.simulation.gpus) - 1, fault, on=on)


def _unload(event: Event) -> None:
    event.simulation.unload_driver()


def _load(event: Event) -> None:
    event.simulation.load_driver()


def _reload(name: str, after_s: float) -> Case:
    return Case(
        name,
        actions={0.0: _unload, after_s: _load},
        has_own_node=True,
        affects_all=True,
        seconds=(12.0, 14.0),
    )


def _reload_slowly(event: Event) -> None:
    event.simulation.set_fault(event.gpu, Fault.INIT_HANG, on=True)
    event.simulation.load_driver()


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
_ENDS_WORKER = {"UNINITIALIZED", "DRIVER_NOT_LOADED"}


def _of_codes() -> list[Case]:
    found = []
    for name, code in CODES.items():
        short = _error(f"{name} for 0.1 s", code, SHORT_S)
        is_driver = name in _ENDS_WORKER
        found.append(
            Case(short.name, short.schedule, has_own_node=is_driver, affects_all=is_driver)
        )
    return found


def _integral(case: Case) -> Case:
    """Return the case on a GPU without an energy counter."""
    initial = case.initial | Fault.NO_COUNTER
    return replace(case, name=f"no counter: {case.name}", initial=initial)


def _of_integral() -> list[Case]:
    return [
        _case("power 0 W", FaultKind.POWER, FOREVER_S, 0.0),
        _case("power 65,535 W", FaultKind.POWER, FOREVER_S, 65_535.0),
        _case("power stuck at 300 W", FaultKind.POWER, FOREVER_S, 300.0),
        _case("power 2^32-1 mW", FaultKind.POWER, FOREVER_S, 1e9),
        _case("power in W instead of mW", FaultKind.POWER_SCALE, FOREVER_S, 0.001),
        Case(
            "lost for 6 s",
            actions={0.0: _set(Fault.LOST, on=True), 6.0: _set(Fault.LOST, on=False)},
        ),
        _error("UNKNOWN in 10 % of calls", CODES["UNKNOWN"], FOREVER_S, 0.1),
        Case(
            "hang for 6 s",
            actions={0.0: _set(Fault.HANG, on=True), 6.0: _set(Fault.HANG, on=False)},
        ),
    ]


_CASES = (
    Case("no fault"),
    *_of_codes(),
    _error("IN_USE for 6 s", CODES["IN_USE"], 6.0),
    _error("TIMEOUT for 6 s", CODES["TIMEOUT"], 6.0),
    _error("NO_PERMISSION in 30 % of calls", CODES["NO_PERMISSION"], FOREVER_S, 0.3),
    _error("UNKNOWN in 10 % of calls", CODES["UNKNOWN"], FOREVER_S, 0.1),
    Case("lost permanently", actions={0.0: _set(Fault.LOST, on=True)}),
    Case("lost for 6 s", actions={0.0: _set(Fault.LOST, on=True), 6.0: _set(Fault.LOST, on=False)}),
    Case("hang permanently", actions={0.0: _set(Fault.HANG, on=True)}),
    _case("hang of 30 s in a call", FaultKind.SLOW, 6.0, 30.0),
    _case("each call takes 0.3 s", FaultKind.SLOW, FOREVER_S, 0.3),
    _case("each call takes 5 s", FaultKind.SLOW, FOREVER_S, 5.0),
    _field_error("no counter permanently", Quantity.COUNTER, FOREVER_S),
    _field_error("no counter for 6 s", Quantity.COUNTER, 6.0),
    _field_error("power not supported for 6 s", Quantity.POWER, 6.0),
    _field_error("fields without data for 3 s", Quantity.ANY, 3.0, pynvml.NVML_ERROR_NO_DATA),
    _case("counter falls by 1 mJ every 0.73 s", FaultKind.COUNTER_STEP, FOREVER_S, -0.001, 0.73),
    _case("counter falls by 5 J every 0.73 s", FaultKind.COUNTER_STEP, FOREVER_S, -5.0, 0.73),
    _case("counter falls by 100 J once", FaultKind.COUNTER_STEP, FOREVER_S, -100.0),
    _case("counter jumps +200 J", FaultKind.COUNTER_STEP, FOREVER_S, 200.0),
    _case("counter jumps +500 J every 4 s", FaultKind.COUNTER_STEP, FOREVER_S, 500.0, 4.0),
    _case("counter jumps +900 J", FaultKind.COUNTER_STEP, FOREVER_S, 900.0),
    _case("counter jumps +1500 J", FaultKind.COUNTER_STEP, FOREVER_S, 1_500.0),
    _case("counter jumps +1e6 J", FaultKind.COUNTER_STEP, FOREVER_S, 1e6),
    _case("counter x 1000", FaultKind.COUNTER_SCALE, FOREVER_S, 1_000.0),
    _case("counter / 1000", FaultKind.COUNTER_SCALE, FOREVER_S, 0.001),
    _case("counter halves once", FaultKind.COUNTER_SCALE, FOREVER_S, 0.5),
    _case("counter slope / 1000", FaultKind.COUNTER_SLOPE, FOREVER_S, 0.001),
    _case("counter slope x 1000", FaultKind.COUNTER_SLOPE, FOREVER_S, 1_000.0),
    _case("counter frozen permanently", FaultKind.COUNTER_SLOPE, FOREVER_S, 0.0),
    _case("counter frozen 10 s, then correct", FaultKind.COUNTER_SLOPE, 10.0, 0.0),
    _case("counter frozen 4 s, then correct", FaultKind.COUNTER_SLOPE, 4.0, 0.0),
    _case("counter 30 % slow", FaultKind.COUNTER_SLOPE, FOREVER_S, 0.7),
    _case("counter 30 % fast", FaultKind.COUNTER_SLOPE, FOREVER_S, 1.3),
    _case("counter reads 0 in 2 % of calls", FaultKind.COUNTER_READS, FOREVER_S, 0.0, 0.02),
    _case("counter reads 0 in 30 % of calls", FaultKind.COUNTER_READS, FOREVER_S, 0.0, 0.3),
    _case("counter reads 2^64-1 in 2 % of calls", FaultKind.COUNTER_READS, FOREVER_S, -1.0, 0.02),
    _case("counter reads 2^64-1 in 50 % of calls", FaultKind.COUNTER_READS, FOREVER_S, -1.0, 0.5),
    _case("counter restarts", FaultKind.COUNTER_RESTART, FOREVER_S, 0.0),
    _case("counter restarts at 3,000 J", FaultKind.COUNTER_RESTART, FOREVER_S, 3_000.0),
    _case("counter with noise of 20 J", FaultKind.COUNTER_NOISE, FOREVER_S, 20.0),
    _case("counter 2 s late", FaultKind.COUNTER_LATE, FOREVER_S, 2.0),
    _case("power 65,535 W", FaultKind.POWER, FOREVER_S, 65_535.0),
    _case("power 0 W", FaultKind.POWER, FOREVER_S, 0.0),
    _case("power random up to 700 W", FaultKind.POWER_RANDOM, FOREVER_S, 700.0),
    _case("power 2^32-1 mW", FaultKind.POWER, FOREVER_S, 1e9),
    _case("power stuck at 300 W", FaultKind.POWER, FOREVER_S, 300.0),
    _case("field timestamps -1", FaultKind.FIELD_TIME, FOREVER_S, -1.0),
    _case(
        "field type unsigned long",
        FaultKind.FIELD_TYPE,
        FOREVER_S,
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG,
    ),
    _case("field type double", FaultKind.FIELD_TYPE, FOREVER_S, pynvml.NVML_VALUE_TYPE_DOUBLE),
    _case("field type 99", FaultKind.FIELD_TYPE, FOREVER_S, 99),
    _ended("abort in calls for 1 s", signal.SIGABRT, 1.0),
    _ended("exit(0) in calls for 1 s", 0, 1.0),
    _ended("segmentation fault in calls for 0.1 s", signal.SIGSEGV, 0.1),
    _ended("segmentation fault in calls for 8 s", signal.SIGSEGV, 8.0),
    Case("a call spins for 20 s", lambda event: event.add(FaultKind.SPIN, 20.0), has_own_node=True),
    Case("UUID changes", lambda event: event.add(FaultKind.UUID, FOREVER_S), has_own_node=True),
    _case("1,000 processes", FaultKind.PROCESSES, FOREVER_S, 1_000),
    Case(
        "MIG switched on for 6 s",
        actions={
            0.0: lambda event: event.simulation.set_mig(event.gpu, ["3g.71gb", "1g.18gb"]),
            6.0: lambda event: event.simulation.set_mig(event.gpu, None),
        },
    ),
    _driver_error("DRIVER_NOT_LOADED", 9),
    _driver_error("GPU_IS_LOST", 15),
    _driver_error("UNINITIALIZED", 1),
    _driver_error("LIB_RM_VERSION_MISMATCH", 18),
    _driver_error("UNKNOWN", 999),
    _reload("driver unloaded for 5 s, counters from 0", 5.0),
    _reload("driver unloaded for 0.6 s, counters from 0", 0.6),
    Case(
        "another GPU unplugged",
        actions={0.0: _set_other(Fault.UNBOUND, on=True)},
        has_own_node=True,
    ),
    Case(
        "another GPU unplugged, then plugged in",
        actions={0.0: _set_other(Fault.UNBOUND, on=True), 3.0: _set_other(Fault.UNBOUND, on=False)},
        has_own_node=True,
    ),
    Case(
        "GPU unplugged, indices shift",
        actions={0.0: _set(Fault.UNBOUND, on=True)},
        has_own_node=True,
    ),
    Case(
        "driver unloaded for 2 s, then 8 s to initialize",
        actions={0.0: _unload, 2.0: _reload_slowly, 10.0: _set(Fault.INIT_HANG, on=False)},
        has_own_node=True,
        affects_all=True,
        seconds=(15.0, 17.0),
    ),
    *(_integral(case) for case in _of_integral()),
)
CASES: Mapping[str, Case] = {case.name: case for case in _CASES}

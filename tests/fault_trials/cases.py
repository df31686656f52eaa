"""Faults of sensors, driver calls and driver, each with a name and its schedule in the loadable
driver.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.fakes.nvml_faults import ALL_GPUS, FaultKind
from tests.laboratory.faults import (
    FOREVER_S,
    POWER_FAULTS,
    SENSOR_FAULTS,
    Action,
    Event,
    SensorFault,
    set_fault,
)
from wattline_exporter.simulation import Fault


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


def _ended(name: str, number: int, seconds: float) -> Case:
    return Case(
        name,
        SensorFault(FaultKind.END, seconds, number).schedule,
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


_ENDS_WORKER = ("UNINITIALIZED for 0.1 s", "DRIVER_NOT_LOADED for 0.1 s")


def _of_sensors() -> list[Case]:
    return [
        Case(
            name,
            fault.schedule,
            has_own_node=name in _ENDS_WORKER,
            affects_all=name in _ENDS_WORKER,
        )
        for name, fault in SENSOR_FAULTS.items()
    ]


def _integral(case: Case) -> Case:
    """Return the case on a GPU without an energy counter."""
    initial = case.initial | Fault.NO_COUNTER
    return replace(case, name=f"no counter: {case.name}", initial=initial)


def _paused(fault: Fault) -> Mapping[float, Action]:
    """Return actions that start a fault and end it after 6 s."""
    return {0.0: set_fault(fault, on=True), 6.0: set_fault(fault, on=False)}


def _of_integral() -> list[Case]:
    return [
        *(Case(name, fault.schedule) for name, fault in POWER_FAULTS.items()),
        Case("lost for 6 s", actions=_paused(Fault.LOST)),
        Case("hang for 6 s", actions=_paused(Fault.HANG)),
    ]


_CASES = (
    Case("no fault"),
    *_of_sensors(),
    Case("lost permanently", actions={0.0: set_fault(Fault.LOST, on=True)}),
    Case("lost for 6 s", actions=_paused(Fault.LOST)),
    Case("hang permanently", actions={0.0: set_fault(Fault.HANG, on=True)}),
    Case("field timestamps -1", SensorFault(FaultKind.FIELD_TIME, FOREVER_S, -1.0).schedule),
    Case("1,000 processes", SensorFault(FaultKind.PROCESSES, FOREVER_S, 1_000).schedule),
    _ended("abort in calls for 1 s", signal.SIGABRT, 1.0),
    _ended("exit(0) in calls for 1 s", 0, 1.0),
    _ended("segmentation fault in calls for 0.1 s", signal.SIGSEGV, 0.1),
    _ended("segmentation fault in calls for 8 s", signal.SIGSEGV, 8.0),
    Case("a call spins for 20 s", SensorFault(FaultKind.SPIN, 20.0).schedule, has_own_node=True),
    Case("UUID changes", SensorFault(FaultKind.UUID, FOREVER_S).schedule, has_own_node=True),
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
        actions={0.0: set_fault(Fault.UNBOUND, on=True)},
        has_own_node=True,
    ),
    Case(
        "driver unloaded for 2 s, then 8 s to initialize",
        actions={0.0: _unload, 2.0: _reload_slowly, 10.0: set_fault(Fault.INIT_HANG, on=False)},
        has_own_node=True,
        affects_all=True,
        seconds=(15.0, 17.0),
    ),
    *(_integral(case) for case in _of_integral()),
)
CASES: Mapping[str, Case] = {case.name: case for case in _CASES}

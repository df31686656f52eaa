"""Named cases of the examination: a simulated node, a load, a length and at most one fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.fakes.nvml_faults import FaultKind
from tests.laboratory.faults import Action, Event, SensorFault, counter_slope, error, set_fault
from tests.laboratory.loads import BURSTS, HIGH_W, LOW_W
from wattline_exporter.simulation import (
    PRODUCTS,
    Constant,
    Fault,
    Load,
    Product,
    Square,
)

H200, A100 = PRODUCTS["H200"], PRODUCTS["A100"]
SLOW_COUNTER = replace(H200, counter_period_s=1.0)


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `loads` has one load per GPU.

    The fault is one of GPU 0: `schedule` prepares it before it happens; `actions` change the
    simulation, by seconds after the middle. A job starts and ends within the window; other loads continue before and after it.
    """

    name: str
    about: str
    seconds: float
    loads: tuple[Load, ...] = (BURSTS,)
    product: Product = H200
    faults: Fault = Fault.NONE
    is_job: bool = False
    schedule: Action | None = None
    actions: Mapping[float, Action] = field(default_factory=dict)

    @property
    def has_fault(self) -> bool:
        return self.schedule is not None or bool(self.actions)


def _square(milliseconds: int) -> Case:
    about = f"square wave between 72 and 640 W with a period of {milliseconds} ms"
    return Case(
        f"square {milliseconds} ms", about, 5.0, (Square(LOW_W, HIGH_W, milliseconds / 1e3),)
    )


def _job(seconds: float) -> Case:
    about = f"job of {seconds:g} s at 640 W that starts and ends inside the window"
    return Case(f"job {seconds:g} s", about, seconds, (Constant(HIGH_W),), is_job=True)


def _error_at_end(event: Event) -> None:
    error("UNKNOWN", 0.1).schedule(replace(event, at_s=event.end_s - 0.05))


def _restart_counter(event: Event) -> None:
    counter_j = event.simulation.counter_j(event.gpu, event.simulation.now())
    event.simulation.jump_counter(event.gpu, -counter_j)


_CASES = (
    Case("constant", "constant 500 W", 5.0, (Constant(500.0),)),
    Case("idle", "constant 72 W", 5.0, (Constant(LOW_W),)),
    *(_square(milliseconds) for milliseconds in (25, 50, 110, 1000)),
    *(_job(seconds) for seconds in (0.3, 1.0, 3.0, 10.0)),
    Case("two GPUs", "bursts on GPU 0 while GPU 1 is idle", 5.0, (BURSTS, Constant(LOW_W))),
    Case("counter at 1 Hz", "energy counter that updates once a second", 5.0, product=SLOW_COUNTER),
    Case(
        "no counter", "no energy counter; averaged and instant power", 5.0, faults=Fault.NO_COUNTER
    ),
    Case(
        "average only",
        "only power averaged over 1 s",
        5.0,
        faults=Fault.NO_COUNTER | Fault.NO_FIELDS,
    ),
    Case(
        "quarter window",
        "no counter; power of 25 of each 100 ms, load with a period of 310 ms",
        5.0,
        (Square(LOW_W, 380.0, 0.31),),
        A100,
        Fault.NO_COUNTER | Fault.NO_FIELDS,
    ),
    Case("counter restarts", "counter starts again from 0", 5.0, actions={0.0: _restart_counter}),
    Case(
        "driver reload",
        "driver unloaded for 0.5 s; counter starts again from 0",
        5.0,
        actions={
            0.0: lambda event: event.simulation.unload_driver(),
            0.5: lambda event: event.simulation.load_driver(),
        },
    ),
    Case(
        "error 0.1 s",
        "all calls return UNKNOWN for 0.1 s in the middle",
        5.0,
        schedule=error("UNKNOWN", 0.1).schedule,
    ),
    Case(
        "error at end",
        "all calls return UNKNOWN from 0.05 s before the end, for 0.1 s",
        5.0,
        schedule=_error_at_end,
    ),
    Case(
        "GPU lost",
        "GPU falls off the bus and does not return",
        5.0,
        actions={0.0: set_fault(Fault.LOST, on=True)},
    ),
    Case(
        "GPU hangs",
        "driver calls block for 1.5 s",
        5.0,
        actions={0.0: set_fault(Fault.HANG, on=True), 1.5: set_fault(Fault.HANG, on=False)},
    ),
    Case(
        "power 0 W",
        "no counter; power reads 0 W for 1 s",
        5.0,
        faults=Fault.NO_COUNTER,
        schedule=SensorFault(FaultKind.POWER, 1.0, 0.0).schedule,
    ),
    Case(
        "power 65,535 W",
        "no counter; power reads 65,535 W for 1 s",
        5.0,
        faults=Fault.NO_COUNTER,
        schedule=SensorFault(FaultKind.POWER, 1.0, 65_535.0).schedule,
    ),
    Case(
        "counter 30 % fast",
        "counter counts 30 % too much from the middle on",
        8.0,
        schedule=counter_slope(1.3).schedule,
    ),
    Case(
        "counter jumps",
        "counter rises by 900 J at once",
        5.0,
        actions={0.0: lambda event: event.simulation.jump_counter(event.gpu, 900.0)},
    ),
    Case(
        "counter stops",
        "counter keeps its value",
        5.0,
        schedule=counter_slope(0.0).schedule,
    ),
)
CASES: Mapping[str, Case] = {case.name: case for case in _CASES}

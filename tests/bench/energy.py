"""Energy of windows of a square wave against the true value, all tools at once in separate
processes.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import peer
from tests.bench.node import A100, FULL_WINDOW, H200, SHORT_BURSTS, UNLUCKY, Node, make_node
from tests.bench.program import Program, ProgramError
from tests.bench.wattline import Exporter, Window, exported_values, run_window, start_exporter
from tests.bench.window_errors import WindowErrors, window_errors
from tests.laboratory.loads import BURSTS
from wattline_exporter.simulation import Fault, Product, Square

PEER_WINDOW_S = 20.0
_PEER_START_S = 60.0
_APART_S = (0.4, 2.6)
"""Pause between two runs; the next start has a random phase of sensor and load."""


@dataclass(frozen=True, slots=True)
class Sensor:
    """Kind of sensor, and the peers' scripts that run on it."""

    name: str
    product: Product
    faults: Fault
    durations_s: tuple[float, ...]
    scripts: tuple[str, ...]
    loads: tuple[Square, ...] = (BURSTS,)


COUNTER = Sensor(
    "counter",
    H200,
    Fault.NONE,
    (1.0, 10.0, 20.0, 30.0, 100.0),
    ("raw_nvml", "zeus_window", "codecarbon_tracker"),
)
NO_COUNTER = Sensor(
    "no counter", H200, Fault.NO_COUNTER, (20.0,), ("zeus_power", "codecarbon_tracker")
)
FULL_SAMPLING = Sensor(
    "no counter, full window",
    FULL_WINDOW,
    Fault.NO_COUNTER | Fault.NO_FIELDS,
    (1.0, 10.0, 20.0, 30.0, 100.0),
    ("codecarbon_tracker",),
)
SHORT = Sensor(
    "counter, short bursts",
    H200,
    Fault.NONE,
    (1.0, 10.0, 20.0),
    ("raw_nvml", "zeus_window"),
    (SHORT_BURSTS,),
)
QUARTER = Sensor(
    "no counter, quarter window",
    A100,
    Fault.NO_COUNTER | Fault.NO_FIELDS,
    (10.0, 20.0, 30.0),
    ("codecarbon_tracker",),
    UNLUCKY,
)
SENSORS = (COUNTER, NO_COUNTER, FULL_SAMPLING, SHORT, QUARTER)
SENSORS_WITH_GOALS = (COUNTER.name, FULL_SAMPLING.name)
"""Lengths of windows with goals."""


@dataclass(frozen=True, slots=True)
class ToolErrors:
    """Errors of one tool over windows of one length; `errors` is None if the tool failed, with the
    reason in `trouble`.

    `aliasing` is the share of GPUs for which Wattline reports possible aliasing.
    """

    sensor: str
    tool: str
    seconds: float
    window_errors: WindowErrors | None
    trouble: str = ""
    aliasing: float | None = None


def measure(
    folder: Path, programs: Path | None, length_s: float, stopped: threading.Event
) -> list[ToolErrors]:
    """Measure for about `length_s`, at least one window of each length; `programs` are the peers'
    commands.
    """
    with ThreadPoolExecutor(32) as pool, ExitStack() as stack:
        stage = EnergyStage(folder, programs, length_s, stopped, pool, stack)
        try:
            jobs = [
                job for seed, sensor in enumerate(SENSORS) for job in _start(sensor, seed, stage)
            ]
            return [measured for job in jobs for measured in job.result()]
        finally:  # also upon Ctrl-C: signal all first, then `stack` and `pool` wait for them
            stopped.set()
            for program in stage.started:
                program.terminate()


@dataclass(frozen=True, slots=True)
class EnergyStage:
    """Shared state of all nodes; `stack` stops the started programs."""

    folder: Path
    programs: Path | None
    length_s: float
    stopped: threading.Event
    pool: ThreadPoolExecutor
    stack: ExitStack
    started: list[Program] = field(default_factory=list)


def _start(sensor: Sensor, seed: int, stage: EnergyStage) -> Iterator[Future[list[ToolErrors]]]:
    """Start every tool on a node with this sensor."""
    place = stage.folder / sensor.name.replace(", ", "-").replace(" ", "-")
    node = make_node(place, sensor.product, sensor.faults, sensor.loads, seed)
    stage.stack.callback(node.simulation.close)
    for seconds in sensor.durations_s:
        exporter = start_exporter(node.environment, node.folder, f"exporter-{seconds:g}s")
        stage.started.append(stage.stack.enter_context(exporter.program))
        runs = _Runs(
            sensor, node, exporter, seconds, stage.length_s, random.Random(f"{seed} {seconds}")
        )
        yield stage.pool.submit(runs.measure, stage.stopped)
    if stage.programs is None:
        return
    for script in sensor.scripts:
        count = max(1, round(stage.length_s / (PEER_WINDOW_S + 1)))
        program = peer.start_windows(node, stage.programs, script, count, PEER_WINDOW_S)
        stage.started.append(stage.stack.enter_context(program))
        yield stage.pool.submit(_of_peer, sensor, node, program, count, stage.stopped)


@dataclass(frozen=True, slots=True)
class _Runs:
    sensor: Sensor
    node: Node
    exporter: Exporter
    seconds: float
    length_s: float
    chance: random.Random

    def measure(self, stopped: threading.Event) -> list[ToolErrors]:
        try:
            self.exporter.until_ready()
            stopped.wait(3.0)
            found = window_errors(list(self._windows(stopped.wait)), self.node.true_j)
            fires = exported_values(
                self.exporter.port, "wattline_gpu_energy_suspect", 'reason="aliasing"'
            )
        except (ProgramError, OSError, KeyError) as error:
            return [
                ToolErrors(
                    self.sensor.name,
                    "Wattline",
                    self.seconds,
                    None,
                    f"{type(error).__name__}: {error}",
                )
            ]
        return [
            ToolErrors(
                self.sensor.name,
                "Wattline",
                self.seconds,
                found,
                aliasing=sum(fires) / len(self.node.uuids),
            )
        ]

    def _windows(self, pause: Callable[[float], bool]) -> Iterator[Window]:
        apart_s = sum(_APART_S) / 2
        for _ in range(max(1, round(self.length_s / (self.seconds + apart_s)))):
            if pause(self.chance.uniform(*_APART_S)):
                return
            yield run_window(self.exporter, self.node, self.seconds, pause)


def _of_peer(
    sensor: Sensor, node: Node, program: Program, count: int, stopped: threading.Event
) -> list[ToolErrors]:
    """Return the peer's figures; a failed peer has its last line and its earlier figures."""
    name = program.name.partition("_")[0]
    trouble = ""
    try:
        program.until(
            lambda: program.code == 0 or stopped.is_set(),
            _PEER_START_S + count * (PEER_WINDOW_S + 2),
        )
    except ProgramError as error:
        trouble = str(error)
    methods: dict[str, list[Window]] = {}
    for method, window in peer.reported_windows(program):
        methods.setdefault(method, []).append(window)
    found = [
        ToolErrors(
            sensor.name,
            f"{name} ({method})",
            PEER_WINDOW_S,
            window_errors(windows, node.true_j),
            trouble,
        )
        for method, windows in methods.items()
    ]
    return found or [
        ToolErrors(sensor.name, name, PEER_WINDOW_S, None, trouble or f"{name} told no window")
    ]

"""One node with failing and healthy GPUs on a real exporter, and the error of a run on each GPU."""

from __future__ import annotations

import heapq
import json
import random
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.node import H200, boottime_of
from tests.bench.wattline import Exporter, start_exporter
from tests.fakes import nvml, nvml_faults
from tests.fakes.nvml_faults import ScheduledFaults
from tests.fault_trials.cases import Case
from tests.laboratory.faults import Action, Event
from tests.laboratory.loads import job_load
from wattline_exporter.runs.marks import DOUBTED_S
from wattline_exporter.simulation import (
    Simulation,
    clock_s,
    create,
    make_gpus,
)

HEALTHY = 2
"""GPUs without a fault at the end of each node; the last one has no run."""
LEAD_S = 5.0
COUNTER_LOG10_J = 5.0, 9.0
"""Range of the counters at the start: 0.1 MJ to 1 GJ."""
LATEST_S = 4.8
"""Latest time of a fault after the start of the run."""
FINAL_S = DOUBTED_S + 2.0
"""Time after the end of a run until its figures are final."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Run on one GPU: its true energy, the figures of the answer to its end, and the final ones.

    `case` is empty for a healthy GPU. Energies are absent where the exporter states none.
    """

    case: str
    true_j: float
    first_j: float | None
    first_half_j: float
    energy_j: float | None
    half_j: float
    notes: tuple[str, ...]

    @property
    def error(self) -> float:
        """Return the final error as a share of the true energy; 0 without an energy."""
        return 0.0 if self.energy_j is None else self.energy_j / self.true_j - 1

    @property
    def half_width(self) -> float:
        return self.half_j / self.true_j

    @property
    def is_outside(self) -> bool:
        return self.energy_j is not None and abs(self.energy_j - self.true_j) > self.half_j

    @property
    def is_first_outside(self) -> bool:
        return self.first_j is not None and abs(self.first_j - self.true_j) > self.first_half_j

    @property
    def is_declared(self) -> bool:
        return bool(self.notes)


def measure(cases: Sequence[Case], seed: int, folder: Path) -> list[Outcome]:
    """Return the outcomes of a node whose first GPUs have the faults, and of its healthy GPU."""
    rng = random.Random(f"{[case.name for case in cases]} {seed}")
    folder.mkdir(parents=True)
    path, created_s = folder / "simulation.state", clock_s()
    create(path, make_gpus(len(cases) + HEALTHY, H200, f"{seed}"), created_s)
    with Simulation.open(path) as simulation, ScheduledFaults(folder / "faults") as scheduled:
        for gpu in range(len(simulation.gpus)):
            simulation.set_load(gpu, job_load(rng), at=created_s)
            simulation.jump_counter(gpu, 10 ** rng.uniform(*COUNTER_LOG10_J))
        for gpu, case in enumerate(cases):
            simulation.set_fault(gpu, case.initial, on=True)
        environment = {**nvml.environment(path), nvml_faults.ENVIRONMENT: str(scheduled.path)}
        options = ("--no-collector.rapl", "--no-collector.host")
        exporter = start_exporter(environment, folder, options=options)
        with exporter.program:
            exporter.until_ready(len(simulation.gpus))
            time.sleep(LEAD_S)
            return _run(exporter, simulation, scheduled, cases, rng)


def _run(
    exporter: Exporter,
    simulation: Simulation,
    scheduled: ScheduledFaults,
    cases: Sequence[Case],
    rng: random.Random,
) -> list[Outcome]:
    """Begin a run on each GPU but the last, inject the faults, and end the runs."""
    measured = len(simulation.gpus) - 1
    uuids = [gpu.uuid for gpu in simulation.gpus][:measured]
    runs = [exporter.begin("trial", gpus=[uuid]) for uuid in uuids]
    begin_s = clock_s()
    seconds = max((rng.uniform(*case.seconds) for case in cases), default=8.0)
    actions: list[tuple[float, int, Action, Event]] = []
    for gpu, case in enumerate(cases):
        at_s = begin_s + rng.uniform(0.3, LATEST_S)
        event = Event(simulation, scheduled, gpu, at_s, begin_s + seconds)
        if case.schedule:
            case.schedule(event)
        for after_s, act in case.actions.items():
            heapq.heappush(actions, (event.at_s + after_s, len(actions), act, event))
    end_s = begin_s + seconds
    while actions and actions[0][0] < end_s:
        at_s, _, act, event = heapq.heappop(actions)
        time.sleep(max(0.0, at_s - clock_s()))
        act(event)
    time.sleep(max(0.0, end_s - clock_s()))
    with ThreadPoolExecutor(measured) as pool:
        first = list(pool.map(exporter.end, runs))
    final_s = clock_s() + FINAL_S
    while actions and actions[0][0] < final_s:
        at_s, _, act, event = heapq.heappop(actions)
        time.sleep(max(0.0, at_s - clock_s()))
        act(event)
    time.sleep(max(0.0, final_s - clock_s()))
    affected = [case.name for case in cases] * (2 if cases and cases[0].affects_all else 1)
    final = [_find(exporter, run_id) for run_id in runs]
    return [
        _outcome(
            affected[gpu] if gpu < len(affected) else "", simulation, gpu, first[gpu], final[gpu]
        )
        for gpu in range(measured)
    ]


def _find(exporter: Exporter, run_id: str) -> dict[str, Any]:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{exporter.port}/api/v1/runs/{run_id}", timeout=10
    ) as answer:
        return dict(json.load(answer))


def _outcome(
    case: str, simulation: Simulation, gpu: int, first: dict[str, Any], final: dict[str, Any]
) -> Outcome:
    begin_s = boottime_of(final["started_at"])
    uuid = simulation.gpus[gpu].uuid

    def figures(run: dict[str, Any]) -> tuple[float | None, float]:
        half_j = run["energy_uncertainty_joules"].get("gpu", {}).get(uuid, 0.0)
        return run["energy_joules"].get("gpu", {}).get(uuid), half_j

    return Outcome(
        case,
        simulation.energy_j(gpu, begin_s, begin_s + final["duration_seconds"]),
        *figures(first),
        *figures(final),
        notes=tuple(final["notes"]),
    )

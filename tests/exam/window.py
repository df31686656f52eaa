"""One window of a case with one meter: its command, the load, the fault, and the true energy."""

from __future__ import annotations

import json
import math
import os
import random
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import psutil

from tests.exam.cases import Case
from tests.exam.scores import Answer
from tests.fakes import nvml, nvml_faults
from tests.fakes.nvml_faults import ScheduledFaults
from tests.laboratory.faults import Event
from tests.laboratory.loads import LOW_W
from wattline_exporter.simulation import Constant, Simulation, Square, clock_s, create, make_gpus

SUM = "sum"
"""Key of the energy of a meter that reports only the sum of its GPUs."""
READY_WITHIN_S = 60.0
ANSWER_WITHIN_S = 20.0
EDGE_S = 0.1
"""Longest time between the edge of a job and that of its window."""
_STATED_WITHIN_S = 0.005
"""Tolerance of a window that a meter states."""
_LOADED_FOR_S = 30.0
"""Time for which a load that is no job has run when the meter starts."""
_BEGIN_WITHIN_S = 5.0
"""Longest time between the start of a stated window and the line `ready`."""


class MeterError(Exception):
    """The meter gave no answer that can be read; the text is the cause."""


@dataclass(frozen=True, slots=True)
class Meter:
    """Command that measures energy (exporter/docs/examination-cases.md). `environment` is added to
    the simulation's.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Times:
    """Instants of CLOCK_BOOTTIME: the line `ready`, the request for the result, the result."""

    started_s: float
    ready_s: float
    ended_s: float
    answered_s: float


def measure(meter: Meter, case: Case, seed: int, folder: Path) -> list[Answer]:
    """Return the meter's answer for each GPU."""
    chance = random.Random(f"{case.name} {seed}")
    folder.mkdir(parents=True)
    path = folder / "simulation.state"
    created_s = clock_s() - _LOADED_FOR_S
    create(path, make_gpus(len(case.loads), case.product), created_s)
    with Simulation.open(path) as simulation, ScheduledFaults(folder / "faults") as scheduled:
        for gpu, load in enumerate(case.loads):
            simulation.set_fault(gpu, case.faults, on=True)
            shifted = (
                replace(load, phase_s=chance.uniform(0, load.period_s))
                if isinstance(load, Square)
                else load
            )
            simulation.set_load(gpu, Constant(LOW_W) if case.is_job else shifted, at=created_s)
        environment = {
            **nvml.environment(path),
            nvml_faults.ENVIRONMENT: str(scheduled.path),
            **meter.environment,
        }
        with (folder / "meter.err").open("wb") as output:
            process = subprocess.Popen(
                meter.command,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        result: Mapping[str, Any] = {}
        cpu = None
        times = _Times(clock_s(), clock_s(), math.inf, math.inf)
        try:
            ready_s, ended_s, cpu = _run(process, case, simulation, scheduled, chance)
            times = replace(times, ready_s=ready_s, ended_s=ended_s)
            result = _result(process)
            times = replace(times, answered_s=clock_s())
        except MeterError as error:
            with (folder / "meter.err").open("a") as errors:
                errors.write(f"\n{error}\n")
        finally:
            _stop(process)
        end_s = clock_s() if math.isinf(times.ended_s) else times.ended_s
        return _answers(case, simulation, replace(times, ended_s=end_s), result, cpu)


def _run(
    process: subprocess.Popen[bytes],
    case: Case,
    simulation: Simulation,
    scheduled: ScheduledFaults,
    chance: random.Random,
) -> tuple[float, float, float]:
    """Return the times of ready and end, and the CPU in between as a share of one core."""
    assert process.stdout
    while _line(process.stdout, READY_WITHIN_S).strip() != b"ready":
        pass  # other output of the meter
    ready_s = clock_s()
    cpu_before_s = _cpu_s(process)
    begin_s, end_s = ready_s, ready_s + case.seconds
    if case.is_job:
        begin_s = clock_s() + chance.uniform(0.0, EDGE_S)
        simulation.set_load(0, case.loads[0], at=begin_s)
        simulation.set_load(0, Constant(LOW_W), at=begin_s + case.seconds)
        end_s = begin_s + case.seconds + chance.uniform(0.0, EDGE_S)
    middle_s = begin_s + case.seconds * chance.uniform(0.4, 0.6)
    event = Event(simulation, scheduled, 0, middle_s, end_s)
    if case.schedule:
        case.schedule(event)
    for after_s, act in sorted(case.actions.items()):
        _sleep_until(event.at_s + after_s)
        act(event)
    _sleep_until(end_s - 0.02)
    cpu_s = _cpu_s(process) - cpu_before_s
    cpu = cpu_s / (clock_s() - ready_s)
    _sleep_until(end_s)
    ended_s = clock_s()
    assert process.stdin
    with suppress(BrokenPipeError):
        process.stdin.close()
    return ready_s, ended_s, cpu


def _result(process: subprocess.Popen[bytes]) -> Mapping[str, Any]:
    """Return the meter's JSON. Raise MeterError."""
    assert process.stdout
    while True:
        line = _line(process.stdout, ANSWER_WITHIN_S)
        if line.startswith(b"{"):
            try:
                return dict(json.loads(line))
            except ValueError as error:
                raise MeterError(f"the meter's answer is no JSON: {error}") from error


def _line(output: IO[bytes], within_s: float) -> bytes:
    """Return the next line. Raise MeterError at the end of the output or after `within_s`."""
    until_s = time.monotonic() + within_s
    line = bytearray()
    while not line.endswith(b"\n"):
        if not select.select([output], [], [], max(0.0, until_s - time.monotonic()))[0]:
            raise MeterError(f"the meter did not answer within {within_s:.0f} s")
        content = os.read(output.fileno(), 1)  # unbuffered, so that select sees the rest
        if not content:
            raise MeterError("the meter ended without an answer")
        line += content
    return bytes(line)


def _answers(
    case: Case, simulation: Simulation, times: _Times, result: Mapping[str, Any], cpu: float | None
) -> list[Answer]:
    begin_s, end_s = window(result, times.ready_s, times.ended_s, times.answered_s)
    joules, uncertainty = (result.get(key) or {} for key in ("energy_joules", "uncertainty_joules"))
    true_j = {str(gpu): simulation.energy_j(gpu, begin_s, end_s) for gpu in range(len(case.loads))}
    if SUM in joules:
        true_j = {SUM: sum(true_j.values())}
    return [
        Answer(
            case=case.name,
            gpu=gpu,
            has_fault=case.has_fault,
            true_j=each_j,
            figure_j=_number(joules.get(gpu)),
            uncertainty_j=_number(uncertainty.get(gpu)),
            notes=tuple(map(str, result.get("notes") or ())),
            cpu=cpu,
        )
        for gpu, each_j in true_j.items()
    ]


def window(
    result: Mapping[str, Any], ready_s: float, ended_s: float, answered_s: float
) -> tuple[float, float]:
    """Return the window of the true energy: the one that the meter states, if it agrees with the
    calls, else theirs.
    """
    begin_s, end_s = _number(result.get("begin_s")), _number(result.get("end_s"))
    if begin_s is None or not ready_s - _BEGIN_WITHIN_S <= begin_s <= ready_s + _STATED_WITHIN_S:
        begin_s = ready_s
    if end_s is None or not ended_s - _STATED_WITHIN_S <= end_s <= answered_s:
        end_s = ended_s
    return begin_s, end_s


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _sleep_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - clock_s()))


def _processes(process: subprocess.Popen[bytes]) -> Sequence[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(process.pid)
        return [leader, *leader.children(recursive=True)]
    return ()


def _cpu_s(process: subprocess.Popen[bytes]) -> float:
    """Return the CPU time of the meter's processes, also of those that have ended."""
    spent_s = 0.0
    for each in _processes(process):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            times = each.cpu_times()
            spent_s += times.user + times.system + times.children_user + times.children_system
    return spent_s


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Give the meter time to end, then kill its processes."""
    others = _processes(process)
    with suppress(BrokenPipeError):
        assert process.stdin
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(8.0)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for each in others:  # also those in another session
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()

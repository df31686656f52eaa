"""Slowdown of a CPU-bound neighbour process, with and without the exporter in turn.

The exporter is stopped (SIGSTOP) and continued, so that both halves of a pair are seconds apart and
see the same other load of the machine.
"""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from tests.bench.node import make_node
from tests.bench.program import Program
from tests.bench.wattline import start_exporter

SLICE_S = 1.0
RESUME_S = 0.3
"""Pause after the exporter continues; its catching up is not part of its cost."""
_NEIGHBOUR = """
import sys, time
for line in sys.stdin:
    end, rounds, now = time.perf_counter() + float(line), 0, time.perf_counter
    begin = now()
    while now() < end:
        for _ in range(500):
            rounds += 1
    print(rounds / (now() - begin), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Median over all pairs of the neighbour's loss of speed, with its 95 % CI."""

    where: str
    ratio: float
    interval: tuple[float, float]


def measure(folder: Path, pairs: int, stopped: threading.Event) -> list[Slowdown]:
    """Measure on separate cores and on one core; with an open run unless the name has `idle`."""
    node = make_node(folder / "slowdown", pids=[os.getpid()])
    exporter = start_exporter(node.environment, node.folder)
    result = []
    try:
        with exporter.program:
            exporter.until_ready()
            stopped.wait(3.0)
            core = max(os.sched_getaffinity(0))
            result.append(_pairs("same core, idle at 1 Hz", exporter.program, core, pairs, stopped))
            run_id = exporter.begin("bench", pids=[os.getpid()])
            stopped.wait(2.0)
            result.append(_pairs("same core, run open", exporter.program, core, pairs, stopped))
            result.append(_pairs("any core, run open", exporter.program, None, pairs, stopped))
            exporter.end(run_id)
    finally:
        node.simulation.close()
    return result


def _pairs(
    where: str, program: Program, core: int | None, pairs: int, stopped: threading.Event
) -> Slowdown:
    cores = os.sched_getaffinity(0) if core is None else {core}
    _pin(program, cores)
    chance, losses = random.Random(where), []
    with _neighbour(cores) as neighbour:
        _speed(neighbour)  # warm-up
        for _ in range(pairs):
            if stopped.is_set():
                break
            speeds = {}
            for runs in chance.sample((True, False), 2):
                with _stopped(program, so=not runs):
                    speeds[runs] = _speed(neighbour)
                stopped.wait(RESUME_S)
            losses.append(1 - speeds[True] / speeds[False])
    return Slowdown(where, median(losses), _interval(losses))


def _interval(losses: list[float]) -> tuple[float, float]:
    """Return the CI of the median from order statistics, without an assumption about the
    distribution.
    """
    reach = 0.98 * math.sqrt(len(losses))  # 1.96 standard deviations of a binomial at 1/2
    low = max(0, math.floor(len(losses) / 2 - reach))
    return sorted(losses)[low], sorted(losses)[len(losses) - 1 - low]


def _pin(program: Program, cores: set[int]) -> None:
    """Pin every thread; new threads inherit the affinity."""
    for process in program.processes():
        for thread in process.threads():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, cores)


@contextmanager
def _neighbour(cores: set[int]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _NEIGHBOUR]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        os.sched_setaffinity(process.pid, cores)
        yield process
        assert process.stdin
        process.stdin.close()


def _speed(neighbour: subprocess.Popen[str]) -> float:
    """Return rounds per second over one slice."""
    assert neighbour.stdin
    assert neighbour.stdout
    neighbour.stdin.write(f"{SLICE_S}\n")
    neighbour.stdin.flush()
    return float(neighbour.stdout.readline())


@contextmanager
def _stopped(program: Program, *, so: bool) -> Iterator[None]:
    processes: list[psutil.Process] = program.processes() if so else []
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()

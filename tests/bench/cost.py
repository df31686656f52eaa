"""Cost of serving and sampling: scrape latency, CPU time and memory, with nvitop-exporter for
comparison.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.bench import driver_calls, peer, scrape
from tests.bench.node import PROCESSES, Node, make_node
from tests.bench.program import Memory, Program, ProgramError, cpu_spent_s
from tests.bench.scale import FAST_S
from tests.bench.wattline import Exporter, start_exporter

OURS, THEIRS = "Wattline", "nvitop-exporter"
SETTLE_S = 6.0
SCRAPES_PER_HOUR = 240
"""Number of scrapes in an hour at Prometheus's interval of 15 s."""
RUNS_PER_HOUR = 60
_RUNS_AT_ONCE = 12


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers and lengths of CPU spans, and rounds of scrapes."""

    span_s: float
    spans: int
    rounds: int


@dataclass
class Cost:
    """Costs by program. CPU is a share of one core, one figure a span; `scrape_cpu_s` is the time
    that one scrape adds.

    `fresh` is the memory before the hour's runs and scrapes, `memory` after them.
    """

    idle_cpu: dict[str, list[float]] = field(default_factory=dict)
    run_cpu: dict[str, list[float]] = field(default_factory=dict)
    driver_calls_cpu: float | None = None
    """CPU of the C program with the same driver calls, over all spans of `run_cpu`."""
    worker_cpu: float = 0.0
    """CPU of the exporter's NVML worker in the same time."""
    scrape_cpu_s: dict[str, float] = field(default_factory=dict)
    alone: scrape.Scrapes = field(default_factory=dict)
    two: scrape.Scrapes = field(default_factory=dict)
    fresh: dict[str, Memory] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)


def measure(
    folder: Path, programs: Path | None, lengths: Lengths, stopped: threading.Event
) -> Cost:
    """Measure with an open run, except where the name has `idle`; `programs` are the peers'
    commands, if installed.
    """
    cost = Cost()
    with ExitStack() as stack:
        others = [os.getppid() + 100_000 * (i + 1) for i in range(PROCESSES - 1)]  # no such process
        node = make_node(folder / "cost", pids=[os.getpid(), *others])
        stack.callback(node.simulation.close)
        exporter = start_exporter(node.environment, node.folder)
        measured: dict[str, Program] = {OURS: stack.enter_context(exporter.program)}
        ports = {OURS: exporter.port}
        exporter.until_ready()
        theirs = stack.enter_context(ExitStack())
        if programs:
            try:
                program, port = peer.start_nvitop(node, programs)
                theirs.enter_context(program)
                peer.until_nvitop_is_ready(program, port)
                measured[THEIRS], ports[THEIRS] = program, port
            except ProgramError as error:
                cost.trouble.append(str(error))
        stopped.wait(SETTLE_S)
        cost.idle_cpu = _cpu_shares(measured, lengths, stopped)
        run_id = exporter.begin("bench", pids=[os.getpid()])
        with ExitStack() as limit:
            calls = _start_driver_calls(node, cost, limit)
            stopped.wait(SETTLE_S)
            begin_s, before = time.monotonic(), exporter.program.cpu_s()
            calls_before_s = calls.cpu_precise_s() if calls else 0.0
            cost.run_cpu = _cpu_shares(measured, lengths, stopped)
            took_s = time.monotonic() - begin_s
            cost.worker_cpu = _children_cpu_s(exporter.program, before) / took_s
            cost.driver_calls_cpu = (
                (calls.cpu_precise_s() - calls_before_s) / took_s if calls else None
            )
        cost.fresh = {name: program.memory() for name, program in measured.items()}
        _scrape(cost, measured, ports, lengths.rounds, stopped)
        _live_an_hour(exporter, ports, stopped)
        if THEIRS in measured:
            cost.memory[THEIRS] = measured[THEIRS].memory()
        theirs.close()  # pages shared with the exporter would count half
        cost.memory[OURS] = measured[OURS].memory()
        exporter.end(run_id)
    return cost


def _start_driver_calls(node: Node, cost: Cost, stack: ExitStack) -> Program | None:
    try:
        return stack.enter_context(driver_calls.start(node, FAST_S))
    except ProgramError as error:
        cost.trouble.append(str(error))
        return None


def _children_cpu_s(program: Program, before: dict[int, float]) -> float:
    """Return the CPU time of the program's child processes since `before`."""
    _, *children = program.processes()
    now = program.cpu_s()
    return sum(now[child.pid] - before.get(child.pid, 0.0) for child in children)


def _cpu_shares(
    programs: dict[str, Program], lengths: Lengths, stopped: threading.Event
) -> dict[str, list[float]]:
    shares: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(lengths.spans):
        begin_s = time.monotonic()
        before = {name: program.cpu_s() for name, program in programs.items()}
        stopped.wait(lengths.span_s)
        took_s = time.monotonic() - begin_s
        for name, program in programs.items():
            shares[name].append(cpu_spent_s(program, before[name]) / took_s)
    return shares


def _scrape(
    cost: Cost,
    programs: dict[str, Program],
    ports: dict[str, int],
    rounds: int,
    stopped: threading.Event,
) -> None:
    chance = random.Random(1)
    before = {name: program.cpu_s() for name, program in programs.items()}
    begin_s = time.monotonic()
    gc.disable()  # pauses of this process must not count
    cost.alone = scrape.one_scraper(ports, rounds, stopped.wait, chance)
    took_s = time.monotonic() - begin_s
    for name, program in programs.items():
        spent_s = cpu_spent_s(program, before[name]) - median(cost.run_cpu[name]) * took_s
        cost.scrape_cpu_s[name] = spent_s / (rounds * len(scrape.FORMS))
    cost.two = scrape.two_scrapers(ports, rounds, stopped.wait, chance)
    gc.enable()


def _live_an_hour(exporter: Exporter, ports: dict[str, int], stopped: threading.Event) -> None:
    """Perform the runs and scrapes of an hour without the time between them."""

    def live_a_run(_: int) -> None:
        if not stopped.is_set():
            exporter.end(exporter.begin("hour", pids=[os.getpid()]))

    with ThreadPoolExecutor(_RUNS_AT_ONCE) as pool:
        list(pool.map(live_a_run, range(RUNS_PER_HOUR)))
    for port in ports.values():
        scraper = scrape.Scraper(port)
        for number in range(SCRAPES_PER_HOUR):
            scraper.scrape(scrape.FORMS[number % len(scrape.FORMS)])
            if stopped.wait(0.02):
                break
        scraper.close()

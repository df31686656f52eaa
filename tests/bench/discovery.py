"""CPU time of the discovery of runs on a node with many cgroups, next to an exporter with runs of
clients.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.bench.figures import Figure
from tests.bench.node import make_node
from tests.bench.program import ProgramError
from tests.bench.wattline import exported_values, start_exporter
from tests.exporter.runs.discovery.real_cgroups import cgroup2_mount, cgroups

CGROUPS, POPULATED, JOBS = 1_000, 200, 16
"""Cgroups of the node, those with a process, and those whose process is on a GPU."""
SETTLE_S = 8.0
CPU_GOAL = 0.003
JOB = "slurmstepd.scope/job_{}"


@dataclass
class DiscoveryCost:
    """Shares of one core, one figure a span, of both exporters in the same time."""

    with_discovery: list[float] = field(default_factory=list)
    without: list[float] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)


def measure(folder: Path, span_s: float, spans: int, stopped: threading.Event) -> DiscoveryCost:
    """Measure both exporters on the same GPUs, each with an open run for each job."""
    cost = DiscoveryCost()
    root = cgroup2_mount()
    if root is None:
        cost.trouble.append("discovery: it needs root and a writable cgroup v2")
        return cost
    with ExitStack() as stack:
        node = make_node(folder / "discovery")
        stack.callback(node.simulation.close)
        groups = stack.enter_context(cgroups(root))
        for number in range(CGROUPS):
            groups.make(JOB.format(number))
        programs = [groups.start(JOB.format(number)) for number in range(POPULATED)]
        for number, program in enumerate(programs[:JOBS]):
            node.simulation.drive(number % len(node.uuids), 0.3, program.key.pid)
        plain = start_exporter(node.environment, node.folder, "plain")
        stack.enter_context(plain.program)
        discovering = start_exporter(
            node.environment, node.folder, "discovering", ["--runs.discover", "auto"]
        )
        stack.enter_context(discovering.program)
        try:
            plain.until_ready()
            for number in range(JOBS):
                plain.begin("slurm", gpus=[], cgroup=f"/{groups.top}/{JOB.format(number)}")
            discovering.until_ready()
            discovering.program.until(lambda: _open_runs(discovering.port) == JOBS, 30.0)
            stopped.wait(SETTLE_S)
            for _ in range(spans):
                begin_s = time.monotonic()
                before = plain.program.cpu_of_threads_s(), discovering.program.cpu_of_threads_s()
                stopped.wait(span_s)
                took_s = time.monotonic() - begin_s
                cost.without.append((plain.program.cpu_of_threads_s() - before[0]) / took_s)
                cost.with_discovery.append(
                    (discovering.program.cpu_of_threads_s() - before[1]) / took_s
                )
        except (ProgramError, OSError) as error:
            cost.trouble.append(f"discovery: {error}")
    return cost


def _open_runs(port: int) -> int:
    return len(exported_values(port, "wattline_run_info", 'workload="slurm"'))


def discovery_figures(cost: DiscoveryCost) -> Iterator[Figure]:
    """Yield the difference of the two exporters, and their ratio."""
    if not cost.without:
        return
    added = [more - less for more, less in zip(cost.with_discovery, cost.without, strict=True)]
    both = (
        f"{100 * median(cost.with_discovery):.2g} % with it, {100 * median(cost.without):.2g} "
        "% without"
    )
    where = f"{CGROUPS} cgroups, {JOBS} jobs on GPUs"
    spread = min(added), max(added)
    yield Figure(
        f"CPU of a core that discovery adds, {where}",
        "%",
        median(added),
        goal=CPU_GOAL,
        spread=spread,
        note=both,
    )
    ratio = median(cost.with_discovery) / median(cost.without)
    yield Figure(
        f"CPU, ratio to an exporter with the same runs begun by clients, {where}", "×", ratio
    )

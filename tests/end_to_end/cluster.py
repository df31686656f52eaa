"""Simulated cluster with faults: agreement of energy between ledger, servers and true value.

`python -m tests.end_to_end.cluster` starts exporters of simulated GPUs, and a Prometheus and a
VictoriaMetrics that scrape them. It starts random runs, kills an exporter and each server, loses a
GPU, and compares the energies. The table goes to stdout, progress to stderr; the exit code is 1 if
a run disagrees.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end import cluster_servers
from tests.end_to_end.agreement import (
    RunComparison,
    RunLedgers,
    server_energy,
    sum_ledgers,
    too_many_outside,
)
from tests.end_to_end.cluster_node import RefusedError, make_node
from tests.end_to_end.cluster_runs import Size
from tests.end_to_end.cluster_scene import Scene, StartedRun
from tests.end_to_end.cluster_servers import Server
from tests.end_to_end.cluster_table import summary, table

WARM_UP_S = 3.0
MAX_DEVIATION = 1e-9
"""Relative tolerance between attributed parts and counters: the order of the sum only."""
CLOCKS_DIFFER_S = 0.005
SHORTEST_SCENE_S = 25.0
_REPORTERS = 2


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """Result of one scene: deviation of parts from counters by node, and reads of the drivers."""

    runs: list[RunComparison]
    refused: list[str]
    attribution_deviation: dict[str, float]
    reads: tuple[float, float]

    def problems(self) -> list[str]:
        of_runs = [f"{run.run_id}: {text}" for run in self.runs for text in run.problems()]
        of_nodes = [
            f"{node}: attributed and unattributed energy deviate by {deviation:.2e} from the "
            "device counters"
            for node, deviation in self.attribution_deviation.items()
            if deviation > MAX_DEVIATION
        ]
        outside = [run.run_id for run in self.runs if run.is_outside]
        of_intervals = (
            [f"too many outside of their intervals: {outside}"]
            if too_many_outside(self.runs)
            else []
        )
        return of_runs + of_nodes + of_intervals


def compare_cluster(
    folder: Path, size: Size, scrape_s: float, seed: int, log: Callable[[str], None]
) -> ClusterResult:
    """Run the scene and compare its energies. No process is left running."""
    chance = random.Random(seed)
    nodes = [
        make_node(folder / f"node-{i}", f"node-{i}", size.gpus, chance) for i in range(size.nodes)
    ]
    targets = [node.target for node in nodes]
    folders = [folder / "prometheus", folder / "victoria-metrics"]
    for data_folder in folders:
        data_folder.mkdir()
    prometheus = cluster_servers.prometheus(folders[0], targets, f"{scrape_s:g}s")
    victoria_metrics = cluster_servers.victoria_metrics(folders[1], targets, f"{scrape_s:g}s")
    scene = Scene(nodes, prometheus, victoria_metrics, size, log)
    with ExitStack() as stack:
        stack.callback(scene.stop)
        scene.start()
        log(f"{size.nodes} nodes of {size.gpus} GPUs are up")
        time.sleep(WARM_UP_S)
        started_runs, refused = scene.play(chance)
        log(f"{len(started_runs)} runs have ended; the last scrape")
        scene.until_scraped(scrape_s)
        deviation = {node.name: node.attribution_deviation() for node in nodes}
        reads = [node.reads() for node in nodes]
        plans = [run.plan for run in started_runs]
        run_ledgers = [
            sum_ledgers([nodes[number] for number in plan.nodes], plan.run_id, plan.gpus)
            for plan in plans
        ]
        scene.stop_nodes()
        log("comparing")
        comparisons = _compare(started_runs, run_ledgers, scene.servers)
    return ClusterResult(
        comparisons,
        refused,
        deviation,
        (sum(each[0] for each in reads), sum(each[1] for each in reads)),
    )


def _compare(
    started_runs: list[StartedRun], run_ledgers: list[RunLedgers], servers: Sequence[Server]
) -> list[RunComparison]:
    """Compare runs in separate processes, because the reports take most of the time."""
    with ProcessPoolExecutor(_REPORTERS, get_context("spawn")) as pool:
        reports = {
            server.name: [
                pool.submit(server_energy, server.url, run.plan.run_id, run.plan.labels)
                for run in started_runs
            ]
            for server in servers
        }
        return [
            RunComparison(
                run.plan.run_id,
                len(run.plan.nodes),
                len(run.plan.nodes) * len(run.plan.gpus),
                ledger.duration_s,
                ledger.true_j,
                {
                    "ledger": ledger.energies,
                    **{name: answers[i].result() for name, answers in reports.items()},
                },
                tuple(text for answer in ledger.answers for text in _window_problems(answer, run)),
            )
            for i, (run, ledger) in enumerate(zip(started_runs, run_ledgers, strict=True))
        ]


def _window_problems(run: Mapping[str, Any], started_run: StartedRun) -> Iterator[str]:
    """Compare the ledger's start and end with the calls, because the true value is for that
    window.
    """
    for call, recorded_s, edge in (
        (started_run.begun, run["started_at"], "start"),
        (started_run.ended, run["ended_at"], "end"),
    ):
        if not call.from_s - CLOCKS_DIFFER_S <= recorded_s <= call.until_s + CLOCKS_DIFFER_S:
            took_s = call.until_s - call.from_s
            yield (
                f"its recorded {edge} is {recorded_s - call.from_s:+.3f} s from the call, which "
                f"took {took_s:.3f} s"
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.end_to_end.cluster", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--nodes", type=int, default=20, help="number of exporters (default: 20, at least 3)"
    )
    parser.add_argument(
        "--gpus", type=int, default=8, help="GPUs of each exporter (default: 8, at least 2)"
    )
    parser.add_argument(
        "--seconds", type=float, default=180.0, help="duration in which runs start (default: 180)"
    )
    parser.add_argument(
        "--scrape-seconds", type=float, default=5.0, help="scrape interval (default: 5)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of all random choices (default: 1)"
    )
    options = parser.parse_args()
    if options.nodes < 3 or not 2 <= options.gpus <= 64 or options.seconds < SHORTEST_SCENE_S:
        parser.error(f"it takes 3 nodes, 2 to 64 GPUs on each, and {SHORTEST_SCENE_S:g} s at least")
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.default_int_handler)
    size = Size(options.nodes, options.gpus, options.seconds, longest_s=60.0, pause_s=40.0)
    begun_s = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="wattline-cluster-") as folder:
            result = compare_cluster(
                Path(folder), size, options.scrape_seconds, options.seed, _log_since(begun_s)
            )
    except KeyboardInterrupt:
        return 130
    except (AssertionError, RefusedError, pytest.skip.Exception, pytest.fail.Exception) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    print(table(result.runs))
    problems = result.problems()
    for line in (
        *summary(result.runs, result.refused, result.attribution_deviation, result.reads),
        *problems,
    ):
        print(line)
    print(f"{time.monotonic() - begun_s:.0f} s in all; {len(problems)} problems")
    return int(bool(problems))


def _log_since(begun_s: float) -> Callable[[str], None]:
    def log(text: str) -> None:
        print(f"{time.monotonic() - begun_s:5.0f} s  {text}", file=sys.stderr, flush=True)

    return log


if __name__ == "__main__":
    sys.exit(main())

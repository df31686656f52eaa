"""Fleet of 1,000 GPUs over a week in a real VictoriaMetrics, with two phases in each run.

Time and accuracy of `analyzer usage`.
"""

from __future__ import annotations

import http.client
import json
import random
import resource
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from tests import servers
from tests.analyzer.fleet_nodes import FleetNode, FleetRun, NodeSeries, node_series
from tests.bench.figures import Figure
from tests.bench.program import ProgramError
from wattline.contract import metrics as m
from wattline_analyzer.core.sources.prometheus import PrometheusSource

INTERVAL_S = 15.0
GPUS = 8
SAMPLED_NODES = 2
ROUNDS = 3
TIME_GOAL_S = 5.0
ERROR_GOAL = 0.005
_DAY_S = 86_400.0
_LOADED = {
    metric.name
    for metric in (
        *(
            m.GPU_ENERGY,
            m.RUN_ATTRIBUTED_ENERGY,
            m.RUN_INFO,
            m.RUN_WORK,
            m.RUN_START,
            m.RUN_END,
            m.RUN_DURATION,
        ),
        *(m.RUN_GPU_INFO, m.RUN_ENERGY, m.RUN_ENERGY_UNCERTAINTY),
        *(m.RUN_PHASE_SECONDS, m.RUN_PHASE_ENERGY, m.RUN_PHASE_WORK),
    )
}


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    days: float

    @property
    def gpus(self) -> int:
        return self.nodes * GPUS


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """Figures of one window from whole processes (median times).

    `error` is the largest of the sampled nodes. `cpu_s` is the CPU time of one call of `usage`, and
    `server_cpu_s` that of VictoriaMetrics. `apart` is the remainder as a ratio.
    """

    days: float
    seconds: float
    cpu_s: float
    server_cpu_s: float
    error: float
    apart: float


@dataclass(frozen=True, slots=True)
class FleetFigures:
    samples: int
    runs: int
    load_s: float
    readings: tuple[WindowFigures, ...]


def measure(folder: Path, size: Size) -> FleetFigures:
    """Measure over all days and over one day."""
    if not shutil.which("victoria-metrics"):
        raise ProgramError("victoria-metrics is not installed: apt-get install victoria-metrics")
    end_s = time.time() // 60 * 60 - 3_600
    with servers.victoria_metrics(folder, [], flags=["-retentionPeriod=1000d"]) as address:
        begun_s = time.monotonic()
        samples, runs = _load(address, end_s - size.days * _DAY_S, end_s, size.nodes)
        load_s = time.monotonic() - begun_s
        readings = tuple(
            _reading(address, end_s, days, size.nodes) for days in dict.fromkeys((1.0, size.days))
        )
    return FleetFigures(samples, runs, load_s, readings)


def figures(result: FleetFigures) -> Iterator[Figure]:
    for each in result.readings:
        where = f"usage of a fleet, {each.days:g} d"
        note = (
            f"{result.samples / 1e6:.0f} M samples, {result.runs:,} runs, loaded in "
            f"{result.load_s:.0f} s"
        )
        yield Figure(f"{where}: whole process", "ms", each.seconds, goal=TIME_GOAL_S, note=note)
        yield Figure(f"{where}: its CPU", "ms", each.cpu_s)
        yield Figure(f"{where}: the server's CPU", "ms", each.server_cpu_s)
        yield Figure(f"{where}: from raw samples, at most", "%", each.error, goal=ERROR_GOAL)
        yield Figure(f"{where}: parts against counters", "%", abs(each.apart), goal=ERROR_GOAL)


def _reading(address: str, end_s: float, days: float, nodes: int) -> WindowFigures:
    server_s = _cpu_s(address)
    own_s = _children_s()
    calls = [_usage(address, end_s, days, "model,user,namespace") for _ in range(ROUNDS)]
    own_s = (_children_s() - own_s) / ROUNDS
    server_s = (_cpu_s(address) - server_s) / ROUNDS
    _, by_node = _usage(address, end_s, days, "model,node")
    sampled = random.Random(3).sample(range(nodes), SAMPLED_NODES)
    errors = [
        abs(_joules(by_node, node) / _raw_j(address, node, end_s, days) - 1) for node in sampled
    ]
    document = calls[0][1]
    return WindowFigures(
        days,
        sorted(seconds for seconds, _ in calls)[ROUNDS // 2],
        own_s,
        server_s,
        max(errors),
        document["remainder"]["energy_joules"] / document["total"]["energy_joules"],
    )


def _children_s() -> float:
    """Return the CPU time of the processes that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_s(address: str) -> float:
    with urllib.request.urlopen(f"{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(
        float(line.split()[1]) for line in lines if line.startswith("process_cpu_seconds_total")
    )


def _usage(address: str, end_s: float, days: float, by: str) -> tuple[float, dict[str, Any]]:
    program = "from wattline_analyzer.cli import main; main()"
    command = [sys.executable, "-c", program, "usage", "--format", "json", "--by", by]
    command += ["--source", address, "--until", f"{end_s:.0f}", "--since", f"{days:g}d"]
    begun_s = time.monotonic()
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if completed.returncode:
        raise ProgramError(f"analyzer usage: {completed.stderr.strip()}")
    return time.monotonic() - begun_s, json.loads(completed.stdout)


def _joules(document: dict[str, Any], node: int) -> float:
    rows = [*document["groups"], *document["unattributed"]]
    return sum(float(row["energy_joules"] or 0.0) for row in rows if row["node"] == _name(node))


def _raw_j(address: str, node: int, end_s: float, days: float) -> float:
    """Return the energy between the last samples of each counter before the edges."""
    source = PrometheusSource(address)
    start_s = end_s - days * _DAY_S
    try:
        frame = source.fetch([m.GPU_ENERGY], {"instance": _name(node)}, start_s - 60, end_s)
    finally:
        source.close()
    total = 0.0
    for _, rows in frame.groups("uuid"):
        t, value = rows.t, rows.value
        total += value[t <= end_s][-1] - (
            value[t <= start_s][-1] if (t <= start_s).any() else value[0]
        )
    return float(total)  # not one of numpy, which JSON cannot hold


def _name(node: int) -> str:
    return f"node-{node:03d}:9847"


def _load(address: str, start_s: float, end_s: float, nodes: int) -> tuple[int, int]:
    """Load JSON lines and return the numbers of samples and runs."""
    counts = [0, 0]

    def lines() -> Iterator[bytes]:
        for number in range(nodes):
            since_s = start_s - 40 * _DAY_S
            node = FleetNode(
                _name(number), since_s, start_s - 120, end_s, GPUS, offset_s=number * 0.113
            )
            runs = _runs(number, start_s, end_s)
            counts[1] += len(runs)
            times = node.times()
            texts = list(map(str, np.rint(times * 1_000).astype(np.int64).tolist()))
            for series in filter(_wanted, node_series(node, runs)):
                counts[0] += len(series.t)
                first = int(np.searchsorted(times, series.t[0]))
                yield _line(series, texts[first : first + len(series.t)])

    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=900)
    connection.request(
        "POST", "/api/v1/import", lines(), {"Transfer-Encoding": "chunked"}, encode_chunked=True
    )
    connection.getresponse().read()
    connection.request("GET", "/internal/force_flush")
    connection.getresponse().read()
    connection.close()
    return counts[0], counts[1]


def _wanted(series: NodeSeries) -> bool:
    """Return the metrics of GPUs with one policy."""
    policy, component = (
        series.labels.get("policy", "idle_shared"),
        series.labels.get("component", "gpu"),
    )
    return (
        bool(len(series.t))
        and series.labels["__name__"] in _LOADED
        and (policy, component) == ("idle_shared", "gpu")
    )


def _line(series: NodeSeries, stamps: list[str]) -> bytes:
    """Return a JSON line; `stamps` are times in milliseconds, and joules and tokens are whole
    numbers.
    """
    values = ",".join(map(str, series.value.astype(np.int64).tolist()))
    return f'{{"metric":{json.dumps(series.labels)},"values":[{values}],"timestamps":[{",".join(stamps)}]}}\n'.encode()


def _runs(node: int, start_s: float, end_s: float) -> list[FleetRun]:
    """Yield sequential runs on each half of the node, with pauses of 6 s or of up to 14 h."""
    chance = random.Random(node)
    runs: list[FleetRun] = []
    for half in range(2):
        t = start_s - chance.uniform(0, 6 * 3_600)
        while t < end_s:
            long_s = chance.choice((6.0, chance.uniform(600, 50_000)))
            user = chance.randrange(8)
            model, team = chance.randrange(6), user // 2
            labels = {
                "model": f"model-{model}",
                "user": f"user-{user}",
                "namespace": f"team-{team}",
            }
            gpus = tuple(range(4 * half, 4 * half + 4))
            name = f"run-{node}-{half}-{len(runs)}"
            work = {"generated_tokens": float(chance.randrange(500, 5_000))}
            phases = {
                "prefill": (0.05 * long_s, 0.3 * long_s),
                "decode": (0.3 * long_s, 0.95 * long_s),
            }
            runs.append(
                FleetRun(name, (_name(node),), gpus, t, t + long_s, labels, "serve", work, phases)
            )
            t += long_s + chance.uniform(600, 9_000)
    return runs

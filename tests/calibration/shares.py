"""Error of attributed shares, which have no interval: `python -m tests.calibration.shares`.

Runs share a simulated GPU and CPU in virtual time. The true share follows from the policy, with the
true idle power, and the power and load of each instant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tests.laboratory.clients import open_run
from tests.laboratory.loads import log_uniform, wave_or_telegraph
from tests.laboratory.results import (
    draw_parser,
    file_of,
    markdown_table,
    percent,
    stored_rows,
    write_rows,
)
from wattline_exporter.attribution.cpu_time import (
    CpuUsageReader,
    NodeCpuUsage,
    RunCpuUsage,
    ScannedRun,
)
from wattline_exporter.attribution.policy import POLICIES, Attribution, Policy
from wattline_exporter.polling.health import GpuHealth
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.polling.meters import SLOW_S
from wattline_exporter.runs import marks as run_marks
from wattline_exporter.runs.holders import DeviceHolders
from wattline_exporter.runs.run_record import RunRecord
from wattline_exporter.sensors.processes.procfs import ProcessKey
from wattline_exporter.sensors.readings import ClockReading, Device, GpuInfo, GpuProcess, Poll

RESULTS = file_of("shares")
GPU, CPU = Device("gpu", "GPU-0"), Device("package", "0")
GRID_S, POLL_S, LEAD_S, TAIL_S = 0.01, 0.1, 25.0, 3.0
"""The idle power is observed before the first run."""
SECONDS = 3.0, 120.0
TIMES_S = (0.0, 10.0, 60.0)
"""Shortest runs of each row of the table."""
TITLES: dict[str, str] = {
    "gpu idle_shared": "GPU, `idle_shared`",
    "gpu idle_apart": "GPU, `idle_apart`",
    "cpu idle_shared": "CPU, `idle_shared`",
    "cpu mean_loads": "CPU, with mean loads between readings as true",
}


class ShareDraw(NamedTuple):
    figure: str
    seconds: float
    truth_j: float
    share_j: float

    @property
    def error(self) -> float:
        return self.share_j / self.truth_j - 1


@dataclass(frozen=True)
class _Run:
    record: RunRecord
    pid: int
    begin_s: float
    end_s: float


def _sums(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(values) * GRID_S])


class _Node(CpuUsageReader):
    """GPU and CPU package in virtual time, whose loads are constant within each cell of the
    grid.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.now_s = 0.0
        count, length_s = int(rng.integers(1, 4)), log_uniform(rng, *SECONDS)
        begins_s = LEAD_S + np.append(0.0, rng.uniform(0, 0.5, count - 1)) * length_s
        ends_s = begins_s + rng.uniform(0.7, 1.5, count) * length_s
        self.until_s = float(ends_s.max()) + TAIL_S
        self._cells_s = np.arange(0, self.until_s + 1, GRID_S)
        self.runs = [
            _Run(self._record(number, float(begin_s)), 100 + number, float(begin_s), float(end_s))
            for number, (begin_s, end_s) in enumerate(zip(begins_s, ends_s, strict=True))
        ]
        during = np.array(
            [(self._cells_s >= run.begin_s) & (self._cells_s < run.end_s) for run in self.runs]
        )
        used = np.array([self._curve(rng, 1 / count) for _ in self.runs]) * during
        cores = np.array([self._curve(rng, 16.0) for _ in self.runs]) * during
        others = self._curve(rng, 4.0)
        idle_w, active_w = rng.uniform(30, 120), rng.uniform(100, 600)
        gpu_w = idle_w + active_w * used.sum(0)
        busy = cores.sum(0) + others
        cpu_w = rng.uniform(20, 120) + rng.uniform(2, 8) * busy
        self._gpu_j, self._cpu_j = _sums(gpu_w), _sums(cpu_w)
        self._used_s = [_sums(one) for one in used]
        self._cores_s = [_sums(one) for one in cores]
        self._busy_s = _sums(busy)
        holders = np.maximum(during.sum(0), 1)
        self.truth_j = {
            "gpu idle_apart": (active_w * used).sum(1) * GRID_S,
            "gpu idle_shared": (active_w * used + idle_w * during / holders).sum(1) * GRID_S,
            "cpu idle_shared": (cpu_w * cores / busy).sum(1) * GRID_S,
        }
        self._processes_s = 0.0
        self._reads_s: list[float] = []

    def _record(self, number: int, begin_s: float) -> RunRecord:
        return open_run(
            [GPU, CPU], begin_s, f"run-{number}", processes=[ProcessKey(100 + number, begin_s)]
        )

    def _curve(self, rng: np.random.Generator, highest: float) -> np.ndarray:
        """Return a load that changes each 50 ms to 60 s."""
        high = rng.uniform(0.2, 1.0) * highest
        low = rng.uniform(0.05, 0.9) * high
        seconds = self.until_s + 5
        load = wave_or_telegraph(rng, (low, high), seconds, 0.05)
        return np.asarray(
            np.diff(load.energy_j(np.append(self._cells_s, self._cells_s[-1] + GRID_S))) / GRID_S
        )

    def mean_load_energies_j(self) -> np.ndarray:
        """Return the CPU energy of each run, if the loads between two readings are constant."""
        edges_s = [edge_s for run in self.runs for edge_s in (run.begin_s, run.end_s)]
        times_s, grid_s = (
            np.unique([*self._reads_s, *edges_s]),
            np.arange(len(self._busy_s)) * GRID_S,
        )
        cpu_j, busy_s = (
            np.diff(np.interp(times_s, grid_s, sums)) for sums in (self._cpu_j, self._busy_s)
        )
        used_s = [np.diff(np.interp(times_s, grid_s, sums)) for sums in self._cores_s]
        return np.array([(cpu_j * used / busy_s).sum() for used in used_s])

    def clock(self) -> ClockReading:
        return ClockReading(self.now_s, 1.79e9 + self.now_s, self.now_s)

    def _at(self, sums: np.ndarray, t_s: float) -> float:
        return float(np.interp(t_s, np.arange(len(sums)) * GRID_S, sums))

    def gpu_poll(self) -> Poll:
        """Return the counter and the power of the latest update, each 0.1 s."""
        updated_s = self.now_s - self.now_s % POLL_S
        counted_j = self._at(self._gpu_j, updated_s)
        watts = (counted_j - self._at(self._gpu_j, updated_s - POLL_S)) / POLL_S
        return Poll(GPU, self.now_s, self.now_s + 1e-4, counted_j, watts, watts)

    def cpu_poll(self) -> Poll:
        return Poll(
            CPU,
            self.now_s,
            self.now_s + 1e-4,
            self._at(self._cpu_j, self.now_s),
            counter_range_j=262_143.3,
        )

    def processes(self) -> tuple[GpuProcess, ...]:
        """Return the processes with their utilization since the last call, in whole percent as NVML
        has it.
        """
        since_s, self._processes_s = self._processes_s, self.now_s
        found = []
        for run, sums in zip(self.runs, self._used_s, strict=True):
            if run.begin_s <= self.now_s < run.end_s:
                used = (self._at(sums, self.now_s) - self._at(sums, since_s)) / (
                    self.now_s - since_s
                )
                found.append(GpuProcess(run.pid, 1 << 30, round(100 * used) / 100))
        return tuple(found)

    def read(self, runs: Mapping[str, ScannedRun]) -> NodeCpuUsage:
        """Return the CPU time of the runs; those that have ended have no processes."""
        self._reads_s.append(self.now_s)
        usage = {}
        for run, sums in zip(self.runs, self._cores_s, strict=True):
            if run.record.run_id in runs:
                pids = frozenset({run.pid} if run.begin_s <= self.now_s < run.end_s else ())
                usage[run.record.run_id] = RunCpuUsage(self._at(sums, self.now_s), pids, pids)
        return NodeCpuUsage(self.now_s, self._at(self._busy_s, self.now_s), usage)


def _exporter(node: _Node) -> tuple[LiveState, DeviceHolders]:
    live = LiveState(clock=node.clock)
    live.gpus[GPU.id] = GpuHealth(GpuInfo("0", GPU.id, "test", "", "", ""), GPU, 0.0)
    return live, DeviceHolders(live, Attribution(), 0.0, node)


def _measure(rng: np.random.Generator) -> list[ShareDraw]:
    """Poll the GPU each 0.1 s, read CPU, loads and processes once a second and at each start and
    end of a run.
    """
    node = _Node(rng)
    live, holders = _exporter(node)
    polls_s = np.arange(rng.random() * POLL_S, node.until_s, POLL_S)
    events: list[tuple[float, str, _Run | None]] = [(float(t_s), "poll", None) for t_s in polls_s]
    events += [(float(t_s), "tick", None) for t_s in np.arange(rng.random(), node.until_s, 1.0)]
    events += [
        (float(t_s), "processes", None) for t_s in np.arange(1 + rng.random(), node.until_s, 1.0)
    ]
    events += [(run.begin_s, "begin", run) for run in node.runs] + [
        (run.end_s, "end", run) for run in node.runs
    ]
    open_runs: list[RunRecord] = []
    for t_s, event, run in sorted(events, key=lambda one: one[0]):
        node.now_s = t_s
        if event == "processes":
            live.gpus[GPU.id].processes = node.processes()
            continue
        live.energy.push([node.gpu_poll()])
        if event == "poll":
            continue
        live.energy.push([node.cpu_poll()], SLOW_S)
        if run and event == "begin":
            open_runs.append(run.record)
            run.record.begin = run.record.cuts[0].marks = run_marks.take_marks(
                run.record, live.energy.meters, t_s, {}
            )
        asyncio.run(holders.scan([one for one in open_runs if one.running]))
        if run and event == "end":
            run.record.end_s, run.record.ended_at, run.record.outcome = t_s, 1.79e9 + t_s, "ok"
        if run:
            holders.change_holders(open_runs, t_s)
        else:
            holders.tick(open_runs, t_s)
    found = []
    node.truth_j["cpu mean_loads"] = node.mean_load_energies_j()
    for number, one in enumerate(node.runs):
        for figure in TITLES:
            kind, policy = figure.replace("mean_loads", "idle_shared").split()
            device, truth_j = GPU if kind == "gpu" else CPU, float(node.truth_j[figure][number])
            share_j = holders.energies.share_j(device, _policy(policy), one.record.run_id)
            found.append(ShareDraw(figure, one.end_s - one.begin_s, truth_j, share_j or 0.0))
    return found


def _policy(name: str) -> Policy:
    return next(policy for policy in POLICIES if policy == name)


def measure_shares(seed: int, count: int) -> list[ShareDraw]:
    rng = np.random.default_rng([seed, *b"shares"])
    return [draw for _ in range(count) for draw in _measure(rng)]


def summarize_shares(draws: list[ShareDraw]) -> list[dict[str, Any]]:
    """Return number, mean and absolute errors of each figure, by the duration of the runs."""
    rows = []
    for figure in TITLES:
        for low_s, high_s in zip(TIMES_S, (*TIMES_S[1:], np.inf), strict=True):
            errors = np.array(
                [
                    one.error
                    for one in draws
                    if one.figure == figure and low_s <= one.seconds < high_s
                ]
            )
            if len(errors):
                rows.append(
                    {
                        "figure": figure,
                        "from_seconds": low_s,
                        "runs": len(errors),
                        "mean": round(float(errors.mean()), 5),
                        "median": round(float(np.median(np.abs(errors))), 5),
                        "p95": round(float(np.quantile(np.abs(errors), 0.95)), 5),
                    }
                )
    return rows


def share_table() -> str:
    """Return the table of the stored errors."""
    names = {0.0: "below 10 s", 10.0: "10 to 60 s", 60.0: "above 60 s"}
    header = [
        "share",
        "duration of the run",
        "runs",
        "mean error",
        "median error",
        "95th percentile",
    ]
    rows = [
        [
            TITLES[row["figure"]],
            names[row["from_seconds"]],
            f"{row['runs']:,}",
            f"{100 * row['mean']:+.2f} %",
            percent(row["median"], 2),
            percent(row["p95"]),
        ]
        for row in stored_rows(RESULTS)
    ]
    return markdown_table(header, rows, text=2)


def main() -> None:
    draws = "Groups of one to three runs that share the devices."
    given = draw_parser("tests.calibration.shares", __doc__, 500, draws).parse_args()
    write_rows(RESULTS, summarize_shares(measure_shares(given.seed, given.draws)))


if __name__ == "__main__":
    main()

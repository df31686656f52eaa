"""Many short jobs of real processes in real cgroups, while the exporter is killed and restarted at
random.

`python -m tests.exporter.runs.discovery.real_jobs --jobs 1000 --seed N`, as root.
"""

from __future__ import annotations

import argparse
import heapq
import random
import secrets
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.daemon import Daemon, start, wait_until_it_serves
from tests.exporter.runs.discovery.real_cgroups import Groups, cgroup2_mount, cgroups
from tests.simulation.discovery.verify import Attempt, FoundRun, Interval, OwnerKey, Verdict, verify
from wattline_exporter.sensors.processes.procfs import find_process
from wattline_exporter.sensors.readings import boottime
from wattline_exporter.simulation import FILE_NAME, Segment, Simulation

GPUS = 8
MAX_PROCESSES = 14
FIRST_USER = 30_000
SETTLE_S = 5.0
"""Time from the first answer of a restarted exporter to its first scan of all GPUs."""
CALM_S = 14.0
"""Time after the last job in which each run ends: that of a user 8 s after the last process."""
SEEN_S, LATE_S = 6.0, 6.0
"""Limits of a busy machine, on which a scan may be late."""


@dataclass
class Soak:
    """Course of the jobs and of the exporter. `kill_s`: mean time between two stops of the
    exporter, 0 for none.
    """

    folder: Path
    groups: Groups
    rng: random.Random
    jobs: int
    mean_s: float
    kill_s: float
    show: Callable[[str], None] = lambda _: None
    options: tuple[str, ...] = ()
    attempts: list[Attempt] = field(default_factory=list)
    disturbed: list[Interval] = field(default_factory=list)
    kills: int = 0
    most_rss_bytes: int = 0
    most_series: int = 0

    def __post_init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = self._running = 0
        self._segments: list[list[Segment]] = [[] for _ in range(GPUS)]
        self._busy = [0] * GPUS
        self._stack = ExitStack()
        self._down_s = boottime()

    def run(self) -> Verdict:
        with self._stack:
            self._exporter = self._start_exporter()
            wait_until_it_serves(self._exporter)
            self._stack.callback(self._stop_exporter)
            self._simulation = self._stack.enter_context(
                Simulation.open(self._exporter.folder / FILE_NAME)
            )
            self._segments = [[gpu.segments[-1]] for gpu in self._simulation.gpus]
            self._note_start()
            due_s = 3.0
            for _ in range(self.jobs):
                due_s += self.rng.expovariate(1 / self.mean_s)
                self._after(due_s, self._start_job)
            if self.kill_s:
                self._after(self.rng.expovariate(1 / self.kill_s), self._kill)
            self._after(5.0, self._watch)
            while self._events and (self._running or len(self.attempts) < self.jobs):
                due_at_s, _, event = heapq.heappop(self._events)
                time.sleep(max(0.0, due_at_s - boottime()))
                event()
            if self._exporter.process.poll() is not None:
                self._exporter = self._start_exporter()
                wait_until_it_serves(self._exporter)
            time.sleep(SETTLE_S + CALM_S)
            status, runs = self._exporter.get("/api/v1/runs")
            assert status == 200, runs
            return verify(
                self.attempts,
                [self._found(run) for run in runs],
                self.disturbed,
                self._true_j,
                seen_s=SEEN_S,
                late_s=LATE_S,
            )

    def _after(self, delay_s: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (boottime() + delay_s, self._number, event))

    # -- exporter

    def _start_exporter(self) -> Daemon:
        base = (
            "--simulate",
            f"{GPUS}xH200",
            "--no-collector.host",
            "--no-collector.rapl",
            "--no-history",
        )
        return start(
            self.folder, *base, "--runs.discover", "auto", "--runs.max", "512", *self.options
        )

    def _stop_exporter(self) -> None:
        self._exporter.stop()

    def _note_start(self) -> None:
        self.disturbed.append((self._down_s - 1.0, boottime() + SETTLE_S))

    def _kill(self) -> None:
        self._down_s = boottime()
        self.kills += 1
        if self.rng.random() < 0.6:
            self._exporter.process.kill()
        else:
            self._exporter.process.terminate()
        self._exporter.process.wait(30)
        self._after(self.rng.choice([0.0, 1.0, 6.0]), self._restart)

    def _restart(self) -> None:
        self._exporter = self._start_exporter()
        self._after(0.2, self._await)

    def _await(self) -> None:
        if "serving on" not in self._exporter.log():
            self._after(0.2, self._await)
            return
        wait_until_it_serves(self._exporter)
        self._note_start()
        self._after(SETTLE_S + self.rng.expovariate(1 / self.kill_s), self._kill)

    def _watch(self) -> None:
        self._after(10.0, self._watch)
        self.show(
            f"{len(self.attempts)} jobs, {self._running} running, {self.kills} stops of the "
            "exporter"
        )
        if self._exporter.process.poll() is None and self._exporter.url:
            pids = (self._exporter.process.pid,)
            self.most_rss_bytes = max(
                [self.most_rss_bytes, *(psutil.Process(pid).memory_info().rss for pid in pids)]
            )
            lines = self._exporter.text().splitlines()
            self.most_series = max(
                self.most_series, sum(not line.startswith("#") for line in lines)
            )

    # -- jobs

    def _start_job(self) -> None:
        rng, number = self.rng, 1000 + len(self.attempts)
        kind = rng.choice(["slurm", "slurm", "container", "service", "user"])
        identity, path = {
            "slurm": (str(number), f"slurmstepd.scope/job_{number}/step_0"),
            "container": (f"{rng.getrandbits(256):064x}", ""),
            "service": (f"s{number}.service", f"s{number}.service"),
            "user": (str(FIRST_USER + number), None),
        }[kind]
        path = f"docker-{identity}.scope" if path == "" else path
        user = FIRST_USER + number if kind == "user" else None
        process = self._spawn(path, user)
        key = find_process(process.pid)
        assert key
        attempt = Attempt((kind, identity), key.started_s)
        self.attempts.append(attempt)
        self._running += 1
        free = [gpu for gpu in range(GPUS) if self._busy[gpu] < MAX_PROCESSES]
        gpus = rng.sample(
            free,
            min(
                len(free),
                rng.choice([1, 1, 2]) if len(free) == GPUS and sum(self._busy) < 5 * GPUS else 1,
            ),
        )
        seconds = rng.choice(
            [rng.uniform(0.3, 4.0), rng.uniform(6.0, 14.0), rng.uniform(6.0, 30.0)]
        )
        used_s = boottime()
        for gpu in gpus:
            self._busy[gpu] += 1
            self._simulation.drive(gpu, rng.uniform(0.01, 0.06), process.pid)
            self._segments[gpu].append(self._simulation.gpus[gpu].segments[-1])

        def end() -> None:
            attempt.on_gpu += [(used_s, boottime())] if gpus else []
            process.kill()
            process.wait()
            attempt.end_s = boottime()
            for gpu in gpus:
                self._busy[gpu] -= 1
                self._simulation.release(gpu, process.pid)
                self._segments[gpu].append(self._simulation.gpus[gpu].segments[-1])
            if path is not None:
                self.groups.remove(path.partition("/step_0")[0])
            self._running -= 1

        self._after(seconds, end)

    def _spawn(self, path: str | None, user: int | None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["sleep", "600"], user=user, cwd="/", env={"PATH": "/usr/bin:/bin"}
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        if path is not None:
            self.groups.make(path)
            (self.groups.root / self.groups.top / path / "cgroup.procs").write_text(
                str(process.pid)
            )
        return process

    # -- truth

    def _true_j(self, uuid: str, from_s: float, to_s: float) -> float:
        index = next(gpu.index for gpu in self._simulation.gpus if gpu.uuid == uuid)
        return self._energy_j(index, to_s) - self._energy_j(index, from_s)

    def _energy_j(self, gpu: int, t_s: float) -> float:
        segments = self._segments[gpu]
        place = bisect_right(segments, t_s, key=lambda segment: segment.begin_s)
        return segments[max(0, place - 1)].energy_j(t_s)

    def _found(self, run: dict[str, Any]) -> FoundRun:
        begin_s = run["started_at"] - (time.time() - boottime())
        half_j = run["energy_uncertainty_joules"].get("gpu", {})
        energies = {
            uuid: (joules, half_j.get(uuid, 0.0))
            for uuid, joules in run["energy_joules"].get("gpu", {}).items()
        }
        end_s = begin_s + run["duration_seconds"] if run["state"] == "ended" else None
        return FoundRun(
            run["run_id"], self._owner(run), begin_s, end_s, energies, bool(run["notes"])
        )

    def _owner(self, run: dict[str, Any]) -> OwnerKey:
        kind, name = run["workload"], run["run_id"]
        matches = {
            "slurm": lambda identity: name.partition(".")[0] == f"slurm-cluster-{identity}",
            "container": lambda identity: name.partition(".")[0] == f"container-{identity[:12]}",
            "service": lambda identity: run["labels"].get("unit") == identity,
            "user": lambda identity: run["labels"].get("user") == identity,
        }
        return next(
            (a.owner for a in self.attempts if a.owner[0] == kind and matches[kind](a.owner[1])),
            (kind, name),
        )


def soak(folder: Path, seed: int, jobs: int, **settings: Any) -> tuple[Soak, Verdict]:
    """Run the jobs and compare the runs with them. Needs root and a writable cgroup v2."""
    root = cgroup2_mount()
    assert root
    with cgroups(root) as groups:
        course = Soak(folder, groups, random.Random(seed), jobs, **settings)
        return course, course.run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="seed of the jobs; without it, a new one")
    parser.add_argument(
        "--jobs", type=int, default=800, help="number of jobs, at most 1,000 of which are listed"
    )
    parser.add_argument("--mean-s", type=float, default=0.3, help="mean time between two jobs")
    parser.add_argument(
        "--kill-s", type=float, default=25.0, help="mean time between two stops of the exporter"
    )
    arguments = parser.parse_args()
    seed = secrets.randbelow(1 << 40) if arguments.seed is None else arguments.seed
    begin_s = time.monotonic()

    def show(text: str) -> None:
        print(f"{time.monotonic() - begin_s:5.0f} s: {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        course, found = soak(
            Path(folder),
            seed,
            arguments.jobs,
            mean_s=arguments.mean_s,
            kill_s=arguments.kill_s,
            show=show,
        )
    for violation in found.violations[:10]:
        print(violation)
    print(
        f"seed {seed}: {found.attempts} jobs, {found.runs} runs, {found.unseen} jobs too short or "
        "too disturbed to be "
        f"seen; {course.kills} stops of the exporter; {found.outside} of {found.energies} energies "
        "outside of their "
        f"95 % interval, sum {found.joules:.0f} J, true {found.true_joules:.0f} J; latest end "
        f"{found.worst_end_s:.2f} s; at most {course.most_rss_bytes / 1e6:.0f} MB and "
        f"{course.most_series} series; "
        f"{len(found.violations)} violations"
    )
    return int(bool(found.violations))


if __name__ == "__main__":
    sys.exit(main())

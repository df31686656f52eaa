"""SIGKILL at any moment, many times: no run is lost, no counter falls, and the files open."""

import math
import os
import random
import signal
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median

import psutil
import pytest
import requests

from exporter.contract.history import HISTORY_FILE, STATE_FILE
from exporter.simulation import FILE_NAME, Simulation, Square
from tests.daemon import Daemon, start, wait_until_it_serves

LIVES = int(os.environ.get("KILL_TEST_LIVES", "20"))
"""Number of kills on each of four folders.

80 kills miss a defect that appears in one kill of twenty once in 60 times (0.95 ** 80).
KILL_TEST_LIVES=50 makes 200 kills.
"""
OPTIONS = ("--simulate", "8xH200", "--no-collector.rapl", "--no-collector.host", "--carbon.intensity", "230")
OPEN_RUNS = 4
PAUSE_S = 0.02
"""Pause of a client, so that four clients and exporters share two cores without a queue."""
CHECK_EVERY = 10


@dataclass
class Folder:
    """Responses that the clients of the exporters on one state folder received."""

    rng: random.Random
    path: Path
    started_runs: dict[str, dict] = field(default_factory=dict)
    ended: dict[str, dict] = field(default_factory=dict)
    last_values: dict[str, float] = field(default_factory=dict)
    fallen: list[str] = field(default_factory=list)
    missing_s: list[float] = field(default_factory=list)
    served: int = 0

    def live(self, number: int) -> None:
        """Run an exporter until SIGKILL, then check the files."""
        exporter = start(self.path, *OPTIONS)
        if self.rng.random() < 0.25:  # possibly during the start
            threading.Timer(self.rng.uniform(0.05, 1.2), exporter.process.kill).start()
        try:
            wait_until_it_serves(exporter)
        except AssertionError:
            assert exporter.process.wait(30) == -signal.SIGKILL, exporter.log()
        else:
            self.served += 1
            if number == 0:
                self.load(exporter)
            self.use(exporter, self.rng.uniform(0.05, 1.5))
        self.check_files(exporter, number)

    def load(self, exporter: Daemon) -> None:
        with Simulation.open(exporter.folder / FILE_NAME) as simulation:
            for i in range(8):
                simulation.set_load(i, Square(72.0, 640.0, 0.4 + 0.2 * i))

    def use(self, exporter: Daemon, seconds: float) -> None:
        """Scrape, begin, work and end from several clients until the exporter is killed."""
        children, serving_s = psutil.Process(exporter.process.pid).children(), time.monotonic()
        killed_at: list[float] = []

        def kill() -> None:
            exporter.process.kill()
            killed_at.append(time.time())

        timer = threading.Timer(seconds, kill)
        if self.rng.random() < 0.5:
            timer.start()
        try:
            while True:
                self.scrape(exporter)
                self.tag(exporter)
                time.sleep(PAUSE_S)
                if not timer.ident:  # at least one request, also on a slow machine
                    timer.start()
        except requests.RequestException:
            if timer.ident:
                timer.join()
        assert exporter.process.wait(30) == -signal.SIGKILL, exporter.log()
        _, left = psutil.wait_procs(children, timeout=30)
        assert not left
        if self.started_runs and time.monotonic() - serving_s > 1.2 and killed_at:
            self.missing_s.append(killed_at[0] - newest_sample(exporter.folder))

    def scrape(self, exporter: Daemon) -> None:
        lines = requests.get(f"{exporter.url}/metrics", timeout=30).text.splitlines()
        for series, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#")):
            if not series.partition("{")[0].endswith("_total"):
                continue
            if float(value) < self.last_values.get(series, 0.0):
                self.fallen.append(f"{series} from {self.last_values[series]} to {value}")
            self.last_values[series] = float(value)

    def tag(self, exporter: Daemon) -> None:
        open_runs = [run_id for run_id in self.started_runs if run_id not in self.ended]
        if len(open_runs) < OPEN_RUNS:
            body = {"workload": "killed", "run_id": f"run-{len(self.started_runs)}-{self.rng.random():.6f}"}
            status, run = exporter.post("/api/v1/runs", body)
            assert status in (200, 201), run
            self.started_runs[run["run_id"]] = run
        chosen = self.rng.choice(open_runs or list(self.started_runs))
        body = {"contributor": f"life-{self.served}", "steps": len(self.last_values)}
        status, answer = exporter.post(f"/api/v1/runs/{chosen}/work", body)
        assert status == 200 or "has ended" in str(answer) or "is less than" in str(answer), answer
        if self.rng.random() < 0.5 and len(open_runs) > 1:
            status, run = exporter.post(f"/api/v1/runs/{chosen}/end", {"outcome": "ok"})
            assert status == 200, run
            self.ended[chosen] = run

    def check_files(self, exporter: Daemon, number: int) -> None:
        """Open both files; assert that every run a client received is stored as it was received."""
        state = exporter.folder / STATE_FILE
        if not state.exists():
            return
        with closing(sqlite3.connect(state)) as connection:
            has_runs = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'run'").fetchone()[0]
            stored_runs = dict(connection.execute("SELECT run_id, running FROM run")) if has_runs else {}
            assert not number % CHECK_EVERY or connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
        assert set(self.started_runs) <= set(stored_runs), set(self.started_runs) - set(stored_runs)
        assert not any(stored_runs[run_id] for run_id in self.ended)
        if number % CHECK_EVERY == 0 and (exporter.folder / HISTORY_FILE).exists():
            with closing(sqlite3.connect(exporter.folder / HISTORY_FILE)) as connection:
                assert connection.execute("PRAGMA quick_check").fetchone() == ("ok",)


def newest_sample(folder) -> float:
    with closing(sqlite3.connect(folder / HISTORY_FILE)) as connection:
        return (connection.execute("SELECT max(t_ms) FROM samples").fetchone()[0] or -math.inf) / 1_000


def falls(folder):
    """Return each decrease of a counter in the history: name, labels, from, to."""
    rows = "SELECT name, labels, value FROM samples JOIN series ON id = series_id WHERE name LIKE '%_total'"
    with closing(sqlite3.connect(folder / HISTORY_FILE)) as connection:
        rows_in_order = connection.execute(f"{rows} ORDER BY name, labels, t_ms").fetchall()
    assert rows_in_order
    for (name, labels), samples in groupby(rows_in_order, key=lambda row: row[:2]):
        for (*_, before), (*_, after) in pairwise(samples):
            if after < before:
                yield f"{name}{labels} from {before} to {after}"


@pytest.mark.timeout(900)
def test_sigkill_eighty_times_loses_no_run_and_no_counter_falls(tmp_path):
    folders = [Folder(random.Random(seed), tmp_path / str(seed)) for seed in range(4)]
    for folder in folders:
        folder.path.mkdir()

    def lives(folder):
        for number in range(LIVES):
            folder.live(number)

    with ThreadPoolExecutor(len(folders)) as pool:
        for done in [pool.submit(lives, folder) for folder in folders]:
            done.result()

    assert sum(len(folder.ended) for folder in folders) > LIVES / 2
    for folder in folders:
        assert folder.served > LIVES / 3
        assert folder.ended
        assert not folder.fallen, folder.fallen[:10]
        fell = list(falls(folder.path / "state"))
        assert not fell, (len(fell), fell[:10])
        assert median(folder.missing_s) < 1.3
        last = start(folder.path, *OPTIONS)
        try:
            wait_until_it_serves(last)
            for run_id, response in folder.ended.items():
                assert last.get(f"/api/v1/runs/{run_id}") == (200, response)
            assert all(last.get(f"/api/v1/runs/{run_id}")[0] == 200 for run_id in folder.started_runs)
        finally:
            assert last.stop() == 0

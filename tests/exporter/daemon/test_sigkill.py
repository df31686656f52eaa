"""SIGKILL at any moment, many times: nothing acknowledged is lost, no counter falls, and the files
open.
"""

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

from tests.daemon import Daemon, start, wait_until_it_serves
from tests.exporter.daemon.run_clients import (
    PAUSE_S,
    Acknowledged,
    Client,
    assert_phases_within_run,
    figures,
)
from wattline.contract.history import HISTORY_FILE, STATE_FILE
from wattline_exporter.simulation import FILE_NAME, Simulation, Square

LIVES = int(os.environ.get("KILL_TEST_LIVES", "20"))
"""Number of kills on each of four folders.

80 kills miss a defect that appears in one kill of twenty once in 60 times (0.95 ** 80).
KILL_TEST_LIVES=50 makes 200 kills.
"""
OPTIONS = (
    "--simulate",
    "8xH200",
    "--no-collector.rapl",
    "--no-collector.host",
    "--carbon.intensity",
    "230",
)
CLIENTS = 2
"""Clients of each folder: eight in all."""
CHECK_EVERY = 10
COVERAGE = 0.95
FARTHEST = 2.5
"""Largest error of an energy as a ratio to its half-width: five standard deviations of a normal
error.
"""
FALSE_ALARM = 1e-4


@dataclass
class Folder:
    """Clients of the exporters on one state folder, and the answers that they received."""

    rng: random.Random
    path: Path
    clients: list[Client]
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
        """Scrape while the clients send their requests, until the exporter is killed."""
        serving_s = time.monotonic()
        try:
            children = psutil.Process(exporter.process.pid).children()
        except psutil.NoSuchProcess:  # killed already
            children = []
        killed_at: list[float] = []
        answers = sum(client.answers for client in self.clients)

        def kill() -> None:
            exporter.process.kill()
            killed_at.append(time.time())

        timer = threading.Timer(seconds, kill)
        if self.rng.random() < 0.5:
            timer.start()
        with ThreadPoolExecutor(CLIENTS) as pool:
            using = [pool.submit(client.use, exporter) for client in self.clients]
            try:
                while True:
                    self.scrape(exporter)
                    if not timer.ident and sum(client.answers for client in self.clients) > answers:
                        timer.start()  # after at least one answer, also on a slow machine
                    time.sleep(PAUSE_S)
            except requests.RequestException:
                if timer.ident:
                    timer.join()
            finally:
                exporter.process.kill()
            for client in using:
                client.result()
        assert exporter.process.wait(30) == -signal.SIGKILL, exporter.log()
        _, left = psutil.wait_procs(children, timeout=30)
        assert not left
        if self.acknowledged and time.monotonic() - serving_s > 1.2 and killed_at:
            self.missing_s.append(killed_at[0] - newest_sample(exporter.folder))

    def scrape(self, exporter: Daemon) -> None:
        lines = requests.get(f"{exporter.url}/metrics", timeout=30).text.splitlines()
        for series, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#")):
            if not series.partition("{")[0].endswith("_total"):
                continue
            if float(value) < self.last_values.get(series, 0.0):
                self.fallen.append(f"{series} from {self.last_values[series]} to {value}")
            self.last_values[series] = float(value)

    @property
    def acknowledged(self) -> dict[str, Acknowledged]:
        return {run.run_id: run for client in self.clients for run in client.runs}

    @property
    def ended(self) -> list[dict]:
        return [run.end for run in self.acknowledged.values() if run.end is not None]

    def check_files(self, exporter: Daemon, number: int) -> None:
        """Open both files; assert that every acknowledged run, and its end, is stored."""
        state = exporter.folder / STATE_FILE
        if not state.exists():
            return
        with closing(sqlite3.connect(state)) as connection:
            has_runs = connection.execute(
                "SELECT count(*) FROM sqlite_master WHERE name = 'run'"
            ).fetchone()[0]
            stored_runs = (
                dict(connection.execute("SELECT run_id, running FROM run")) if has_runs else {}
            )
            assert not number % CHECK_EVERY or connection.execute(
                "PRAGMA quick_check"
            ).fetchone() == ("ok",)
        missing = set(self.acknowledged) - set(stored_runs)
        assert not missing, missing
        assert not any(stored_runs[run["run_id"]] for run in self.ended)
        if number % CHECK_EVERY == 0 and (exporter.folder / HISTORY_FILE).exists():
            with closing(sqlite3.connect(exporter.folder / HISTORY_FILE)) as connection:
                assert connection.execute("PRAGMA quick_check").fetchone() == ("ok",)


def newest_sample(folder) -> float:
    with closing(sqlite3.connect(folder / HISTORY_FILE)) as connection:
        return (
            connection.execute("SELECT max(t_ms) FROM samples").fetchone()[0] or -math.inf
        ) / 1_000


def falls(folder):
    """Return each decrease of a counter in the history: name, labels, from, to."""
    rows = (
        "SELECT name, labels, value FROM samples JOIN series ON id = series_id WHERE name LIKE "
        "'%_total'"
    )
    with closing(sqlite3.connect(folder / HISTORY_FILE)) as connection:
        rows_in_order = connection.execute(f"{rows} ORDER BY name, labels, t_ms").fetchall()
    assert rows_in_order
    for (name, labels), samples in groupby(rows_in_order, key=lambda row: row[:2]):
        for (*_, before), (*_, after) in pairwise(samples):
            if after < before:
                yield f"{name}{labels} from {before} to {after}"


def most_outside(total):
    """Return the number of `total` figures that intervals of COVERAGE miss by chance, or more with
    FALSE_ALARM.
    """
    outside, more = 0, 1 - COVERAGE**total
    while more > FALSE_ALARM:
        outside += 1
        more -= (
            math.comb(total, outside) * (1 - COVERAGE) ** outside * COVERAGE ** (total - outside)
        )
    return outside


def assert_inside_intervals(all_figures):
    """Check that the errors agree with intervals of 95 %: some may be outside, none by a
    multiple.
    """
    worst = sorted(all_figures, key=lambda figure: -figure.error)[:5]
    assert worst[0].error <= FARTHEST, (len(all_figures), worst)
    assert sum(figure.error > 1.0 for figure in all_figures) <= most_outside(len(all_figures)), (
        worst
    )


@pytest.mark.timeout(900)
def test_sigkill_eighty_times_loses_nothing_acknowledged(tmp_path):
    folders = []
    for seed in range(4):
        rng = random.Random(seed)
        clients = [
            Client(f"client-{seed}-{n}", random.Random(rng.random())) for n in range(CLIENTS)
        ]
        folders.append(Folder(rng, tmp_path / str(seed), clients))
        folders[-1].path.mkdir()

    def lives(folder):
        for number in range(LIVES):
            folder.live(number)

    with ThreadPoolExecutor(len(folders)) as pool:
        for done in [pool.submit(lives, folder) for folder in folders]:
            done.result()

    assert sum(len(folder.ended) for folder in folders) > LIVES / 4
    for folder in folders:
        assert folder.served > LIVES / 3
        assert folder.ended
        assert not folder.fallen, folder.fallen[:10]
        fell = list(falls(folder.path / "state"))
        assert not fell, (len(fell), fell[:10])
        assert median(folder.missing_s) < 1.3
    assert_inside_intervals([figure for folder in folders for figure in assert_complete(folder)])


def assert_complete(folder):
    """Start a last exporter; assert that it has all acknowledged items. Return the figures of all
    runs.
    """
    last = start(folder.path, *OPTIONS)
    try:
        wait_until_it_serves(last)
        runs = []
        for run_id, run in folder.acknowledged.items():
            assert last.get(f"/api/v1/runs/{run_id}")[0] == 200
            assert run.end is None or last.get(f"/api/v1/runs/{run_id}") == (200, run.end)
            status, ended = last.post(f"/api/v1/runs/{run_id}/end", {"outcome": "ok"})
            assert status == 200, ended
            run.check(ended)
            runs.append(ended)
        with Simulation.open(last.folder / FILE_NAME) as simulation:
            offsets_s = {run_id: run.offset_s for run_id, run in folder.acknowledged.items()}
            found = [
                figure
                for run in runs
                for figure in figures(simulation, run, offsets_s[run["run_id"]])
            ]
        for run in runs:
            assert_phases_within_run(run)
        return found
    finally:
        assert last.stop() == 0

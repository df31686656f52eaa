"""Maximum number of runs and scrapes, an hour of them in a minute: memory and latency."""

import http.client
import random
import sqlite3
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import pairwise
from statistics import median, quantiles
from urllib.parse import urlsplit

import psutil
import pytest

from tests.daemon import begin, daemon, end
from tests.polling import eventually
from wattline.contract.api import MAX_RUNNING
from wattline.contract.history import HISTORY_FILE
from wattline_exporter.simulation import Square

OPTIONS = (
    "--simulate",
    "2xH200",
    "--no-collector.rapl",
    "--no-collector.host",
    "--carbon.intensity",
    "230",
)
RUNS = 1_000
CONCURRENT_RUNS = 20
EXPORTED_PER_HOUR = 167
"""Number of ended runs in a scrape if 1,000 runs end in an hour."""
WARM_UP_RUNS = 350
CLIENTS, SCRAPES_A_SECOND = 20, 100
MAX_CPU_S = 0.01
"""CPU time of a scrape with its part of the background work; unlike wall time it excludes other
processes.
"""
GROWTH_BYTES = 5 << 20
TAIL = ("--runs.tail", "3s")
LONG_RUNS = {f"long-{number}" for number in range(MAX_RUNNING - CONCURRENT_RUNS)}
LABELS = {f"label_number_{n}": f"value {n} of a run" for n in range(16)}


class Clients:
    """Twenty clients that scrape 5 times a second each."""

    def __init__(self, exporter):
        self.took_s = []
        self._address = urlsplit(exporter.url).netloc
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._scrape, args=(n,)) for n in range(CLIENTS)]

    def _scrape(self, number):
        period_s = CLIENTS / SCRAPES_A_SECOND
        connection = http.client.HTTPConnection(self._address, timeout=30)
        due_s = time.monotonic() + random.Random(number).uniform(0, period_s)
        while not self._ended.wait(max(0.0, due_s - time.monotonic())):
            self.took_s.append(self._get(connection, "/metrics"))
            due_s = max(due_s + period_s, time.monotonic())
        connection.close()

    def _get(self, connection, path):
        started_s = time.monotonic()
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        assert response.status == 200
        return time.monotonic() - started_s

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        for thread in self._threads:
            thread.join()


def private_bytes(exporter):
    """Return the private memory; shared memory depends on other processes."""
    processes = [psutil.Process(exporter.process.pid), *exporter.children()]
    return sum(process.memory_full_info().uss for process in processes)


def cpu_s(exporter):
    return sum(psutil.Process(exporter.process.pid).cpu_times()[:2])


def exported_runs(exporter):
    time.sleep(0.5)  # to parse a page takes CPU time, too
    lines = exporter.text().splitlines()
    return {
        line.partition('run_id="')[2].partition('"')[0]
        for line in lines
        if line.startswith("wattline_run_info{")
    }


def begin_all(exporter, run_ids, **more):
    with ThreadPoolExecutor(CONCURRENT_RUNS) as pool:
        list(
            pool.map(
                lambda run_id: begin(exporter, "crowd", run_id=run_id, gpus=["0"], **more), run_ids
            )
        )


def one_run(exporter, number):
    run_id = begin(
        exporter, "crowd", run_id=f"run-{number}", labels=LABELS, gpus=[str(number % 2)]
    )["run_id"]
    exporter.post(f"/api/v1/runs/{run_id}/phase", {"name": "measure"})
    exporter.post(f"/api/v1/runs/{run_id}/work", {"steps": number})
    return end(exporter, run_id, results={"loss": 0.1})


@pytest.mark.timeout(600)
def test_many_runs_and_scrapes_cost_no_memory_and_no_sample(tmp_path):
    with daemon(tmp_path, *OPTIONS, *TAIL, nursery=None) as exporter:
        with exporter.simulation() as simulation:
            for i in range(2):
                simulation.set_load(i, Square(72.0, 640.0, 1.73))
        begin_all(exporter, LONG_RUNS, labels=LABELS)
        memory_bytes, before_s = [], cpu_s(exporter)
        with Clients(exporter) as clients, ThreadPoolExecutor(CONCURRENT_RUNS) as pool:
            for first in range(0, RUNS, EXPORTED_PER_HOUR):
                numbers = range(first, min(RUNS, first + EXPORTED_PER_HOUR))
                ended = list(pool.map(lambda number: one_run(exporter, number), numbers))
                assert all(run["outcome"] == "ok" for run in ended)
                if first >= WARM_UP_RUNS:
                    memory_bytes.append(private_bytes(exporter))
                eventually(
                    lambda: exported_runs(exporter) == LONG_RUNS,
                    "the series of ended runs disappear",
                )
        scrape_cpu_s = (cpu_s(exporter) - before_s) / len(clients.took_s)
        exported_run_ids = exported_runs(exporter)
        covered = [value for _, value in exporter.metrics()["wattline_run_covered_ratio"]]
        long_run = end(exporter, "long-0")
    p99_s = quantiles(clients.took_s, n=100)[98]
    print(
        f"{len(clients.took_s)} scrapes, median {median(clients.took_s):.4f} s, p99 {p99_s:.4f} s"
    )
    print(f"CPU {scrape_cpu_s:.4f} s a scrape")
    print("own", [f"{size / 1e6:.1f} MB" for size in memory_bytes])

    assert exported_run_ids == LONG_RUNS
    assert max(memory_bytes) - memory_bytes[0] < GROWTH_BYTES
    assert scrape_cpu_s < MAX_CPU_S
    assert min(covered) > 0.98
    assert min(long_run["covered_ratio"]["gpu"].values()) > 0.98
    intervals_s = sample_intervals(exporter.folder)
    assert len(intervals_s) > 20
    assert sum(interval_s > 2.0 for interval_s in intervals_s) <= 0.05 * len(intervals_s), (
        intervals_s
    )


def sample_intervals(folder):
    with closing(sqlite3.connect(folder / HISTORY_FILE)) as connection:
        rows = connection.execute(
            "SELECT t_ms FROM samples JOIN series ON id = series_id WHERE name = "
            "'wattline_run_info'"
            " AND json_extract(labels, '$.run_id') = 'long-0' ORDER BY t_ms"
        ).fetchall()
    return [(b - a) / 1e3 for (a,), (b,) in pairwise(rows)]


# -- killed clients


@contextmanager
def full_exporter(tmp_path, **last):
    """Yield an exporter with the maximum number of runs; `last` are the fields of the last one."""
    with daemon(tmp_path, *OPTIONS) as exporter:
        begin_all(exporter, [f"other-{number}" for number in range(MAX_RUNNING - 1)])
        begin(exporter, run_id="last", **last)
        yield exporter


def begin_another(exporter):
    return exporter.post("/api/v1/runs", {"workload": "more", "run_id": "more", "gpus": ["0"]})


def wait_for_a_slot(exporter):
    give_up_s = time.monotonic() + 30
    while (response := begin_another(exporter))[0] == 429 and time.monotonic() < give_up_s:
        time.sleep(0.2)
    return response[0]


def test_expired_lease_frees_the_slot_of_a_run(tmp_path):
    with full_exporter(tmp_path, lease_seconds=6) as exporter:
        status, refused = begin_another(exporter)
        assert (status, refused["status"]) == (429, 429)
        assert wait_for_a_slot(exporter) == 201
        last = exporter.get("/api/v1/runs/last")[1]

    assert (last["state"], last["outcome"]) == ("ended", "interrupted")
    assert last["duration_seconds"] == pytest.approx(6.0, abs=0.01)
    assert any("lease ran out" in note for note in last["notes"])


def test_killed_processes_free_the_slot_of_a_run(tmp_path):
    job = subprocess.Popen(["sleep", "600"])
    try:
        with full_exporter(tmp_path, pids=[job.pid], gpus=["1"]) as exporter:
            assert begin_another(exporter)[0] == 429
            time.sleep(1.5)
            job.kill()
            job.wait()
            assert wait_for_a_slot(exporter) == 201
            last = exporter.get("/api/v1/runs/last")[1]
    finally:
        job.kill()

    assert (last["state"], last["outcome"]) == ("ended", "interrupted")
    assert any("processes were gone" in note for note in last["notes"])

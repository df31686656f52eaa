"""Requests of two servers on one simulated GPU: `analyzer requests` has the joules of the exporter.

Both servers report one request a second. The GPU is never idle for long, so its idle power is
unknown, and all energy is divided by the loads: 5 : 2 while both serve. Server b has no load at
first.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
import requests

from tests.daemon import begin, daemon, end
from tests.exporter.requests.calls import accepted
from tests.polling import eventually
from tests.servers import prometheus
from wattline_exporter.simulation import clock_s

SECONDS, B_FROM = 14, 5
LOADS = {"a": 0.5, "b": 0.2}
ANALYZER = Path(sys.executable).with_name("analyzer")
SOURCES = ("exporter", "folder", "prometheus")


def request(run_id, number, ended_at):
    """Return a request that lasts for one second."""
    own = {"id": f"{run_id}-{number}", "prompt_tokens": 50, "generated_tokens": 40}
    return own | {
        "started_at": ended_at - 1,
        "first_token_at": ended_at - 0.95,
        "ended_at": ended_at,
    }


def serve(exporter, simulation, pids):
    """Serve for SECONDS; return the requests by run, and the true energy of the GPU in each
    second.
    """
    sent, edges_s = {"a": [], "b": []}, [clock_s()]
    simulation.drive(0, LOADS["a"], pids["a"], 1 << 30)
    begun_at = time.time()
    for second in range(SECONDS):
        if second == B_FROM:
            simulation.drive(0, LOADS["b"], pids["b"], 1 << 30)
        time.sleep(max(0.0, begun_at + second + 1 - time.time()))
        edges_s.append(clock_s())
        for run_id in "ab" if second >= B_FROM else "a":
            sent[run_id].append(request(run_id, second, begun_at + second + 1))
            accepted(exporter, run_id, sent[run_id][-1])
    for pid in pids.values():
        simulation.drive(0, 0.0, pid, 1 << 30)
    return sent, [simulation.energy_j(0, *edges) for edges in pairwise(edges_s)]


def has_samples(server):
    answer = requests.get(
        f"{server}/api/v1/query", {"query": "wattline_gpu_energy_joules_total"}, timeout=5
    )
    return answer.json()["data"]["result"]


def analyze(source, run_id, rows, *more):
    command = [
        ANALYZER,
        "requests",
        "--run-id",
        run_id,
        "--source",
        source,
        "--format",
        "json",
        "--out",
        rows,
        *more,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with rows.open(newline="") as file:
        energies = [
            (row["id"], row["energy_joules"], row["energy_uncertainty_joules"])
            for row in csv.DictReader(file)
        ]
    return json.loads(done.stdout), {
        name: (float(joules), float(half_j)) for name, joules, half_j in energies
    }


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Return answers of the exporter by id, true energies, the meter of both runs, and analyses by
    source and run.
    """
    folder = tmp_path_factory.mktemp("shared")
    options = (
        "--simulate",
        "1xH200",
        "--no-collector.rapl",
        "--no-collector.host",
        "--requests.window",
        "10s",
    )
    with ExitStack() as stack:
        exporter = stack.enter_context(daemon(folder, *options))
        simulation = stack.enter_context(exporter.simulation())
        server = stack.enter_context(prometheus(folder, [exporter.url.removeprefix("http://")]))
        processes = {name: stack.enter_context(subprocess.Popen(["sleep", "60"])) for name in "ab"}
        for process in processes.values():
            stack.callback(process.kill)
        eventually(lambda: has_samples(server), "a scrape", exporter.log)
        for name, process in processes.items():
            begin(exporter, "llm-server", run_id=name, gpus=["0"], pids=[process.pid])
        sent, true_j = serve(
            exporter, simulation, {name: process.pid for name, process in processes.items()}
        )
        runs = [end(exporter, name) for name in "ab"]
        offset_s = clock_s() - time.time()
        from_at, until_at = (
            min(run["started_at"] for run in runs),
            max(run["ended_at"] for run in runs),
        )
        meter_j = simulation.energy_j(0, from_at + offset_s, until_at + offset_s)
        ids = [each["id"] for served in sent.values() for each in served]

        def views():
            found = [exporter.get(f"/api/v1/requests/{each}")[1] for each in ids]
            return found if all(view["state"] == "final" for view in found) else None

        answers = {
            view["id"]: view for view in eventually(views, "final energies", exporter.log, 40.0)
        }
        found = {}
        for source, address in zip(SOURCES, (exporter.url, folder / "state", server), strict=True):
            for name in "ab":
                more = []
                if source == "prometheus":
                    more = ["--requests", folder / f"{name}.json"]
                    more[1].write_text(json.dumps(sent[name]))
                found[source, name] = analyze(address, name, folder / f"{source}-{name}.csv", *more)
    return answers, true_j, meter_j, found


@pytest.mark.parametrize("source", SOURCES)
def test_requests_of_both_servers_and_rest_add_up_to_the_gpu(scene, source):
    _, true_j, meter_j, found = scene

    documents = [found[source, name][0] for name in "ab"]

    names = ("requests_energy_joules", "rest_energy_joules")
    edges_j = (
        2 * 0.2 * max(true_j)
    )  # the load changes at both ends of the runs, between samples that are 0.1 s old
    assert sum(each[name] for each in documents for name in names) == pytest.approx(
        meter_j, abs=edges_j
    )
    for document, other in zip(documents, "ba", strict=True):
        assert any(
            note.startswith(f"GPUs shared with {other}, whose requests")
            for note in document["notes"]
        )


@pytest.mark.parametrize("source", ["exporter", "folder"])
def test_requests_of_each_server_have_the_joules_of_the_exporter(scene, source):
    answers, _, _, found = scene

    for run_id in "ab":
        document, rows = found[source, run_id]
        assert rows == {
            name: (view["energy_joules"], view["energy_uncertainty_joules"])
            for name, view in answers.items()
            if view["run_id"] == run_id
        }
        assert document["requests_energy_joules"] == pytest.approx(
            sum(joules for joules, _ in rows.values()), rel=1e-12
        )


@pytest.mark.parametrize(("source", "delay"), [("exporter", 1), ("folder", 1), ("prometheus", 4)])
def test_each_request_has_its_true_energy(scene, source, delay):
    """A server of samples has the attributed energies, in which changes of load come later."""
    _, true_j, _, found = scene

    for name, (joules, half_j) in (found[source, "a"][1] | found[source, "b"][1]).items():
        run_id, second = name.split("-")
        away = int(second) - B_FROM
        if 1 < int(second) < SECONDS - 1 and not -1 <= away <= delay:  # no load changes
            share = LOADS[run_id] / sum(LOADS.values()) if away > 0 else 1.0
            assert abs(joules - share * true_j[int(second)]) <= half_j, name

"""Energies of requests: posted to a real exporter, read by its API and by `analyzer requests`."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.daemon import begin, daemon, end
from tests.exporter.requests.calls import accepted
from tests.polling import eventually
from wattline_exporter.simulation import Constant

RUN_S, REQUESTS = 9.0, 30
IDLE_W, EACH_W, TOKENS_PER_S = 80.0, 50.0, 40.0
ANALYZER = Path(sys.executable).with_name("analyzer")


def analyze(source, *arguments, command="requests"):
    command = [
        ANALYZER,
        command,
        "--run-id",
        "server",
        "--source",
        str(source),
        *map(str, arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def traffic(begun_at, rng):
    """Return requests of two users that end in the run; each generates TOKENS_PER_S tokens a
    second.
    """
    for k in range(REQUESTS):
        started_at = begun_at + rng.uniform(0.5, RUN_S - 3)
        seconds = rng.uniform(0.3, 2.5)
        yield {
            "id": f"chatcmpl-{k}",
            "started_at": started_at,
            "first_token_at": started_at + 0.02,
            "ended_at": started_at + seconds,
            "prompt_tokens": 50,
            "generated_tokens": round(seconds * TOKENS_PER_S),
            "labels": {"user": "ann" if k % 3 else "bob", "model": "llama"},
        }


def run_load(simulation, sent, until_at):
    """Give the GPU IDLE_W and EACH_W for each request in progress."""
    while (now_at := time.time()) < until_at:
        running = sum(each["started_at"] <= now_at < each["ended_at"] for each in sent)
        simulation.set_load(0, Constant(IDLE_W + EACH_W * running))
        time.sleep(0.02)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return the state folder, the run, the final answers by id, the document of the live exporter,
    and the metrics of the next one, whose series are not new.
    """
    folder = tmp_path_factory.mktemp("requests")
    options = ("--simulate", "1xH200", "--no-collector.rapl", "--requests.window", "10s")
    with daemon(folder, *options) as exporter:
        with exporter.simulation() as simulation:
            simulation.set_load(0, Constant(IDLE_W))
            begin(exporter, "llm-server", run_id="server", gpus=["0"])
            begun_at = time.time()
            sent = list(traffic(begun_at, np.random.default_rng(3)))
            run_load(simulation, sent, begun_at + RUN_S)
        accepted(exporter, "server", *sent)
        run = end(exporter, "server")

        def all_final():
            return all(
                exporter.get(f"/api/v1/requests/{each['id']}")[1]["state"] == "final"
                for each in sent
            )

        eventually(all_final, "final energies", exporter.log, 30.0)
        views = {each["id"]: exporter.get(f"/api/v1/requests/{each['id']}")[1] for each in sent}
        live = json.loads(analyze(exporter.url, "--by", "user", "--format", "json"))
    with daemon(folder, *options) as exporter:
        metrics = exporter.metrics()
    return folder / "state", run, views, live, metrics


def rows_of(source, rows):
    """Return a row for each request, by id."""
    analyze(source, "--out", rows)
    with rows.open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def test_requests_and_rest_are_the_meter_of_the_run(served):
    _, run, views, live, _ = served
    (run_j,) = run["energy_joules"]["gpu"].values()

    assert live["measured_energy_joules"] == pytest.approx(run_j, rel=1e-9)
    assert live["requests_energy_joules"] + live["rest_energy_joules"] == pytest.approx(
        run_j, rel=1e-9
    )
    assert sum(group["requests"] for group in live["groups"]) == len(views)
    assert {group["user"] for group in live["groups"]} == {"ann", "bob"}


def test_energies_are_the_answers_of_the_exporter_to_the_last_digit(served, tmp_path):
    folder, _, views, _, _ = served

    found = rows_of(folder, tmp_path / "rows.csv")

    assert found.keys() == views.keys()
    names = ("energy_joules", "energy_uncertainty_joules", "idle_energy_joules")
    for request_id, row in found.items():
        view = views[request_id]
        values = {name: float(row[name]) if row[name] else None for name in names}
        assert values == {name: view[name] for name in names}


def test_counters_and_report_have_the_energies_of_the_requests(served, tmp_path):
    folder, _, views, live, metrics = served

    text = analyze(folder, "--format", "json", "--out", tmp_path / "report", command="report")

    measured_j = json.loads(text)["energy"]["gpu"]["energy_joules"]
    assert live["measured_energy_joules"] == pytest.approx(measured_j, rel=1e-12)
    total_j = sum(view["energy_joules"] for view in views.values())
    assert live["requests_energy_joules"] == pytest.approx(total_j, rel=1e-12)
    ((labels, counted_j),) = metrics["wattline_request_energy_joules_total"]
    assert labels["model"] == "llama"
    assert counted_j == pytest.approx(total_j, rel=1e-12)


def test_state_folder_gives_the_figures_of_the_live_exporter(served):
    folder, _, _, live, _ = served

    stored = json.loads(analyze(folder, "--by", "user", "--format", "json"))

    figures = [
        {name: value for name, value in each.items() if name not in ("notes", "warnings")}
        for each in (stored, live)
    ]
    assert figures[0] == figures[1]

"""Requests of the job `llm-server` to a server that reports them, too: real exporter, uvicorn and
simulated GPU.
"""

import csv
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import requests

from tests.daemon import begin, daemon
from tests.polling import eventually
from tests.servers import free_port
from tests.workloads.programs import plain_environment
from wattline_exporter.simulation import clock_s

pytest.importorskip("uvicorn", reason="needs uvicorn")

OPTIONS = (
    "--simulate",
    "1xH200",
    "--no-collector.host",
    "--no-collector.rapl",
    "--requests.window",
    "10s",
)
LOAD_S, CLIENTS = 12, 2
JOB = "load"


@pytest.fixture
def exporter(tmp_path):
    with daemon(tmp_path, *OPTIONS) as started:
        yield started


@pytest.fixture
def environment(exporter):
    return plain_environment() | {"WATTLINE_EXPORTER": exporter.url}


@contextmanager
def server(exporter, environment, utilization, port=None):
    """Start a server with the middleware, whose process drives the GPU; yield its address and the
    simulation.
    """
    port = port or free_port()
    command = [sys.executable, "-m", "tests.fakes.asgi_server", str(port)]
    with (
        exporter.simulation() as simulation,
        subprocess.Popen(command, env=environment) as process,
    ):
        simulation.drive(0, utilization, process.pid, 1 << 30)
        address = f"http://127.0.0.1:{port}"
        try:
            eventually(lambda: answers(address), "the server starts")
            yield address, simulation
        finally:
            process.terminate()
            process.wait(30)
            simulation.release(0, process.pid)


def answers(address):
    try:
        return requests.get(f"{address}/v1/models", timeout=5).ok
    except requests.ConnectionError:
        return False


@contextmanager
def asked_all_the_time(address):
    """Send requests, one after the other, from a thread."""
    stopped = threading.Event()

    def ask_on():
        while not stopped.is_set():
            ask(address)

    thread = threading.Thread(target=ask_on)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def ask(address):
    body = {"model": "tiny", "messages": []}
    return requests.post(f"{address}/v1/chat/completions", json=body, timeout=30).json()["id"]


def run_of(exporter, request_id):
    """Return the run in which a request was reported, or None."""
    run_ids = [run["run_id"] for run in exporter.get("/api/v1/runs")[1]]
    return next(
        (
            each
            for each in run_ids
            if any(one["id"] == request_id for one in reported(exporter, each))
        ),
        None,
    )


def reported(exporter, run_id):
    return exporter.get(f"/api/v1/runs/{run_id}/requests?limit=10000")[1]["requests"]


def job(environment, address, *options):
    command = [
        sys.executable,
        "-m",
        "wattline_workloads",
        "job",
        "llm-server",
        "--gpus",
        "0",
        "--url",
        address,
        *options,
    ]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def final_j(exporter, run_id, ids):
    def energies():
        found = [exporter.get(f"/api/v1/requests/{each}?run_id={run_id}")[1] for each in ids]
        return (
            [each["energy_joules"] for each in found]
            if all(each["state"] == "final" for each in found)
            else None
        )

    return eventually(energies, f"energies of {run_id}", exporter.log, 90.0)


def busy_j(simulation, sent):
    """Return the energy of the GPU while requests are in progress."""
    offset_s, total_j, until_s = clock_s() - time.time(), 0.0, 0.0
    for begin_at, end_at in sorted((each["started_at"], each["ended_at"]) for each in sent):
        begin_s, end_s = max(begin_at + offset_s, until_s), end_at + offset_s
        if end_s > begin_s:
            total_j, until_s = total_j + simulation.energy_j(0, begin_s, end_s), end_s
    return total_j


def analyzed_j(exporter, environment, run_id, folder):
    """Return the joules of the requests of a run by `analyzer requests`, and its output."""
    rows = folder / "rows.csv"
    output = analyzer_requests(exporter, environment, run_id, "--out", str(rows))
    with rows.open(newline="") as file:
        return {row["id"]: float(row["energy_joules"]) for row in csv.DictReader(file)}, output


def analyzer_requests(exporter, environment, run_id, *options):
    command = [
        sys.executable,
        "-m",
        "wattline_analyzer",
        "requests",
        "--run-id",
        run_id,
        "--source",
        exporter.url,
        *options,
    ]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_requests_of_job_have_the_whole_energy_of_server(exporter, environment, tmp_path):
    """The server has had a request of another client before, so its run has a part of the GPU
    already.
    """
    with server(exporter, environment | {"CUDA_VISIBLE_DEVICES": "0"}, 0.7) as (
        address,
        simulation,
    ):
        earlier = ask(address)
        own_run = eventually(lambda: exporter.get("/api/v1/runs")[1], "a run of the server")[0][
            "run_id"
        ]
        eventually(lambda: reported(exporter, own_run), "a report", exporter.log)
        options = (
            "--duration",
            str(LOAD_S),
            "--concurrency",
            str(CLIENTS),
            "--warmup",
            "1",
            "--run-id",
            JOB,
        )
        log = job(environment, address, *options)
        sent = [
            each for each in reported(exporter, own_run) if each["labels"].get("client_run") == JOB
        ]
        joules = final_j(exporter, own_run, [each["id"] for each in sent])
        true_j = busy_j(simulation, sent)
        run = exporter.get(f"/api/v1/runs/{JOB}")[1]

    assert (
        f"the server reports these requests, in run {own_run}: the job does not report them again"
        in log
    )
    assert reported(exporter, JOB) == []
    assert len(reported(exporter, own_run)) == len(sent) + 2  # the earlier one, and the warm-up
    print(f"{len(sent)} requests: {sum(joules):.1f} J of {true_j:.1f} J")
    assert sum(joules) == pytest.approx(
        true_j, rel=0.04
    )  # half a slot of 0.25 s at each edge of 12 s

    whole = run["energy_joules"]["gpu"]
    [whole_j], [attributed_j] = (
        whole.values(),
        run["attributed_energy_joules"].get("gpu", whole).values(),
    )
    print(f"run of the job: {attributed_j:.1f} J of {whole_j:.1f} J")
    assert (
        attributed_j > 0.8 * whole_j
    )  # all from when the job has found the processes of the server

    by_id, output = analyzed_j(exporter, environment, JOB, tmp_path)
    print(f"analyzer: {sum(by_id.values()):.1f} J")
    assert by_id.keys() == {each["id"] for each in sent}
    assert earlier not in by_id
    assert sum(by_id.values()) == pytest.approx(true_j, rel=0.04)
    assert f"the server reported these requests, in run {own_run}" in " ".join(output.split())


def test_job_and_requests_beside_another_server_have_its_part(exporter, environment):
    """Two servers report requests on a GPU, with loads of 2 : 1. The job has the process of the
    first.
    """
    own = environment | {"CUDA_VISIBLE_DEVICES": "0"}
    with (
        server(exporter, own, 0.5) as (address, simulation),
        server(exporter, own, 0.25) as (other, _),
    ):
        with asked_all_the_time(other):
            earlier = ask(address)
            own_run = eventually(lambda: run_of(exporter, earlier), "a report", exporter.log)
            options = (
                "--duration",
                str(LOAD_S),
                "--concurrency",
                str(CLIENTS),
                "--warmup",
                "1",
                "--run-id",
                JOB,
            )
            job(environment, address, *options)
        sent = [
            each for each in reported(exporter, own_run) if each["labels"].get("client_run") == JOB
        ]
        joules = final_j(exporter, own_run, [each["id"] for each in sent])
        run = exporter.get(f"/api/v1/runs/{JOB}")[1]
        true_j = (
            2 / 3 * busy_j(simulation, sent)
        )  # of the idle power, too: it is unknown, as the GPU was never idle
    [whole_j], [attributed_j] = (
        run["energy_joules"]["gpu"].values(),
        run["attributed_energy_joules"]["gpu"].values(),
    )
    answer = json.loads(analyzer_requests(exporter, environment, JOB, "--format", "json"))
    by_analyzer = [answer[f"requests_energy{each}_joules"] for each in ("", "_uncertainty")]
    measured_j = answer["measured_energy_joules"]

    print(
        f"{len(sent)} requests: {sum(joules):.1f} J, by the analyzer {by_analyzer} J, of "
        f"{true_j:.1f} J"
    )
    print(
        f"run of the job: {attributed_j:.1f} J of {whole_j:.1f} J, by the analyzer "
        f"{measured_j:.1f} J"
    )
    assert sum(joules) == pytest.approx(true_j, rel=0.04)
    assert by_analyzer[0] == pytest.approx(
        true_j, abs=by_analyzer[1]
    )  # the server has its load also without requests
    assert (
        sum(joules) < attributed_j < 2 / 3 * whole_j
    )  # with the warm-up, without all before registration
    assert measured_j == pytest.approx(
        2 / 3 * whole_j, rel=0.2
    )  # in whole samples, of a second each


def test_job_has_the_energy_of_a_server_that_was_restarted(exporter, environment):
    own, port = environment | {"CUDA_VISIBLE_DEVICES": "0"}, free_port()
    load = ("--duration", str(2 * LOAD_S), "--rate", "5", "--run-id", JOB)
    with ThreadPoolExecutor() as pool:
        with server(exporter, own, 0.7, port) as (address, _):
            loaded = pool.submit(job, environment, address, *load)
            eventually(
                lambda: exporter.get(f"/api/v1/runs/{JOB}")[0] == 200,
                "the run of the job",
                exporter.log,
            )
            time.sleep(3.0)
        with server(exporter, own, 0.7, port):
            log = loaded.result()
    run = exporter.get(f"/api/v1/runs/{JOB}")[1]

    [whole_j] = run["energy_joules"]["gpu"].values()
    [attributed_j] = (
        run["attributed_energy_joules"].get("gpu", run["energy_joules"]["gpu"]).values()
    )
    print(f"run of the job: {attributed_j:.1f} J of {whole_j:.1f} J")
    assert attributed_j > 0.8 * whole_j  # all but the start of the second server, until it answers
    assert "cannot" not in log


def test_server_in_the_run_of_the_job_reports_once(exporter, environment):
    begin(exporter, "llm-server", run_id=JOB, gpus=["0"])
    own = environment | {"WATTLINE_RUN_ID": JOB}
    with server(exporter, own, 0.7) as (address, _):
        command = [
            sys.executable,
            "-m",
            "wattline_workloads.jobs.llm_server",
            "--url",
            address,
            "--requests",
            "8",
        ]
        subprocess.run(command, env=own, check=True, timeout=120)
        eventually(lambda: len(reported(exporter, JOB)) >= 8, "reports", exporter.log)
    found = reported(exporter, JOB)

    assert len(found) == 8
    assert all(each["id"].startswith("chatcmpl-") for each in found)


def test_job_reports_requests_of_another_exporter_itself(exporter, environment, tmp_path_factory):
    """The server reports to its own exporter, which does not know the run of the job."""
    with daemon(tmp_path_factory.mktemp("other"), *OPTIONS) as other:
        own = environment | {"WATTLINE_EXPORTER": other.url, "CUDA_VISIBLE_DEVICES": "0"}
        with server(other, own, 0.7) as (address, _):
            log = job(environment, address, "--requests", "8", "--run-id", JOB)

    assert len(reported(exporter, JOB)) == 8
    assert "the server reports these requests" not in log

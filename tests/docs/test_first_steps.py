"""First steps of the documents, run against an exporter with simulated GPUs."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon import daemon, environment
from tests.docs import markdown
from tests.docs.reference import ROOT
from tests.polling import eventually
from tests.servers import free_port

SHOWN_ADDRESS = "http://127.0.0.1:9847"
RUN_ID = "first-steps"


@pytest.fixture(scope="module")
def exporter(tmp_path_factory):
    with daemon(tmp_path_factory.mktemp("exporter"), "--simulate", "2xH200") as running:
        yield running


@pytest.fixture
def shell(exporter, tmp_path):
    """Return a function that runs shell commands with the programs of this environment in PATH."""
    programs = str(Path(sys.executable).parent)
    path = f"{programs}:{environment()['PATH']}"
    env = environment(
        {"PATH": path, "WATTLINE_EXPORTER": exporter.url, "WATTLINE_SOURCE": exporter.url}
    )

    def run(script):
        command = ["bash", "-euo", "pipefail", "-c", script.replace(SHOWN_ADDRESS, exporter.url)]
        ended = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


def test_readme_run_and_report_work_as_shown(shell, tmp_path):
    (block,) = [
        b for b in markdown.blocks(ROOT / "README.md") if b.text.startswith("workloads run")
    ]
    run, runs, report = [shlex.join(words) for words in markdown.command_lines(block)]
    (tmp_path / "train.py").write_text("import time\ntime.sleep(1)\n")

    shell(run.replace("workloads run", f"workloads run --gpus all --run-id {RUN_ID}"))
    listed = shell(runs)
    printed = shell(report.replace("RUN_ID", RUN_ID))

    assert "train.py" in listed
    assert RUN_ID in printed
    assert (tmp_path / "report" / "report.html").stat().st_size > 0


def test_run_api_example_reports_a_run_with_its_work(shell, exporter):
    (block,) = [b for b in markdown.blocks(ROOT / "exporter/docs/run-api.md") if "curl" in b.text]

    shell(block.text)

    (run,) = [run for run in exporter.get("/api/v1/runs")[1] if run["workload"] == "train"]
    assert (run["state"], run["outcome"]) == ("ended", "ok")
    assert (run["work"], run["results"]) == ({"steps": 100.0}, {"loss": 0.31})
    assert [gpu["gpu"] for gpu in run["gpus"]] == ["0"]


def test_requests_example_reports_a_request_as_printed(shell):
    block, *_ = [b for b in markdown.blocks(ROOT / "exporter/docs/requests.md") if "curl" in b.text]
    printed, documents = shell(block.text), []
    while printed:
        document, end = json.JSONDecoder().raw_decode(printed)
        documents.append(document)
        printed = printed[end:].lstrip()

    started, receipt, request, ended = documents
    assert (started["run_id"], started["state"]) == ("server-1", "running")
    assert (receipt["accepted"], receipt["reasons"]) == (1, {})
    assert (request["id"], request["state"]) == ("r-1", "pending")
    assert (ended["run_id"], ended["outcome"]) == ("server-1", "ok")


def is_listening(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def reported(exporter, request_id):
    status, view = exporter.get(f"/api/v1/requests/{request_id}")
    return view if status in (200, 202) else None


def test_server_of_request_energy_reports_its_requests(shell, exporter, tmp_path):
    pytest.importorskip("uvicorn", reason="needs uvicorn")
    pytest.importorskip("fastapi", reason="needs fastapi")
    page = markdown.blocks(ROOT / "workloads/docs/request-energy.md")
    (server,) = [block for block in page if block.language == "python"]
    (load,) = [block.text for block in page if block.text.startswith("for user")]
    (tmp_path / "server.py").write_text(server.text)
    port, loop = free_port(), load[: load.index("sleep 35")]
    env = environment({"WATTLINE_EXPORTER": exporter.url, "CUDA_VISIBLE_DEVICES": "0"})
    command = [sys.executable, "-m", "uvicorn", "server:app", "--port", str(port)]

    with subprocess.Popen(command, cwd=tmp_path, env=env) as serving:
        try:
            eventually(lambda: is_listening(port), "the server listens")
            answers = shell(loop.replace("127.0.0.1:8000", f"127.0.0.1:{port}"))
            view = eventually(lambda: reported(exporter, "cmpl-5"), "a report")
        finally:
            serving.terminate()

    assert [json.loads(line)["id"] for line in answers.splitlines()] == [
        f"cmpl-{k}" for k in range(1, 6)
    ]
    run = exporter.get(f"/api/v1/runs/{view['run_id']}")[1]
    assert (run["workload"], [gpu["gpu"] for gpu in run["gpus"]]) == ("llm-server", ["0"])
    assert len(server.text.splitlines()) <= 20

"""Registration of the server's processes with the run of `llm-server`."""

import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.fakes.run_api import RunApi, run_api_server
from wattline.client import api as run_api
from wattline_workloads.jobs.llm_load.server_process import ServerProcesses, listening_pids


class ApiWithOwner(RunApi):
    """Run API at which all processes are in one run."""

    def __init__(self, workload, labels):
        super().__init__()
        self.owner = {"run_id": "server", "workload": workload, "labels": labels}

    def answer(self, method, path, content):
        return (
            (200, [self.owner])
            if path.startswith("/api/v1/runs?")
            else super().answer(method, path, content)
        )


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


@pytest.fixture
def registered(listener, monkeypatch):
    """Return a function that registers this process, which listens, and returns the pids of the
    run.
    """

    def register(workload, labels):
        found = []
        run = SimpleNamespace(run_id="load", register=lambda *, pids: found.extend(pids))
        with run_api_server(ApiWithOwner(workload, labels)) as address:
            monkeypatch.setenv(run_api.EXPORTER, address)
            ServerProcesses(run, f"http://localhost:{listener.getsockname()[1]}/v1").register()
        return found

    return register


def test_llm_server_adds_local_server_to_its_run(server_job, server):
    server_job("--url", server.url, "--requests", "1")

    assert os.getpid() in server_job.exporter.api.pids[server_job.run.run_id]


@pytest.mark.parametrize(
    ("workload", "label", "is_added"),
    [
        ("serve", "discovered", True),
        ("llm-server", "server", True),
        ("vllm", "team", True),
        ("llm-server", "team", False),
    ],
)
def test_server_in_the_run_of_another_job_only_is_not_added(registered, workload, label, is_added):
    """Discovered runs, and those with which a server was started or that it began, contain the run
    of the job.
    """
    assert registered(workload, {label: "x"}) == ([os.getpid()] if is_added else [])


def test_remote_server_is_not_searched_on_this_machine(capsys):
    ServerProcesses(SimpleNamespace(run_id="load"), "http://192.0.2.1:8000/v1").register()

    assert capsys.readouterr().err == ""


def test_local_server_without_visible_process_is_logged(capsys, listener):
    port = listener.getsockname()[1]
    listener.close()
    ServerProcesses(SimpleNamespace(run_id="load"), f"http://127.0.0.1:{port}/v1").register()

    assert "cannot find the process that listens" in capsys.readouterr().err


def test_listening_pids_omit_child_with_the_same_socket(listener):
    wait = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(wait, pass_fds=[listener.fileno()], stdin=pipe, stdout=pipe) as child:
        child.stdout.readline()
        found = listening_pids({"127.0.0.1"}, listener.getsockname()[1])
        child.stdin.close()

    assert found == [os.getpid()]

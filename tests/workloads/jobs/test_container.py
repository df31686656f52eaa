"""Job `container` with a real Podman: output, processes and end."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import daemon
from tests.fakes.podman import IMAGE
from tests.fakes.run_api import RunApi
from tests.polling import eventually
from tests.workloads.programs import Exporter
from wattline_workloads.jobs.containers import created_container
from wattline_workloads.runner.watchdog import Watchdog

_WAIT_S = 60


@pytest.fixture
def start_container(exporter, podman):
    """Return a function that starts a shell script in a container and waits for its
    registration.
    """
    processes = []

    def start(script: str, *options: str):
        command = (
            "job",
            "container",
            "--host",
            podman.host,
            *options,
            IMAGE,
            "--",
            "sh",
            "-c",
            script,
        )
        process = exporter.start("-m", "wattline_workloads", *command)
        processes.append(process)
        eventually(lambda: registrations(exporter), log=process.stderr.read)
        return process

    yield start
    for process in processes:
        process.terminate()
        if not process.stdout.closed:
            process.communicate(timeout=_WAIT_S)


def registrations(exporter) -> list[dict]:
    return [body for body in exporter.api.bodies("/processes") if body.get("cgroup")]


def test_container_keeps_streams_separate_and_exit_code(exporter, podman, job):
    done = job(r"printf '  0%%\r 50%%\r100%%\n'; echo 'Zürich' >&2; printf 'no newline'; exit 3")

    assert done.returncode == 3
    assert done.stdout == "100%\nno newline"
    assert "Zürich\n" in done.stderr
    assert exporter.api.only_run.outcome == "failed"
    assert exporter.api.only_run.labels["image"] == IMAGE
    assert exporter.api.bodies("/phase") == [{"name": "prepare"}, {"name": "container"}]
    assert podman.containers() == []


def test_container_terminal_receives_each_redraw(exporter, podman):
    terminal, job_end = pty.openpty()
    command = [
        "-m",
        "wattline_workloads",
        "job",
        "container",
        "--host",
        podman.host,
        IMAGE,
        "printf",
        r"0%%\r50%%\r",
    ]
    with subprocess.Popen(
        [sys.executable, *command], env=exporter.environment, stdout=job_end
    ) as process:
        os.close(job_end)
        output = b""
        while b"50%\r" not in output:
            output += os.read(terminal, 1024)
        process.wait(_WAIT_S)
    os.close(terminal)

    assert output == b"0%\r50%\r"


def test_container_line_is_printed_while_running(start_container, tmp_path):
    process = start_container(
        "echo first; while [ ! -e /box/go ]; do sleep 0.1; done; echo second",
        "-v",
        f"{tmp_path}:/box",
    )

    assert process.stdout.readline() == "first\n"
    (tmp_path / "go").touch()
    assert process.communicate(timeout=_WAIT_S)[0] == "second\n"


def test_container_processes_are_registered(exporter, podman, start_container):
    start_container("while true; do sleep 0.1; done", "--stop-timeout", "1")

    (container,) = podman.containers()
    pid = podman.state(container)["Pid"]
    assert registrations(exporter) == [{"pids": [pid], "cgroup": f"container:{container}"}]
    assert Path(f"/proc/{pid}/comm").read_text() == "sh\n"


def test_container_after_barrier_is_registered(exporter, podman, tmp_path):
    command = (
        "job",
        "container",
        "--host",
        podman.host,
        "--stop-timeout",
        "1",
        IMAGE,
        "sleep",
        "600",
    )
    process = exporter.start(
        "-m", "wattline_workloads", *command, WATTLINE_BARRIER=f"{tmp_path}:2:60"
    )
    with process:
        eventually(lambda: list(tmp_path.glob("ready-*")))
        (container,) = podman.containers()
        eventually(lambda: podman.state(container)["Pid"])  # pid of the container's first process
        is_running = podman.state(container)["Running"]
        (tmp_path / "ready-other").touch()
        eventually(lambda: registrations(exporter))
        pids = podman.pids()
        process.terminate()
        process.communicate(timeout=_WAIT_S)

    assert not is_running
    assert registrations(exporter)[0]["pids"] == pids


def test_container_gpu_is_discovered_by_exporter(tmp_path, podman):
    options = ("--run-id", "contained", "--host", podman.host, "--stop-timeout", "1")
    with (
        daemon.daemon(tmp_path, "--simulate", "2xH200") as exporter_daemon,
        exporter_daemon.simulation() as gpus,
    ):
        runner = Exporter(RunApi(), exporter_daemon.url)
        script = "trap 'exit 0' TERM; sleep 600 & wait"
        process = runner.start(
            "-m",
            "wattline_workloads",
            "job",
            "container",
            *options,
            IMAGE,
            "--",
            "sh",
            "-c",
            script,
        )
        eventually(lambda: podman.containers() and podman.pids())
        eventually(lambda: psutil.Process(podman.pids()[0]).children())
        (sleeping,) = psutil.Process(podman.pids()[0]).children()
        gpus.drive(1, 0.8, sleeping.pid)
        uuid = gpus.gpus[1].uuid
        eventually(lambda: exporter_daemon.get("/api/v1/runs/contained")[1]["gpus"])
        process.terminate()
        _, stderr = process.communicate(timeout=_WAIT_S)
        run = exporter_daemon.get("/api/v1/runs/contained")[1]

    assert [gpu["uuid"] for gpu in run["gpus"]] == [uuid]
    assert run["energy_joules"]["gpu"].keys() == {uuid}
    assert "cannot register the container's processes" not in stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_container_signal_stops_and_removes_it(exporter, podman, start_container, name):
    process = start_container(
        "trap 'echo bye; exit 0' TERM; echo ready; while true; do sleep 0.1; done"
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.Signals[name])
    out, _ = process.communicate(timeout=_WAIT_S)

    assert process.returncode == 128 + signal.Signals[name]
    assert out == "bye\n"
    assert exporter.api.only_run.outcome == "interrupted"
    assert podman.containers() == []


def test_container_ignoring_sigterm_is_killed(podman, start_container):
    process = start_container(
        "trap 'echo no' TERM; echo ready; while true; do sleep 0.1; done", "--stop-timeout", "1"
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=_WAIT_S)

    assert process.returncode == 143
    assert out == "no\n"
    assert podman.containers() == []


def test_container_of_killed_job_is_removed(podman, start_container):
    process = start_container("while true; do sleep 0.1; done", "--stop-timeout", "1")
    children = psutil.Process(process.pid).children()
    (job_process,) = [
        child for child in children if "wattline_workloads.jobs.container" in child.cmdline()
    ]
    assert len(podman.containers()) == 1
    job_process.kill()
    process.communicate(timeout=_WAIT_S)

    assert process.returncode == 137
    eventually(lambda: podman.containers() == [])


@pytest.mark.parametrize(("is_dismissed", "remaining"), [(False, 0), (True, 1)])
def test_container_watchdog_removes_only_abandoned_container(podman, is_dismissed, remaining):
    container = podman("create", IMAGE, "true").strip()
    watchdog = Watchdog(
        created_container.remove_abandoned_container, [podman.host, "1", "0"], os.environ
    )
    watchdog.send(container)
    if is_dismissed:
        watchdog.report_normal_end()

    assert watchdog.close(_WAIT_S) == 0
    assert len(podman.containers()) == remaining
    podman("rm", "--all")


def test_container_keep_option_keeps_stopped_container(podman, job):
    done = job("echo kept", "--keep", "--container-name", "keeper")

    (container,) = podman.containers()
    assert podman.state("keeper")["Running"] is False
    assert f"the container is kept: {container[:12]}" in done.stderr
    podman("rm", "keeper")


def test_container_existing_name_fails_and_is_kept(podman, job):
    podman("create", "--name", "mine", IMAGE, "true")
    done = job("true", "--container-name", "mine")

    assert done.returncode == 1
    assert "already in use" in done.stderr
    assert len(podman.containers()) == 1
    podman("rm", "mine")

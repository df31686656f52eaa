import contextlib
import getpass
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import mps_control
from tests.polling import eventually
from tests.workloads.programs import ROOT, plain_environment
from wattline_workloads.mps import session as mps
from wattline_workloads.mps.daemon import MpsError

_CLIENT = """
import sys
from tests.fakes.mps_control import mps_client
with mps_client() as is_client:
    print(is_client, flush=True)
    sys.stdin.read()
"""
_SLEEPS = "import sys; print('ready', flush=True); sys.stdin.read()"
_RUNNER = """
import os, sys, time
from pathlib import Path
from wattline_workloads.mps import session as mps
with mps.run_mps_daemon(Path(sys.argv[1]), os.environ) as session:
    print(*session._daemon.processes(), flush=True)
    time.sleep(60)
"""


@pytest.fixture
def environ(tmp_path, monkeypatch):
    """Environment with the fake control program on PATH, which is also set in this process."""
    path = f"{mps_control.install_mps_control(tmp_path)}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    return {**plain_environment(), "PATH": path}


def test_mps_session_verifies_client_and_leaves_no_process(environ, tmp_path):
    with mps.run_mps_daemon(tmp_path, environ) as session:
        with _job(_CLIENT, environ | session.environment) as client:
            session.verify([client.pid], within_s=30)
            processes = session._daemon.processes()
        pipes = session._daemon.pipe_folder
        assert pipes.stat().st_mode & 0o777 == 0o700

    assert len(processes) == 2  # the daemon and its server
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in processes)
    assert not pipes.exists()
    assert (tmp_path / "mps" / "control.log").read_text() == "Start\n"


def test_mps_verify_accepts_client_in_child_process(environ, tmp_path):
    shell = ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", _CLIENT]
    with (
        mps.run_mps_daemon(tmp_path, environ) as session,
        _started(shell, environ | session.environment) as job,
    ):
        session.verify([job.pid], within_s=30)

        assert job.pid not in session._daemon.clients()


def test_mps_verify_job_without_mps_fails(environ, tmp_path):
    with (
        mps.run_mps_daemon(tmp_path, environ) as session,
        _job(_CLIENT, environ | session.environment) as client,
        _job(_SLEEPS, environ | session.environment) as other,
        pytest.raises(MpsError, match=_not_a_client(other.pid, 1, tmp_path)),
    ):
        session.verify([client.pid, other.pid], within_s=1)


def test_mps_verify_client_of_other_pipe_folder_fails(environ, tmp_path):
    with (
        mps.run_mps_daemon(tmp_path, environ) as session,
        _job(_CLIENT, {**environ, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}) as client,
        pytest.raises(MpsError, match=_not_a_client(client.pid, 0.5, tmp_path)),
    ):
        session.verify([client.pid], within_s=0.5)


def test_mps_verify_empty_client_list_fails(environ, tmp_path):
    with (
        mps.run_mps_daemon(tmp_path, environ | {"FAKE_MPS_FAULT": "no-clients"}) as session,
        _job(_CLIENT, environ | session.environment) as client,
        pytest.raises(MpsError, match=_not_a_client(client.pid, 0.5, tmp_path)),
    ):
        session.verify([client.pid], within_s=0.5)


def test_mps_verify_ended_job_fails_at_once(environ, tmp_path):
    with mps.run_mps_daemon(tmp_path, environ) as session:
        job = subprocess.Popen(["true"])
        message = f"process {job.pid} ended before it became a client of MPS; see its output.log"
        with pytest.raises(MpsError, match=f"^{re.escape(message)}$"):
            session.verify([job.pid], within_s=60)
        job.wait()


def test_mps_verify_former_client_is_accepted(environ, tmp_path):
    with mps.run_mps_daemon(tmp_path, environ) as session:
        with _job(_CLIENT, environ | session.environment) as client:
            session.verify([client.pid], within_s=30)
        session.verify([client.pid], within_s=30)


@pytest.mark.parametrize("fault", ["late", "deaf"])
def test_mps_daemon_unresponsive_is_killed(environ, tmp_path, fault):
    with (
        mps.run_mps_daemon(
            tmp_path, environ | {"FAKE_MPS_FAULT": fault}, stop_within_s=0.5
        ) as session,
        _job(_CLIENT, environ | session.environment) as client,
    ):
        session.verify([client.pid], within_s=30)

    assert session._daemon.processes() == []


def test_mps_session_exception_stops_daemon(environ, tmp_path):
    with pytest.raises(KeyError, match="mine"), mps.run_mps_daemon(tmp_path, environ) as session:
        raise KeyError("mine")

    assert session._daemon.processes() == []


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("refuses", "cannot start MPS: Cannot create the control socket: Permission denied"),
        ("silent", "cannot start MPS: .*Cannot find MPS control daemon process"),
    ],
)
def test_mps_failed_start_quotes_daemon(environ, tmp_path, fault, message):
    with (
        pytest.raises(MpsError, match=message),
        mps.run_mps_daemon(tmp_path, environ | {"FAKE_MPS_FAULT": fault}),
    ):
        pytest.fail("started")


def test_mps_not_installed_fails_with_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    message = (
        "cannot start MPS: nvidia-cuda-mps-control is not on PATH; install NVIDIA's driver (on "
        "Debian and Ubuntu "
        "nvidia-compute-utils), or set mps: false"
    )
    with pytest.raises(MpsError, match=f"^{re.escape(message)}$"):
        _enter(mps.run_mps_daemon(tmp_path, {"PATH": str(tmp_path)}))


def test_mps_not_executable_fails_with_remedy(environ, tmp_path):
    (tmp_path / "nvidia-cuda-mps-control").chmod(0o600)
    message = (
        "cannot execute nvidia-cuda-mps-control: Permission denied; get the permission, or "
        "set mps: false"
    )
    with pytest.raises(MpsError, match=f"^{message}$"):
        _enter(mps.run_mps_daemon(tmp_path, environ | {"PATH": str(tmp_path)}))


@pytest.mark.parametrize(
    ("mode", "hint"),
    [
        ("Prohibited", "Prohibited: sudo nvidia-smi -c DEFAULT"),
        ("Exclusive_Process", "Exclusive_Process, for one process only: stop its other processes"),
    ],
)
def test_mps_failed_start_names_compute_mode(environ, tmp_path, mode, hint):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho {mode}\n")
    smi.chmod(0o700)
    with pytest.raises(MpsError, match=f"Permission denied; a GPU is in compute mode {hint}$"):
        _enter(mps.run_mps_daemon(tmp_path, environ | {"FAKE_MPS_FAULT": "refuses"}))


@pytest.mark.parametrize(
    ("theirs", "is_refused"), [("GPU-a,GPU-b", True), ("GPU-c", False), (None, True)]
)
def test_mps_second_daemon_on_gpus_fails(environ, tmp_path, theirs, is_refused):
    folder = tmp_path / "proc" / "4711"
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"/usr/bin/nvidia-cuda-mps-control\0-d\0")
    (folder / "environ").write_text(
        "A=1\0" + (f"CUDA_VISIBLE_DEVICES={theirs}\0" if theirs else "")
    )
    session = mps.run_mps_daemon(tmp_path, environ, ["GPU-a"], proc=tmp_path / "proc")

    if is_refused:
        message = (
            f"cannot start MPS: a daemon of user {getpass.getuser()} is already running (pid 4711) "
            "on these GPUs; "
            "stop it (echo quit | nvidia-cuda-mps-control, as that user), or choose other GPUs by "
            "UUID"
        )
        with pytest.raises(MpsError, match=f"^{re.escape(message)}$"):
            _enter(session)
    else:
        with session as ours:
            assert ours._daemon.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_mps_daemon_ends_with_killed_runner(environ, tmp_path, number):
    with _started([sys.executable, "-c", _RUNNER, str(tmp_path)], environ) as runner:
        daemon = [int(pid) for pid in runner.first_line.split()]
        runner.send_signal(number)

    assert len(daemon) == 1
    eventually(lambda: not any(_is_running(pid) for pid in daemon))


class _Started(subprocess.Popen):
    first_line: str


@contextlib.contextmanager
def _started(command, environment):
    with _Started(
        command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            process.first_line = process.stdout.readline()
            yield process
        finally:
            process.stdin.close()


def _job(script, environment):
    return _started([sys.executable, "-c", script], environment)


def _not_a_client(pid: int, within_s: float, folder: Path) -> str:
    """Return the pattern of the message about a process that is not a client of the daemon."""
    message = (
        f"process {pid} is not an MPS client after {within_s:g} s: "
        "a client must use CUDA on the daemon's GPUs, as the same user and in the same container"
    )
    return f"^{re.escape(message)}.*{re.escape(f'; last log line in {folder}/mps: Start')}$"


def _enter(context) -> None:
    with context:
        pytest.fail("started")


def _is_running(pid: int) -> bool:
    """Return whether the process exists and is not a zombie, which can remain in a container."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False

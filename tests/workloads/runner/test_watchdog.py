from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest

from tests.polling import eventually
from wattline_workloads.runner import watchdog
from wattline_workloads.runner.watchdog import ProcessIdentity, Watchdog

_WAIT_S = 60
_PARENT = """
import os, sys, time
from actions import record
from wattline_workloads.runner.watchdog import Watchdog
dog = Watchdog(record, [sys.argv[1]], os.environ)
dog.send("first")
dog.send("second")
{then}
print(dog.pid, flush=True)
time.sleep(600)
"""
_ACTIONS = """
def record(parent, path):
    parent.report_ready()
    messages = parent.await_end()
    with open(path, "w") as file:
        file.write("normal end" if messages is None else " ".join(messages))
    return 7
"""


@pytest.fixture
def actions(tmp_path, monkeypatch):
    (tmp_path / "actions.py").write_text(_ACTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    yield
    sys.modules.pop("actions", None)


@contextmanager
def _parent(record, then=""):
    command = [sys.executable, "-c", _PARENT.format(then=then), str(record)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            yield process, psutil.Process(int(process.stdout.readline()))
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_watchdog_of_killed_parent_gets_its_messages(actions, tmp_path):
    with _parent(tmp_path / "record") as (process, dog):
        process.kill()
        dog.wait(_WAIT_S)

    assert (tmp_path / "record").read_text() == "first second"


def test_watchdog_acts_although_forked_child_keeps_pipe_open(actions, tmp_path):
    then = "if os.fork() == 0: time.sleep(600)"
    with _parent(tmp_path / "record", then) as (process, dog):
        assert len(psutil.Process(process.pid).children()) == 2
        process.kill()
        dog.wait(_WAIT_S)

    assert (tmp_path / "record").read_text() == "first second"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_watchdog_outlives_signals_until_parent_ends(actions, tmp_path, number):
    with _parent(tmp_path / "record", f"assert dog.is_ready({_WAIT_S})") as (process, dog):
        dog.send_signal(number)
        with pytest.raises(psutil.TimeoutExpired):
            dog.wait(0.2)
        process.kill()
        dog.wait(_WAIT_S)

    assert (tmp_path / "record").read_text() == "first second"


@pytest.mark.parametrize(("is_normal", "recorded"), [(True, "normal end"), (False, "first")])
def test_watchdog_closed_acts_without_normal_end(actions, tmp_path, is_normal, recorded):
    from actions import record  # type: ignore[import-not-found]  # written by the fixture

    dog = Watchdog(record, [str(tmp_path / "record")], os.environ)
    dog.send("first")
    assert dog.is_ready(_WAIT_S)
    assert dog.is_running
    if is_normal:
        dog.report_normal_end()

    assert dog.close() == 7
    assert not dog.is_running
    assert (tmp_path / "record").read_text() == recorded


def test_watchdog_with_failing_launcher_is_not_ready(actions, tmp_path):
    from actions import record

    assert not Watchdog(
        record, [str(tmp_path / "record")], os.environ, launcher=["false"]
    ).is_ready(_WAIT_S)


@pytest.mark.parametrize("has_pidfds", [True, False])
def test_process_identity_awaits_end_of_process(monkeypatch, has_pidfds):
    if not has_pidfds:
        monkeypatch.setattr(watchdog.ProcessIdentity, "_open_pidfd", lambda _: None)
    with subprocess.Popen(["sleep", "0.3"]) as process:
        identity = ProcessIdentity(process.pid, watchdog.started_ticks(process.pid))
        assert identity.is_alive
        assert identity.await_end() == b""
        assert not identity.is_alive


def test_process_identity_of_reused_pid_has_ended():
    reused = ProcessIdentity(os.getpid(), ProcessIdentity.this_process().started_ticks - 1)

    assert not reused.is_alive
    assert reused.await_end() == b""


def test_command_gets_sigterm_when_its_parent_is_killed(tmp_path):
    script = (
        "import subprocess, time\n"
        "from wattline_workloads.runner.watchdog import terminated_with_parent\n"
        "command = terminated_with_parent(['sh', '-c', 'echo $$; exec sleep 600'])\n"
        "subprocess.Popen(command, process_group=0)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        child = psutil.Process(int(process.stdout.readline()))
        assert child.ppid() == process.pid
        process.kill()

        eventually(lambda: not child.is_running())


def test_command_whose_parent_has_ended_is_not_executed():
    command = [*watchdog.terminated_with_parent(["echo", "executed"])]
    command[command.index(str(os.getpid()))] = "1"
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=False)

    assert (done.returncode, done.stdout) == (0, "")

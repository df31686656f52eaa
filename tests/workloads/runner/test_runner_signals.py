"""Signals to the runner and to its job."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.polling import eventually
from tests.workloads.programs import Exporter

_PRINTS_SIGNALS = """
import os, signal, sys, time
got = []
def on(number, frame):
    got.append(number)
    os.write(1, f"got {signal.Signals(number).name}\\n".encode())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, on)
print("ready", flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.5)
sys.exit(7)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_signal_to_runner_reaches_job_once(exporter, write, name):
    with _started(exporter, write(_PRINTS_SIGNALS)) as process:
        process.send_signal(signal.Signals[name])
        out, _ = process.communicate(timeout=30)

    assert out.splitlines() == [f"got {name}"]
    assert process.returncode == 7
    assert exporter.api.only_run.outcome == "failed"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_to_process_group_reaches_job_once(exporter, write, name):
    with _started(exporter, write(_PRINTS_SIGNALS)) as process:
        os.killpg(process.pid, signal.Signals[name])
        out, _ = process.communicate(timeout=30)

    assert out.splitlines() == [f"got {name}"]
    assert process.returncode == 7


def test_signal_sigint_ends_python_job_as_interrupted(exporter, write):
    with _started(
        exporter, write("import time; print('ready', flush=True); time.sleep(60)")
    ) as process:
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=30)

    assert process.returncode == 128 + signal.SIGINT
    assert exporter.api.only_run.outcome == "interrupted"


def test_signal_ignored_by_runner_stays_ignored_in_job(exporter, write):
    script = write("import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)")
    done = exporter.python(
        "-c",
        _WITH_SIGHUP_IGNORED,
        sys.executable,
        "-m",
        "wattline_workloads",
        "run",
        sys.executable,
        script,
    )

    assert done.stdout.strip() == "True"


_WITH_SIGHUP_IGNORED = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_signal_sentinel_ends_with_killed_runner(exporter, write, tmp_path):
    script = write("import time; print('ready', flush=True); time.sleep(60)")
    with _started(exporter, script, TMPDIR=str(tmp_path)) as process:
        children = _children(process.pid)
        process.kill()
        process.wait()
        try:
            assert len(children) == 2
            eventually(lambda: sum(Path(f"/proc/{pid}").exists() for pid in children) == 1)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _started(exporter: Exporter, script: str, **environment: str) -> subprocess.Popen[str]:
    process = exporter.start(
        "-m", "wattline_workloads", "run", sys.executable, script, **environment
    )
    assert process.stdout.readline() == "ready\n"
    # the job is registered only after signals are passed to it
    eventually(lambda: len(exporter.api.bodies("/processes")) == 2)
    return process


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

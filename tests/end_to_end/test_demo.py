"""Output of `make demo`, and its behaviour when interrupted."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.daemon import environment
from tests.polling import eventually

DEMO = Path(__file__).parents[2] / "deploy" / "demo.py"
INTERRUPTED_WITHIN_S = 30


def start(out: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(DEMO), str(out)],
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def processes_of(out: Path) -> list[psutil.Process]:
    """Return the processes with the demo's folder in their command line or environment."""
    processes = []
    for process in psutil.process_iter():
        try:
            texts = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != psutil.Process().pid and any(str(out) in text for text in texts):
            processes.append(process)
    return processes


def test_demo_prints_hardware_and_report_files(tmp_path):
    out, log = tmp_path / "demo", tmp_path / "log"
    with start(out, log) as demo:
        demo.wait(240)

    output = log.read_text()
    lines = output.splitlines()
    assert demo.returncode == 0, output
    assert lines[0] == "SIMULATED 2 x H200: no GPU on this machine" or lines[0].startswith(
        "Measuring "
    )
    assert lines[-3:-1] == [
        f"report.html: {out}/report/report.html",
        f"report.png: {out}/report/report.png",
    ]
    again = lines[-1].removeprefix("To print the report again from the stored history: ")
    repeated = subprocess.run(
        shlex.split(again), capture_output=True, text=True, check=False, timeout=60
    )
    assert "energy, GPU" in repeated.stdout, repeated
    assert (out / "report/report.png").read_bytes().startswith(b"\x89PNG")
    if lines[0].startswith("SIMULATED"):
        assert "SIMULATED hardware" in output
        assert "SIMULATED hardware" in (out / "report/report.html").read_text()
        assert "net of idle" in output
    assert processes_of(out) == []


def runs_sgemm(demo: int) -> bool:
    children = psutil.Process(demo).children(recursive=True)
    with suppress(psutil.Error):  # one may have ended meanwhile
        return any("wattline_workloads.jobs.sgemm" in child.cmdline() for child in children)
    return False


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_demo_interrupted_leaves_no_process(tmp_path, sign):
    out, log = tmp_path / "demo", tmp_path / "log"
    with start(out, log) as demo:
        eventually(
            lambda: "Running matrix multiplications" in log.read_text(),
            "the run starts",
            log.read_text,
        )
        eventually(lambda: runs_sgemm(demo.pid), "the job runs", log.read_text)
        time.sleep(1)
        demo.send_signal(sign)
        demo.wait(INTERRUPTED_WITHIN_S)

    assert demo.returncode == 128 + sign
    assert "Traceback" not in log.read_text()
    assert processes_of(out) == []

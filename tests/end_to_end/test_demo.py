"""Output of `make demo`, and its behaviour when interrupted."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.daemon import environment
from tests.polling import eventually

DEMO = Path(__file__).parents[2] / "deploy" / "demo.py"
INTERRUPTED_WITHIN_S = 30


def start(out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(DEMO), str(out)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
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
    out = tmp_path / "demo"
    with start(out) as demo:
        output, _ = demo.communicate(timeout=240)

    lines = output.splitlines()
    assert demo.returncode == 0, output
    assert lines[0] == "SIMULATED 2 x H200: no GPU on this machine" or lines[0].startswith("Measuring ")
    assert lines[-3:-1] == [f"report.html: {out}/report/report.html", f"report.png: {out}/report/report.png"]
    again = lines[-1].removeprefix("To print the report again from the stored history: ")
    repeated = subprocess.run(shlex.split(again), capture_output=True, text=True, check=False, timeout=60)
    assert "energy, GPU" in repeated.stdout, repeated
    assert (out / "report/report.png").read_bytes().startswith(b"\x89PNG")
    if lines[0].startswith("SIMULATED"):
        assert "SIMULATED hardware" in output
        assert "SIMULATED hardware" in (out / "report/report.html").read_text()
        assert "net of idle" in output
    assert processes_of(out) == []


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_demo_interrupted_leaves_no_process(tmp_path, sign):
    out = tmp_path / "demo"
    with start(out) as demo:
        eventually(
            lambda: any("sgemm" in " ".join(p.cmdline()) for p in processes_of(out)), "the job runs", within_s=90
        )
        time.sleep(1)
        demo.send_signal(sign)
        output, _ = demo.communicate(timeout=INTERRUPTED_WITHIN_S)

    assert demo.returncode == 128 + sign
    assert "Traceback" not in output
    assert processes_of(out) == []

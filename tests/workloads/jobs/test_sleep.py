import os
import re
import signal
from pathlib import Path

import psutil

from tests.polling import eventually


def test_sleep_duration_is_run_duration(exporter):
    done = exporter.workloads("job", "sleep", "--duration", "0.3", "-l", "state=idle")

    run = exporter.api.only_run
    assert done.returncode == 0
    assert (run.workload, run.labels, run.outcome) == ("sleep", {"state": "idle"}, "ok")
    assert run.duration_s >= 0.3


def test_sleep_interrupted_prints_no_traceback(exporter):
    process = exporter.start("-m", "wattline_workloads", "job", "sleep", "--duration", "600")
    with process:
        eventually(lambda: _sleeps(process.pid))
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGINT
    assert exporter.api.only_run.outcome == "interrupted"
    assert all(line.startswith("wattline: ") for line in stderr.splitlines()), stderr


def _sleeps(runner):
    """Return whether the job of this runner has installed its handler of SIGINT."""
    caught = [
        int(re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{job.pid}/status").read_text())[1], 16)
        for job in psutil.Process(runner).children()
        if "wattline_workloads.jobs.sleep" in job.cmdline()
    ]
    return any(signals >> (signal.SIGTERM - 1) & 1 for signals in caught)

"""End and energy of runs whose runner is killed by SIGKILL."""

import subprocess
import sys
import time

import psutil
import pytest

from tests import daemon
from tests.polling import eventually
from wattline_exporter.runs.lifecycle import EXIT_SEEN_S


@pytest.fixture(scope="module")
def exporter(tmp_path_factory):
    with daemon.daemon(
        tmp_path_factory.mktemp("exporter"), "--simulate", "1xH200", "--no-history"
    ) as started:
        yield started


def start_run(exporter, run_id, *command):
    """Start a run; return the runner and its job."""
    arguments = [
        "-m",
        "wattline_workloads",
        "run",
        "--gpus",
        "0",
        "--run-id",
        run_id,
        "--",
        *command,
    ]
    environ = daemon.environment({"WATTLINE_EXPORTER": exporter.url})
    runner = subprocess.Popen([sys.executable, *arguments], env=environ, stderr=subprocess.DEVNULL)
    eventually(
        lambda: [job for job in psutil.Process(runner.pid).children() if job.name() == command[0]],
        run_id,
    )
    (job,) = (job for job in psutil.Process(runner.pid).children() if job.name() == command[0])
    return runner, job


def await_end(exporter, run_id):
    eventually(
        lambda: exporter.get(f"/api/v1/runs/{run_id}")[1]["state"] == "ended", run_id, within_s=60
    )
    return exporter.get(f"/api/v1/runs/{run_id}")[1]


def test_runner_killed_run_energy_ends_with_last_process(exporter):
    """Compare joules with seconds at idle power; one job ends with its runner, the other 3 s
    later.
    """
    together, job_of_both = start_run(exporter, "both", "sleep", "600")
    alone, job_left = start_run(exporter, "runner", "sleep", "600")
    try:
        time.sleep(2)
    finally:
        for process in (together, job_of_both, alone):
            process.kill()
        together.wait()
        alone.wait()
        killed_at = time.time()
        time.sleep(3)
        job_left.kill()
        left_at = time.time()
    both, runner = await_end(exporter, "both"), await_end(exporter, "runner")

    with exporter.simulation() as simulation:
        idle_w = simulation.power_w(0, simulation.now())
    for run, died_at in ((both, killed_at), (runner, left_at)):
        (energy_j,) = run["energy_joules"]["gpu"].values()
        assert (run["outcome"], run["notes"]) == ("interrupted", ["its processes were gone"])
        assert run["ended_at"] == pytest.approx(died_at, abs=EXIT_SEEN_S)
        assert energy_j == pytest.approx(idle_w * run["duration_seconds"], rel=0.05)
    assert runner["ended_at"] > both["ended_at"]

"""Small run of each built-in job on the GPU: its work and energy."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from tests.gpu.gpu_under_test import ROOT, torch_cuda_problem
from wattline.contract.run_files import EVENTS_FILE, METRICS_FILE, IterationEvent, parse_event

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

JOBS = {
    "sgemm": ("flop", ["--size", "4096", "--duration", "5"]),
    "dgemm": ("flop", ["--size", "2048", "--duration", "5"]),
    "memcpy": ("bytes", ["--size", "256MiB", "--duration", "5"]),
    "resnet": ("images", ["--batch-size", "32", "--iterations", "10"]),
    "llm-forward": (
        "samples",
        ["--random", "distilgpt2", "--seq-len", "128", "--iterations", "50"],
    ),
    "llm-generate": (
        "generated_tokens",
        ["--random", "gpt2", "--batch-size", "8", "--iterations", "2"],
    ),
    "llm-train": (
        "trained_tokens",
        ["--random", "gpt2", "--batch-size", "4", "--iterations", "10"],
    ),
}


@pytest.mark.parametrize("job", JOBS)
def test_job_reports_work_and_energy(gpu, record, exporter, tmp_path, job):
    problem = None if gpu.simulated else torch_cuda_problem()
    if problem:
        pytest.skip(problem)
    unit, options = JOBS[job]
    uuid = gpu.probe("identity")["uuid"]
    command = ["job", job, "--gpus", uuid, "--out", str(tmp_path), "--run-id", job, *options]
    address = f"http://127.0.0.1:{exporter.port}"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "wattline_workloads", *command, "--exporter", address],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    metrics = yaml.safe_load((tmp_path / job / METRICS_FILE).read_text())
    events = [parse_event(line) for line in (tmp_path / job / EVENTS_FILE).read_text().splitlines()]
    iterations = [
        event for event in events if isinstance(event, IterationEvent) and event.phase == "measure"
    ]
    assert iterations
    assert metrics["work"][unit] == pytest.approx(
        sum(event.work.get(unit, 0.0) for event in iterations)
    )
    measured = next(phase for phase in metrics["phases"] if phase["name"] == "measure")
    assert measured["work"][unit] == pytest.approx(metrics["work"][unit])
    assert measured["energy_joules"]["gpu"] > 0
    record.setdefault("jobs", {})[job] = {
        "unit": unit,
        "amount": measured["work"][unit],
        "seconds": measured["duration_seconds"],
        "joules": measured["energy_joules"]["gpu"],
        "uncertainty_joules": measured["energy_uncertainty_joules"]["gpu"],
        "results": metrics["results"],
    }

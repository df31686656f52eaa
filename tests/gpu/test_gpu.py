"""Measurement path on a real GPU: `make gpu`. It only reads.

With WATTLINE_SIMULATION=FILE it runs on simulated GPUs and writes its page, marked as simulated, to
pytest's folder. WATTLINE_GPU_SECONDS shortens the windows of a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.bench.program import ProgramError, cpu_spent_s
from tests.gpu.conftest import SECONDS
from tests.gpu.gpu_under_test import ROOT, torch_cuda_problem

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

LOADS = {"steady": 1.0, "bursts": 0.5}


def test_gpu_is_attached_alone_after_empty_initialization(gpu, record):
    record["attach"] = gpu.probe("identity")

    del record["attach"]["uuid"]
    assert record["attach"]["gpus"] >= 1


def test_exporter_calls_only_reading_functions(gpu, record):
    record["calls"] = gpu.probe("calls")

    assert not [name for name in record["calls"]["functions"] if "Set" in name]


def test_sensor_has_an_update_period(gpu, record, tmp_path):
    seconds = SECONDS / 4
    results = record["updates"] = {"idle": gpu.probe("updates", seconds)}
    if gpu.simulated or not torch_cuda_problem():
        with gpu.loaded(gpu.probe("identity")["uuid"], LOADS["bursts"], tmp_path):
            results["bursts"] = gpu.probe("updates", seconds)

    periods = [period for values in results.values() for period in values.values() if period]
    assert periods, "counter and power never changed"
    assert all(0.005 < period["median_seconds"] < 1.5 for period in periods)


def test_driver_power_samples_are_present_or_reported_missing(gpu, record):
    record["samples"] = gpu.probe("samples")

    assert record["samples"]["available"] or record["samples"]["why"]


def test_counter_and_integral_agree_on_real_gpu(gpu, record, exporter, tmp_path):
    uuid = gpu.probe("identity")["uuid"]
    results = record["energy"] = {"idle": _exporter_and_probe(gpu, exporter, uuid)}
    if gpu.simulated or not torch_cuda_problem():
        for name, duty in LOADS.items():
            with gpu.loaded(uuid, duty, tmp_path):
                results[name] = _exporter_and_probe(gpu, exporter, uuid)

    for sources in results.values():
        figures = sources["exporter"]
        assert figures["counter_joules"] > 0
        assert figures["uncertainty_joules"] < 0.5 * figures["counter_joules"]


def _exporter_and_probe(gpu, exporter, uuid):
    """Return the exporter's run, and the same quantities read directly during it."""
    time.sleep(2.0)
    run_id = exporter.begin("counter-against-integral")
    with ThreadPoolExecutor(1) as pool:
        direct = pool.submit(gpu.probe, "integral", max(0.5, SECONDS - 1.0))
        time.sleep(SECONDS)
        run = exporter.end(run_id)
        return {
            "exporter": {
                "seconds": run["duration_seconds"],
                "counter_joules": run["energy_joules"]["gpu"][uuid],
                "uncertainty_joules": run["energy_uncertainty_joules"]["gpu"][uuid],
                "average_joules": run["integrated_energy_joules"][uuid],
                "instant_joules": None,
            },
            "probe": direct.result(),
        }


def test_exporter_cost_is_small(gpu, record, exporter):
    time.sleep(2.0)
    idle = _cpu_ratio(exporter.program)
    run_id = exporter.begin("cost")
    time.sleep(2.0)
    with_run = _cpu_ratio(exporter.program)
    pss_bytes = exporter.program.memory().pss_bytes
    exporter.end(run_id)
    gpus = gpu.probe("identity")["gpus"]
    record["cost"] = {
        "gpus": gpus,
        "idle_cpu_ratio": idle,
        "run_cpu_ratio": with_run,
        "pss_bytes": pss_bytes,
    }

    assert pss_bytes < 80e6


def _cpu_ratio(program):
    before, begin_s = program.cpu_s(), time.monotonic()
    time.sleep(SECONDS / 2)
    return cpu_spent_s(program, before) / (time.monotonic() - begin_s)


def test_sgemm_run_is_reported(gpu, record, exporter):
    problem = None if gpu.simulated else torch_cuda_problem()
    if problem:
        pytest.skip(f"sgemm would run on the CPU: {problem}")
    address = f"http://127.0.0.1:{exporter.port}"
    options = ["--size", "1024"] if gpu.simulated else []
    job = [
        "-m",
        "wattline_workloads",
        "job",
        "sgemm",
        "--gpus",
        "0",
        "--exporter",
        address,
        "--run-id",
        "sgemm",
    ]
    _command(gpu, *job, "--duration", str(min(20.0, SECONDS)), *options)
    report = [
        "-c",
        "from wattline_analyzer.cli import main; main()",
        "report",
        "--run-id",
        "sgemm",
        "--source",
        address,
    ]
    results = record["sgemm"] = json.loads(_command(gpu, *report, "--format", "json"))

    assert results["outcome"] == "ok"
    assert results["energy"]["gpu"]["energy_joules"] > 0
    assert results["work"]["flop"]["amount"] > 0


def _command(gpu, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **gpu.environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise ProgramError(
            f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}"
        )
    return done.stdout

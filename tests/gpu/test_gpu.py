"""Measurement path on a real GPU: `make gpu`. It only reads.

With WATTLINE_SIMULATION=FILE it runs on simulated GPUs and writes its page, marked as simulated, to pytest's folder.
WATTLINE_GPU_SECONDS shortens the windows of a minute.
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
from tests.gpu.card import ROOT, torch_trouble
from tests.gpu.conftest import SECONDS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

LOADS = {"steady": 1.0, "bursts": 0.5}


def test_gpu_is_attached_alone_after_empty_initialization(card, record):
    record["attach"] = card.ask("who")

    del record["attach"]["uuid"]
    assert record["attach"]["gpus"] >= 1


def test_exporter_calls_only_reading_functions(card, record):
    record["calls"] = card.ask("calls")

    assert not [name for name in record["calls"]["functions"] if "Set" in name]


def test_sensor_has_an_update_period(card, record, tmp_path):
    seconds = SECONDS / 4
    found = record["updates"] = {"idle": card.ask("updates", seconds)}
    if card.simulated or not torch_trouble():
        with card.busy(card.ask("who")["uuid"], LOADS["bursts"], tmp_path):
            found["bursts"] = card.ask("updates", seconds)

    known = [period for values in found.values() for period in values.values() if period]
    assert known, "counter and power never changed"
    assert all(0.005 < period["median_seconds"] < 1.5 for period in known)


def test_driver_power_samples_are_present_or_reported_missing(card, record):
    record["samples"] = card.ask("samples")

    assert record["samples"]["available"] or record["samples"]["why"]


def test_counter_and_integral_agree_on_real_gpu(card, record, exporter, tmp_path):
    uuid = card.ask("who")["uuid"]
    found = record["energy"] = {"idle": _both(card, exporter, uuid)}
    if card.simulated or not torch_trouble():
        for name, duty in LOADS.items():
            with card.busy(uuid, duty, tmp_path):
                found[name] = _both(card, exporter, uuid)

    for both in found.values():
        figures = both["exporter"]
        assert figures["counter_joules"] > 0
        assert figures["uncertainty_joules"] < 0.5 * figures["counter_joules"]


def _both(card, exporter, uuid):
    """Return the exporter's run, and the same quantities read directly during it."""
    time.sleep(2.0)
    run_id = exporter.begin("counter-against-integral")
    with ThreadPoolExecutor(1) as pool:
        past_it = pool.submit(card.ask, "integral", max(0.5, SECONDS - 1.0))
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
            "probe": past_it.result(),
        }


def test_exporter_cost_is_small(card, record, exporter):
    time.sleep(2.0)
    idle = _cpu_ratio(exporter.program)
    run_id = exporter.begin("cost")
    time.sleep(2.0)
    busy = _cpu_ratio(exporter.program)
    pss_bytes = exporter.program.memory().pss_bytes
    exporter.end(run_id)
    gpus = card.ask("who")["gpus"]
    record["cost"] = {"gpus": gpus, "idle_cpu_ratio": idle, "run_cpu_ratio": busy, "pss_bytes": pss_bytes}

    assert pss_bytes < 80e6


def _cpu_ratio(program):
    before, begin_s = program.cpu_s(), time.monotonic()
    time.sleep(SECONDS / 2)
    return cpu_spent_s(program, before) / (time.monotonic() - begin_s)


def test_sgemm_run_is_reported(card, record, exporter):
    trouble = None if card.simulated else torch_trouble()
    if trouble:
        pytest.skip(f"sgemm would run on the CPU: {trouble}")
    address = f"http://127.0.0.1:{exporter.port}"
    options = ["--size", "1024"] if card.simulated else []
    job = ["-m", "workloads", "job", "sgemm", "--gpus", "0", "--exporter", address, "--run-id", "sgemm"]
    _command(card, *job, "--duration", str(min(20.0, SECONDS)), *options)
    report = ["-c", "from analyzer.cli import main; main()", "report", "--run-id", "sgemm", "--source", address]
    found = record["sgemm"] = json.loads(_command(card, *report, "--format", "json"))

    assert found["outcome"] == "ok"
    assert found["energy"]["gpu"]["energy_joules"] > 0
    assert found["work"]["flop"]["amount"] > 0


def _command(card, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **card.environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise ProgramError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout

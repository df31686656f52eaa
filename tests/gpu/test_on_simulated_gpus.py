"""Tests of real GPUs, run on simulated ones."""

import json
import os
import subprocess
import sys

import pytest

from tests.gpu.conftest import RESULTS
from tests.gpu.gpu_under_test import ROOT
from tests.gpu.sensor import TimedPoll, update_period


def test_gpu_tests_on_simulated_gpu_write_a_marked_page(tmp_path):
    written_before = sorted(RESULTS.iterdir())
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-m",
                "gpu",
                "-k",
                "not agree and not cost",
                "tests/gpu/test_gpu.py",
            ),
            *("-p", "no:cacheprovider", "--basetemp", tmp_path / "pytest"),
        ],
        env={
            **os.environ,
            "WATTLINE_SIMULATION": str(tmp_path / "gpu.state"),
            "WATTLINE_GPU_SECONDS": "5",
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout
    results = json.loads(
        (tmp_path / "pytest" / "results0" / "simulated-nvidia-h200.json").read_text()
    )
    assert results["simulated"]
    assert results["updates"]["idle"]["counter"]["median_seconds"] == pytest.approx(0.1, abs=0.01)
    assert results["sgemm"]["simulated"]
    assert "# SIMULATED, no measurement: SIMULATED NVIDIA H200" in done.stdout
    assert sorted(RESULTS.iterdir()) == written_before


def test_update_period_ignores_updates_without_change():
    polls = [
        TimedPoll(i / 1_000, i / 1_000 + 0.0002, value=7 if i // 100 == 6 else i // 100)
        for i in range(2_000)
    ]

    results = update_period(
        [poll if poll.value != 7 else TimedPoll(poll.before_s, poll.after_s, 5) for poll in polls]
    )

    assert results["median_seconds"] == pytest.approx(0.1, abs=0.001)
    assert results["learned_period_seconds"] == pytest.approx(0.1, abs=0.0005)
    assert results["changes"] == 17


def test_update_period_of_a_constant_value_is_none():
    assert (
        update_period(
            [TimedPoll(i / 1_000, i / 1_000 + 0.0002, value=i // 500) for i in range(2_000)]
        )
        is None
    )

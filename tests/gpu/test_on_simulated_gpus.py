"""That the tests of real GPUs run at all, before one is at hand."""

import json
import os
import subprocess
import sys

import pytest

from tests.gpu.card import ROOT
from tests.gpu.conftest import RESULTS
from tests.gpu.sensor import Seen, update_period


def test_they_run_on_a_simulated_gpu_and_write_what_says_so_elsewhere(tmp_path):
    written_before = sorted(RESULTS.iterdir())
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-m", "gpu", "-k", "not agree and not costs", "tests/gpu/test_gpu.py"),
            *("-p", "no:cacheprovider", "--basetemp", tmp_path / "pytest"),
        ],
        env={**os.environ, "WATTLINE_SIMULATION": str(tmp_path / "gpu.state"), "WATTLINE_GPU_SECONDS": "5"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout
    found = json.loads((tmp_path / "pytest" / "results0" / "simulated-nvidia-h200.json").read_text())
    assert found["simulated"]
    assert found["updates"]["idle"]["counter"]["median_seconds"] == pytest.approx(0.1, abs=0.01)
    assert found["sgemm"]["simulated"]
    assert "# SIMULATED, no measurement: SIMULATED NVIDIA H200" in done.stdout
    assert sorted(RESULTS.iterdir()) == written_before


def test_an_update_that_leaves_the_value_as_it_was_does_not_move_the_median():
    polls = [Seen(i / 1_000, i / 1_000 + 0.0002, value=7 if i // 100 == 6 else i // 100) for i in range(2_000)]

    found = update_period([poll if poll.value != 7 else Seen(poll.before_s, poll.after_s, 5) for poll in polls])

    assert found["median_seconds"] == pytest.approx(0.1, abs=0.001)
    assert found["learned_period_seconds"] == pytest.approx(0.1, abs=0.0005)
    assert found["changes"] == 17


def test_a_value_that_hardly_ever_changes_has_no_period():
    assert update_period([Seen(i / 1_000, i / 1_000 + 0.0002, value=i // 500) for i in range(2_000)]) is None

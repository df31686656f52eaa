"""Script `deploy/ci/gate.sh` with a real exporter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon import daemon

CI = Path(__file__).parents[2] / "deploy" / "ci"


@pytest.fixture(scope="module")
def exporter(tmp_path_factory):
    with daemon(tmp_path_factory.mktemp("exporter"), "--simulate", "1xH200") as started:
        yield started


def gate(exporter, baseline, candidate, *options):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "WATTLINE_EXPORTER": exporter.url,
        "WATTLINE_SOURCE": exporter.url,
    }
    command = [str(CI / "gate.sh"), baseline, candidate, *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_gate_script_longer_run_on_an_idle_gpu_is_a_regression(exporter, tmp_path):
    summary = tmp_path / "summary.md"
    done = gate(exporter, "sleep 0.4", "sleep 1.6", "--summary", str(summary))
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stdout.count("cannot tell\n") == done.stdout.count("repeats:") - 1
    assert "regression\nenergy, GPU:" in done.stdout
    assert "### Energy gate: regression" in summary.read_text()


def test_gate_script_failing_command_exits_one(exporter):
    done = gate(exporter, "true", "exit 7")
    assert done.returncode == 1
    assert "gate.sh: the candidate failed with exit code 7: exit 7" in done.stderr


def test_gate_script_without_commands_prints_its_usage():
    done = subprocess.run([CI / "gate.sh"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: gate.sh ")

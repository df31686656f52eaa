import os
import sys

import psutil
import pytest

from tests.fakes import mps_control
from tests.workloads.plans.plan_files import read_journal, run_plan, write_file
from tests.workloads.programs import ROOT

PLAN = """\
name: shared
mps: true
runs:
  - name: two
    tenants:
      - {{name: first, command: [{python}, {first}], barrier: true}}
      - {{name: second, command: [{python}, {second}], barrier: true}}
"""
ATTACHED = """
import time
from tests.fakes.mps_control import mps_client
import wattline
with mps_client(), wattline.run("tenant") as run:
    run.barrier()
    time.sleep(0.2)
    run.work(steps=1)
"""


@pytest.fixture
def path(tmp_path):
    """PATH with a fake of NVIDIA's control program."""
    return f"{mps_control.install_mps_control(tmp_path)}:{os.environ['PATH']}"


def test_tenants_under_mps_are_verified_and_daemon_ends(exporter, tmp_path, path):
    client = write_file(tmp_path, ATTACHED, "client.py")
    plan = write_file(tmp_path, PLAN.format(python=sys.executable, first=client, second=client))
    done = run_plan(exporter, plan, PATH=path, PYTHONPATH=str(ROOT))

    lines = read_journal(tmp_path / "results")
    assert done.returncode == 0, done.stderr
    assert [(line["outcome"], line["labels"]["mps"]) for line in lines] == [
        ("ok", "true"),
        ("ok", "true"),
    ]
    log = tmp_path / "results" / "step-1-1" / "mps" / "control.log"
    assert log.read_text() == "Start\n"
    assert not [process for process in psutil.process_iter() if _serves(process, str(log.parent))]


def test_tenants_under_mps_non_client_fails_step(exporter, tmp_path, path):
    client = write_file(tmp_path, ATTACHED, "client.py")
    non_client = write_file(
        tmp_path, "import wattline\nwith wattline.run('x') as run: run.barrier()\n", "other.py"
    )
    plan = write_file(tmp_path, PLAN.format(python=sys.executable, first=client, second=non_client))
    done = run_plan(exporter, plan, PATH=path, PYTHONPATH=str(ROOT))

    assert done.returncode == 1
    assert "is not an MPS client" in done.stderr
    assert {line["outcome"] for line in read_journal(tmp_path / "results")} == {"failed"}
    assert {run.outcome for run in exporter.api.runs.values()} == {"failed"}


def test_plan_without_mps_program_fails_before_run(exporter, tmp_path):
    plan = write_file(
        tmp_path,
        "name: shared\nmps: true\nruns: [{job: sgemm, options: {size: 16, duration: 0.1}}]\n",
    )
    done = run_plan(exporter, plan)

    assert done.returncode == 1
    assert "nvidia-cuda-mps-control" in done.stderr
    assert not (tmp_path / "results").exists()
    assert exporter.api.runs == {}


def _serves(process: psutil.Process, folder: str) -> bool:
    try:
        return folder in process.environ().values()
    except psutil.Error:
        return False

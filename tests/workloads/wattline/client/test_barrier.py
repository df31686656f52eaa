import subprocess
import sys
import time

import pytest

import wattline
from tests.polling import eventually
from tests.workloads.programs import ROOT, plain_environment
from wattline.client import barrier
from wattline.client.barrier import ABANDONED, FOLDER, BarrierError

_TENANT = """
import os, sys, time
from wattline.client import barrier
try:
    barrier.await_all_tenants(os.environ)
except barrier.BarrierError as error:
    sys.exit(str(error))
print(time.monotonic())
"""


@pytest.fixture
def tenant(tmp_path):
    started = []

    def start(count: int, timeout_s: float) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _TENANT],
            env={**plain_environment(), FOLDER: f"{tmp_path}:{count}:{timeout_s}"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_barrier_absent_returns_at_once():
    barrier.await_all_tenants({})


def test_run_barrier_uses_folder_of_environment(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, f"{tmp_path}:1:60")
    wattline.run("train", exporter="http://127.0.0.1:1").barrier()

    assert len(list(tmp_path.glob("ready-*"))) == 1


def test_run_barrier_counts_only_first_rank(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, f"{tmp_path}:1:0")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")

    with pytest.raises(BarrierError, match="0 of 1 were ready"):
        wattline.run("train", exporter="http://127.0.0.1:1").barrier()


def test_barrier_waits_for_last_tenant(tenant, tmp_path):
    early = [tenant(3, 60), tenant(3, 60)]
    eventually(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
    assert all(process.poll() is None for process in early)
    last_came_s = time.monotonic()
    processes = [*early, tenant(3, 60)]

    went_on_s = [float(process.communicate(timeout=60)[0]) for process in processes]
    assert min(went_on_s) >= last_came_s
    assert all(process.returncode == 0 for process in processes)


def test_barrier_timeout_reports_count_and_setting(tenant):
    _, err = (process := tenant(2, 0.2)).communicate(timeout=60)

    assert process.returncode == 1
    assert (
        err
        == "tenants not started: 1 of 2 were ready within 0.2 s; increase barrier_timeout_seconds\n"
    )


def test_barrier_late_tenant_after_timeout_fails(tenant):
    tenant(2, 0.2).communicate(timeout=60)
    _, err = (late := tenant(2, 60)).communicate(timeout=60)

    assert late.returncode == 1
    assert err.startswith("tenant not started: another tenant failed before all were ready")


def test_barrier_failed_tenant_stops_waiting_tenants(tenant, tmp_path):
    waiting = tenant(2, 60)
    eventually(lambda: list(tmp_path.glob("ready-*")))
    (tmp_path / ABANDONED).touch()
    _, err = waiting.communicate(timeout=60)

    assert waiting.returncode == 1
    assert err.startswith("tenant not started: another tenant failed before all were ready")


def test_barrier_missing_folder_fails(tmp_path):
    with pytest.raises(BarrierError, match="start the plan again"):
        barrier.await_all_tenants({FOLDER: f"{tmp_path / 'gone'}:2:60"})


def test_barrier_killed_runner_stops_waiting_tenants(tenant, tmp_path):
    script = "import sys, pathlib; from wattline.client import barrier\n"
    script += (
        "with barrier.hold_runner_lock(pathlib.Path(sys.argv[1])):\n    print('held', "
        "flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as runner:
        assert runner.stdout.readline() == "held\n"
        waiting = tenant(2, 60)
        eventually(lambda: list(tmp_path.glob("ready-*")))
        assert waiting.poll() is None
        runner.kill()
    _, err = waiting.communicate(timeout=60)

    assert waiting.returncode == 1
    assert (
        err == "tenant not started: the plan's runner ended before all were ready; start the plan "
        "again\n"
    )

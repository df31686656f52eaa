from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from exporter.simulation import Fault
from tests.waiting import eventually
from tests.workloads.plans.sweep_runs import WITHIN_S
from workloads.caps import journal as caps_journal
from workloads.caps import watchdog as caps_watchdog
from workloads.caps.gpu_set import CapsError
from workloads.caps.journal import Holder, InitialPowerLimit, Journal

BEFORE_W = [700.0, 500.0]
FOLDER = Path("/scratch/state/wattline/caps")


@pytest.fixture
def capped(driver):
    """A sweep that has set both cards to 300 W."""
    sweep = driver.capped("all", "300", "400")
    assert driver.limits_w() == [300, 300]
    return sweep


@pytest.fixture
def journal(driver):
    """Of this process, on the state file."""
    driver.journals.mkdir(parents=True)
    gpu = driver.simulation.gpus[0]
    held = Journal(Holder.this_process(), str(driver.simulation.path), (InitialPowerLimit(gpu.uuid, "GPU 0", 700.0),))
    return held.write(driver.journals)


def program(folder, name, text):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def test_caps_watchdog_restores_limits_of_killed_sweep(driver, capped):
    capped.process.kill()
    capped.end()

    eventually(lambda: not driver.has_journal())
    assert driver.limits_w() == BEFORE_W
    assert f"it was set by process {capped.process.pid}" in (driver.journals / caps_journal.LOG_FILE).read_text()


def test_caps_watchdog_restores_limits_of_zombie(driver, capped):
    capped.process.kill()

    eventually(lambda: not driver.has_journal())
    assert psutil.Process(capped.process.pid).status() == psutil.STATUS_ZOMBIE
    assert driver.limits_w() == BEFORE_W


def test_caps_watchdog_ignores_signals_of_process_group(driver, capped):
    watching = capped.watchdog
    assert os.getsid(watching.pid) == watching.pid
    os.killpg(capped.process.pid, signal.SIGKILL)

    eventually(lambda: not driver.has_journal())
    assert driver.limits_w() == BEFORE_W


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_caps_watchdog_survives_closed_terminal(driver, capped, number):
    os.kill(capped.watchdog.pid, number)
    capped.process.kill()
    capped.end()

    eventually(lambda: not driver.has_journal())
    assert driver.limits_w() == BEFORE_W


def test_caps_watchdog_terminated_restores_limits_and_stops_sweep(driver, capped):
    capped.watchdog.terminate()
    eventually(lambda: not driver.has_journal())
    assert driver.limits_w() == BEFORE_W
    capped.go_on()
    code, err = capped.end()

    assert code == 1
    assert "has a power limit of 700 W although 300 W was set" in err
    assert driver.limits_w() == BEFORE_W


def test_caps_watchdog_retries_unresponsive_gpu(driver, capped):
    driver.simulation.set_fault(1, Fault.LOST, on=True)
    capped.process.kill()
    capped.end()
    log = driver.journals / caps_journal.LOG_FILE
    eventually(lambda: "lost" in log.read_text())
    assert driver.has_journal()
    driver.simulation.set_fault(1, Fault.LOST, on=False)

    eventually(lambda: not driver.has_journal())
    assert driver.limits_w() == BEFORE_W


def test_caps_watchdog_ends_with_sweep(driver, capped):
    watching = capped.watchdog
    capped.go_on()
    capped.go_on()
    capped.end()

    assert not watching.is_running()


def test_caps_watchdog_with_systemd_has_separate_scope(tmp_path, journal):
    said = tmp_path / "arguments"
    environ = program(
        tmp_path / "bin", "systemd-run", f'echo "$@" > {said}\nwhile [ "${{1#-}}" != "$1" ]; do shift; done\nexec "$@"'
    )
    watching = caps_watchdog.start_caps_watchdog(journal, environ, booted_by_systemd=tmp_path)
    watching.close()

    arguments = said.read_text().split()
    assert {"--scope", "--collect", f"--unit=wattline-caps-{journal.stem}"} <= set(arguments)
    assert ("--user" in arguments) == (os.geteuid() != 0)
    assert arguments[-1] == str(journal)
    eventually(lambda: not journal.exists())


@pytest.mark.parametrize("text", ["echo 'Access denied' >&2; exit 1", "exit 0"])
def test_caps_watchdog_without_scope_starts(tmp_path, journal, text):
    environ = program(tmp_path / "bin", "systemd-run", text)
    watching = caps_watchdog.start_caps_watchdog(journal, environ, booted_by_systemd=tmp_path)

    assert watching.is_running
    watching.close()
    assert not watching.is_running


def test_caps_watchdog_failed_start_names_log(journal):
    journal.write_text("{}")

    with pytest.raises(CapsError, match=r"no cap set: cannot start the watchdog .*; see .*watchdog\.log"):
        caps_watchdog.start_caps_watchdog(journal, os.environ)
    assert "cannot read journal" in journal.with_name(caps_journal.LOG_FILE).read_text()


@pytest.fixture
def proc(tmp_path):
    """Two processes of one cgroup in the node's own namespaces."""
    for name in ("self", "4711"):
        (tmp_path / "proc" / name / "ns").mkdir(parents=True)
        (tmp_path / "proc" / name / "ns" / "pid").symlink_to("pid:[4026531836]")
        (tmp_path / "proc" / name / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_7/step_0\n")
    return tmp_path / "proc"


def test_survival_warning_on_plain_node_is_none(proc):
    assert caps_watchdog.survival_warning(4711, FOLDER, {}, proc) is None


def test_survival_warning_in_slurm_cgroup_names_slurm(proc):
    warning = caps_watchdog.survival_warning(4711, FOLDER, {"SLURM_JOB_ID": "7"}, proc)

    assert warning is not None
    assert warning.startswith("Slurm kills the watchdog with the job, so the caps of a killed job stay set")
    assert warning.endswith("call this in the epilog: XDG_STATE_HOME=/scratch/state workloads caps restore")


def test_survival_warning_separate_cgroup_is_none(proc):
    (proc / "4711" / "cgroup").write_text("0::/system.slice/wattline-caps-1-2.scope\n")

    assert caps_watchdog.survival_warning(4711, FOLDER, {"SLURM_JOB_ID": "7"}, proc) is None


def test_survival_warning_in_container_names_volume(proc):
    (proc / "self" / "ns" / "pid").unlink()
    (proc / "self" / "ns" / "pid").symlink_to("pid:[4026532201]")
    warning = caps_watchdog.survival_warning(4711, FOLDER, {}, proc)

    assert warning is not None
    assert "ends with this container" in warning


def test_caps_under_slurm_warn_before_start(driver):
    if shutil.which("systemd-run") and Path("/run/systemd/system").is_dir():
        pytest.skip("systemd gives the watchdog a cgroup of its own here")
    sweep = driver.sweep("all", "300", SLURM_JOB_ID="7")

    assert sweep.process.stderr.readline().startswith("wattline: Slurm kills the watchdog with the job")
    assert sweep.heard() == "ready"
    assert driver.limits_w() == BEFORE_W


def test_holder_with_reused_pid_is_not_alive(driver, capped):
    holder = Holder(**driver.journal()["holder"])
    assert holder.is_alive
    assert not Holder(holder.pid, holder.started_ticks - 1, holder.pid_namespace, holder.boot_id).is_alive
    assert not Holder(holder.pid, holder.started_ticks, holder.pid_namespace, "another boot").is_alive
    capped.process.kill()
    capped.process.wait(WITHIN_S)
    assert not holder.is_alive

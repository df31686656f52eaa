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
from workloads.caps import guardian
from workloads.caps import journal as caps_journal
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


def test_a_sweep_that_is_killed_is_outlived_by_its_guardian_which_puts_the_limits_back(driver, capped):
    capped.process.kill()
    capped.end()

    eventually(lambda: not driver.has_journal())
    assert driver.limits_w() == BEFORE_W
    assert f"process {capped.process.pid} had set it" in (driver.journals / caps_journal.LOG_FILE).read_text()


def test_a_zombie_that_nobody_reaps_is_dead_too(driver, capped):
    capped.process.kill()

    eventually(lambda: not driver.has_journal())
    assert psutil.Process(capped.process.pid).status() == psutil.STATUS_ZOMBIE
    assert driver.limits_w() == BEFORE_W


def test_the_signals_of_the_sweeps_own_group_do_not_reach_its_guardian(driver, capped):
    watching = capped.guardian
    assert os.getsid(watching.pid) == watching.pid
    os.killpg(capped.process.pid, signal.SIGKILL)

    eventually(lambda: not driver.has_journal())
    assert driver.limits_w() == BEFORE_W


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_guardian_watches_on_when_a_terminal_closes(driver, capped, number):
    os.kill(capped.guardian.pid, number)
    capped.process.kill()
    capped.end()

    eventually(lambda: not driver.has_journal())
    assert driver.limits_w() == BEFORE_W


def test_a_guardian_that_is_told_to_end_puts_the_limits_back_and_the_sweep_sets_no_other(driver, capped):
    capped.guardian.terminate()
    eventually(lambda: not driver.has_journal())
    assert driver.limits_w() == BEFORE_W
    capped.go_on()
    code, err = capped.end()

    assert code == 1
    assert "stands at 700 W though it was set to 300 W" in err
    assert driver.limits_w() == BEFORE_W


def test_a_guardian_tries_again_where_a_card_does_not_answer_at_first(driver, capped):
    driver.simulation.set_fault(1, Fault.LOST, on=True)
    capped.process.kill()
    capped.end()
    log = driver.journals / caps_journal.LOG_FILE
    eventually(lambda: "lost" in log.read_text())
    assert driver.has_journal()
    driver.simulation.set_fault(1, Fault.LOST, on=False)

    eventually(lambda: not driver.has_journal())
    assert driver.limits_w() == BEFORE_W


def test_no_guardian_is_left_when_a_sweep_has_ended(driver, capped):
    watching = capped.guardian
    capped.go_on()
    capped.go_on()
    capped.end()

    assert not watching.is_running()


def test_where_systemd_runs_the_guardian_has_a_scope_of_its_own(tmp_path, journal):
    said = tmp_path / "arguments"
    environ = program(
        tmp_path / "bin", "systemd-run", f'echo "$@" > {said}\nwhile [ "${{1#-}}" != "$1" ]; do shift; done\nexec "$@"'
    )
    watching = guardian.start_guardian(journal, environ, booted_by_systemd=tmp_path)
    watching.dismiss()

    arguments = said.read_text().split()
    assert {"--scope", "--collect", f"--unit=wattline-caps-{journal.stem}"} <= set(arguments)
    assert ("--user" in arguments) == (os.geteuid() != 0)
    assert arguments[-1] == str(journal)
    eventually(lambda: not journal.exists())


@pytest.mark.parametrize("text", ["echo 'Access denied' >&2; exit 1", "exit 0"])
def test_where_systemd_gives_none_the_guardian_runs_without(tmp_path, journal, text):
    environ = program(tmp_path / "bin", "systemd-run", text)
    watching = guardian.start_guardian(journal, environ, booted_by_systemd=tmp_path)

    assert watching.watches
    watching.dismiss()
    assert not watching.watches


def test_where_no_guardian_can_be_started_that_is_said_with_its_log(journal):
    journal.write_text("{}")

    with pytest.raises(CapsError, match=r"cannot be started, so none is set; see .*guardian\.log"):
        guardian.start_guardian(journal, os.environ)
    assert "cannot be read" in journal.with_name(caps_journal.LOG_FILE).read_text()


@pytest.fixture
def proc(tmp_path):
    """Two processes of one cgroup in the node's own namespaces."""
    for name in ("self", "4711"):
        (tmp_path / "proc" / name / "ns").mkdir(parents=True)
        (tmp_path / "proc" / name / "ns" / "pid").symlink_to("pid:[4026531836]")
        (tmp_path / "proc" / name / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_7/step_0\n")
    return tmp_path / "proc"


def test_on_a_node_of_its_own_there_is_no_doubt_about_a_guardian(proc):
    assert guardian.survival_warning(4711, FOLDER, {}, proc) is None


def test_slurm_would_kill_a_guardian_of_its_jobs_cgroup(proc):
    doubt = guardian.survival_warning(4711, FOLDER, {"SLURM_JOB_ID": "7"}, proc)

    assert doubt is not None
    assert doubt.startswith("Slurm kills the guardian with the job, and if the job is killed the caps stay")
    assert doubt.endswith("let its epilog call XDG_STATE_HOME=/scratch/state workloads caps restore")


def test_slurm_does_not_reach_a_guardian_in_a_cgroup_of_its_own(proc):
    (proc / "4711" / "cgroup").write_text("0::/system.slice/wattline-caps-1-2.scope\n")

    assert guardian.survival_warning(4711, FOLDER, {"SLURM_JOB_ID": "7"}, proc) is None


def test_a_container_that_is_killed_takes_its_guardian_along(proc):
    (proc / "self" / "ns" / "pid").unlink()
    (proc / "self" / "ns" / "pid").symlink_to("pid:[4026532201]")
    doubt = guardian.survival_warning(4711, FOLDER, {}, proc)

    assert doubt is not None
    assert "ends with this container" in doubt


def test_a_sweep_under_slurm_says_so_before_it_starts(driver):
    if shutil.which("systemd-run") and Path("/run/systemd/system").is_dir():
        pytest.skip("systemd gives the guardian a cgroup of its own here")
    sweep = driver.sweep("all", "300", SLURM_JOB_ID="7")

    assert sweep.process.stderr.readline().startswith("wattline: Slurm kills the guardian with the job")
    assert sweep.heard() == "ready"
    assert driver.limits_w() == BEFORE_W


def test_a_process_is_another_once_its_pid_has_come_again(driver, capped):
    holder = Holder(**driver.journal()["holder"])
    assert holder.is_alive
    assert not Holder(holder.pid, holder.started_ticks - 1, holder.pid_namespace, holder.boot_id).is_alive
    assert not Holder(holder.pid, holder.started_ticks, holder.pid_namespace, "another boot").is_alive
    capped.process.kill()
    capped.process.wait(WITHIN_S)
    assert not holder.is_alive

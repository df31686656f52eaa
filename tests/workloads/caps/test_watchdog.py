from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from tests.polling import eventually
from tests.workloads.caps_testbed import WITHIN_S
from wattline_exporter.simulation import Fault
from wattline_workloads.caps import journal as caps_journal
from wattline_workloads.caps import watchdog as caps_watchdog
from wattline_workloads.caps.gpu_set import CapsError
from wattline_workloads.caps.journal import InitialPowerLimit, Journal, JournalHolder

BEFORE_W = [700.0, 500.0]
FOLDER = Path("/scratch/state/wattline/caps")


@pytest.fixture
def capped_sweep(nvml_testbed):
    """Sweep that has set both GPUs to 300 W."""
    sweep = nvml_testbed.start_capped_sweep("all", "300", "400")
    assert nvml_testbed.limits_w() == [300, 300]
    return sweep


@pytest.fixture
def journal(nvml_testbed):
    """Path of a journal of this process, for the state file."""
    nvml_testbed.journals.mkdir(parents=True)
    gpu = nvml_testbed.simulation.gpus[0]
    journal_of_gpu = Journal(
        JournalHolder.this_process(),
        str(nvml_testbed.simulation.path),
        (InitialPowerLimit(gpu.uuid, "GPU 0", 700.0),),
    )
    return journal_of_gpu.write(nvml_testbed.journals)


def program(folder, name, text):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def test_caps_watchdog_restores_limits_of_killed_sweep(nvml_testbed, capped_sweep):
    capped_sweep.process.kill()
    capped_sweep.wait()

    eventually(lambda: not nvml_testbed.has_journal())
    assert nvml_testbed.limits_w() == BEFORE_W
    assert (
        f"the caps were set by process {capped_sweep.process.pid}"
        in (nvml_testbed.journals / caps_journal.LOG_FILE).read_text()
    )


def test_caps_watchdog_restores_limits_of_zombie(nvml_testbed, capped_sweep):
    capped_sweep.process.kill()

    eventually(lambda: not nvml_testbed.has_journal())
    eventually(lambda: psutil.Process(capped_sweep.process.pid).status() == psutil.STATUS_ZOMBIE)
    assert nvml_testbed.limits_w() == BEFORE_W


def test_caps_watchdog_ignores_signals_of_process_group(nvml_testbed, capped_sweep):
    watchdog = capped_sweep.watchdog
    assert os.getsid(watchdog.pid) == watchdog.pid
    os.killpg(capped_sweep.process.pid, signal.SIGKILL)

    eventually(lambda: not nvml_testbed.has_journal())
    assert nvml_testbed.limits_w() == BEFORE_W


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_caps_watchdog_survives_closed_terminal(nvml_testbed, capped_sweep, number):
    os.kill(capped_sweep.watchdog.pid, number)
    capped_sweep.process.kill()
    capped_sweep.wait()

    eventually(lambda: not nvml_testbed.has_journal())
    assert nvml_testbed.limits_w() == BEFORE_W


def test_caps_watchdog_terminated_restores_limits_and_stops_sweep(nvml_testbed, capped_sweep):
    capped_sweep.watchdog.terminate()
    eventually(lambda: not nvml_testbed.has_journal())
    assert nvml_testbed.limits_w() == BEFORE_W
    capped_sweep.advance()
    code, err = capped_sweep.wait()

    assert code == 1
    assert "has a power limit of 700 W although 300 W was set" in err
    assert nvml_testbed.limits_w() == BEFORE_W


def test_caps_watchdog_retries_unresponsive_gpu(nvml_testbed, capped_sweep):
    nvml_testbed.simulation.set_fault(1, Fault.LOST, on=True)
    capped_sweep.process.kill()
    capped_sweep.wait()
    log = nvml_testbed.journals / caps_journal.LOG_FILE
    eventually(lambda: "lost" in log.read_text())
    assert nvml_testbed.has_journal()
    nvml_testbed.simulation.set_fault(1, Fault.LOST, on=False)

    eventually(lambda: not nvml_testbed.has_journal())
    assert nvml_testbed.limits_w() == BEFORE_W


def test_caps_watchdog_ends_with_sweep(nvml_testbed, capped_sweep):
    watchdog = capped_sweep.watchdog
    capped_sweep.advance()
    capped_sweep.advance()
    capped_sweep.wait()

    assert not watchdog.is_running()


def test_caps_watchdog_with_systemd_has_separate_scope(tmp_path, journal):
    arguments_file = tmp_path / "arguments"
    environ = program(
        tmp_path / "bin",
        "systemd-run",
        f'echo "$@" > {arguments_file}\nwhile [ "${{1#-}}" != "$1" ]; do shift; done\nexec "$@"',
    )
    watchdog = caps_watchdog.start_caps_watchdog(journal, environ, booted_by_systemd=tmp_path)
    watchdog.close()

    arguments = arguments_file.read_text().split()
    assert {"--scope", "--collect", f"--unit=wattline-caps-{journal.stem}"} <= set(arguments)
    assert ("--user" in arguments) == (os.geteuid() != 0)
    assert arguments[-1] == str(journal)
    eventually(lambda: not journal.exists())


@pytest.mark.parametrize("text", ["echo 'Access denied' >&2; exit 1", "exit 0"])
def test_caps_watchdog_without_scope_starts(tmp_path, journal, text):
    environ = program(tmp_path / "bin", "systemd-run", text)
    watchdog = caps_watchdog.start_caps_watchdog(journal, environ, booted_by_systemd=tmp_path)

    assert watchdog.is_running
    watchdog.close()
    assert not watchdog.is_running


def test_caps_watchdog_failed_start_names_log(journal):
    journal.write_text("{}")

    with pytest.raises(
        CapsError, match=r"no cap set: cannot start the watchdog .*; see .*watchdog\.log"
    ):
        caps_watchdog.start_caps_watchdog(journal, os.environ)
    assert "cannot read journal" in journal.with_name(caps_journal.LOG_FILE).read_text()


@pytest.fixture
def proc(tmp_path):
    """/proc with two processes of one cgroup in the namespaces of the node."""
    for name in ("self", "4711"):
        (tmp_path / "proc" / name / "ns").mkdir(parents=True)
        (tmp_path / "proc" / name / "ns" / "pid").symlink_to("pid:[4026531836]")
        (tmp_path / "proc" / name / "cgroup").write_text(
            "0::/system.slice/slurmstepd.scope/job_7/step_0\n"
        )
    return tmp_path / "proc"


def test_survival_warning_on_plain_node_is_none(proc):
    assert caps_watchdog.survival_warning(4711, FOLDER, {}, proc) is None


def test_survival_warning_in_slurm_cgroup_names_slurm(proc):
    warning = caps_watchdog.survival_warning(4711, FOLDER, {"SLURM_JOB_ID": "7"}, proc)

    assert warning is not None
    assert warning.startswith(
        "Slurm kills the watchdog with the job, so the caps of a killed job stay set"
    )
    assert warning.endswith(
        "call this in the epilog: XDG_STATE_HOME=/scratch/state workloads caps restore"
    )


def test_survival_warning_separate_cgroup_is_none(proc):
    (proc / "4711" / "cgroup").write_text("0::/system.slice/wattline-caps-1-2.scope\n")

    assert caps_watchdog.survival_warning(4711, FOLDER, {"SLURM_JOB_ID": "7"}, proc) is None


def test_survival_warning_in_container_names_volume(proc):
    (proc / "self" / "ns" / "pid").unlink()
    (proc / "self" / "ns" / "pid").symlink_to("pid:[4026532201]")
    warning = caps_watchdog.survival_warning(4711, FOLDER, {}, proc)

    assert warning is not None
    assert "ends with this container" in warning


def test_caps_under_slurm_warn_before_start(nvml_testbed):
    if shutil.which("systemd-run") and Path("/run/systemd/system").is_dir():
        pytest.skip("systemd gives the watchdog a separate cgroup on this machine")
    sweep = nvml_testbed.start_sweep("all", "300", SLURM_JOB_ID="7")

    assert sweep.process.stderr.readline().startswith(
        "wattline: Slurm kills the watchdog with the job"
    )
    assert sweep.read_status() == "ready"
    assert nvml_testbed.limits_w() == BEFORE_W


def test_holder_with_reused_pid_is_not_alive(nvml_testbed, capped_sweep):
    holder = JournalHolder(**nvml_testbed.journal()["holder"])
    assert holder.is_alive
    assert not JournalHolder(
        holder.pid, holder.started_ticks - 1, holder.pid_namespace, holder.boot_id
    ).is_alive
    assert not JournalHolder(
        holder.pid, holder.started_ticks, holder.pid_namespace, "another boot"
    ).is_alive
    capped_sweep.process.kill()
    capped_sweep.process.wait(WITHIN_S)
    assert not holder.is_alive

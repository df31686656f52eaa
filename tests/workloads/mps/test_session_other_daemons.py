"""Search for MPS daemons of other users, which capture jobs that run without MPS."""

import pytest

from wattline_workloads.mps import session as mps_others
from wattline_workloads.plans import step_runner as tenants

PIPES = "CUDA_MPS_PIPE_DIRECTORY"


@pytest.fixture
def proc(tmp_path):
    """/proc with a daemon for GPU-a and GPU-b with its pipes in /run/mps, and with a control
    client.
    """
    for pid, arguments in ((4711, "-d"), (4712, "")):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "cmdline").write_text(f"/usr/bin/nvidia-cuda-mps-control\0{arguments}\0")
        (folder / "environ").write_text(
            f"PATH=/bin\0{PIPES}=/run/mps\0CUDA_VISIBLE_DEVICES=GPU-a,GPU-b\0"
        )
    return tmp_path / "proc"


def test_interception_warning_names_reachable_daemon(proc):
    warning = mps_others.interception_warning({PIPES: "/run/mps/"}, ["GPU-b"], proc)

    assert "the jobs use MPS, although the plan sets mps: false" in warning
    assert "(pid 4711) serves /run/mps" in warning


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [({PIPES: "/nonexistent"}, ["GPU-a"]), ({}, ["GPU-a"]), ({PIPES: "/run/mps"}, ["GPU-c"])],
)
def test_interception_warning_unreachable_daemon_is_none(proc, environ, gpus):
    assert mps_others.interception_warning(environ, gpus, proc) is None


def test_list_mps_daemons_unreadable_environment_uses_default(proc):
    (proc / "4711" / "environ").unlink()

    assert "serves /tmp/nvidia-mps" in mps_others.interception_warning({}, ["GPU-z"], proc)
    assert mps_others.interception_warning({PIPES: "/run/mps"}, ["GPU-z"], proc) is None


def test_plan_step_without_mps_has_interception_warning(proc, tmp_path):
    with tenants.open_job_environment(
        tmp_path, {PIPES: "/run/mps"}, ["GPU-a"], wanted=False, proc=proc
    ) as intercepted:
        assert "pid 4711" in intercepted.mps_warning
    with tenants.open_job_environment(tmp_path, {}, ["GPU-a"], wanted=False, proc=proc) as separate:
        assert separate.mps_warning is None

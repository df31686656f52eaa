"""Owners of processes on GPUs, from a /proc of files."""

import pytest

from tests.fakes.cgroup_tree import ID
from wattline.contract.identity import OWNER_KINDS
from wattline_exporter.runs.discovery.owners import OwnedProcess, ProcessOwners, users_of_gpus

JOB = "/slurm/uid_1000/job_4711"


@pytest.fixture
def proc(tmp_path):
    return tmp_path


def add_process(proc, pid, cgroup, started_ticks=100):
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    rest = ["S", "1", *["0"] * 17, str(started_ticks), *["0"] * 30]
    rest[17] = "1"
    (folder / "stat").write_text(f"{pid} (python) {' '.join(rest)}\n")
    (folder / "cgroup").write_text(cgroup)


def owner_of(owners, pid):
    return owners.read([pid])[pid]


def test_process_in_job_of_cgroup_v1_has_the_job(proc):
    add_process(
        proc,
        7,
        f"4:memory:/\n3:freezer:{JOB}/step_0\n1:name=systemd:/system.slice/slurmd.service\n0::/\n",
    )
    owner = owner_of(ProcessOwners(OWNER_KINDS, proc), 7).owner
    assert (owner.kind, owner.id, owner.path) == ("slurm", "4711", JOB)


def test_process_has_the_outermost_owner_of_an_enabled_kind(proc):
    add_process(proc, 7, f"0::{JOB}/step_0/docker-{ID}.scope\n")
    assert owner_of(ProcessOwners(["container", "user"], proc), 7).owner.kind == "container"
    assert owner_of(ProcessOwners(["container", "slurm"], proc), 7).owner.kind == "slurm"


def test_user_is_known_by_cgroup_or_by_user_id(proc):
    add_process(proc, 7, "0::/user.slice/user-1000.slice/session-3.scope\n")
    add_process(proc, 8, "0::/\n")
    owners = ProcessOwners(["user"], proc)
    assert owner_of(owners, 7).owner.id == "1000"
    assert owner_of(owners, 8).owner.id == str((proc / "8").stat().st_uid)


def test_process_without_owner_or_in_another_namespace_is_unresolved(proc):
    add_process(proc, 7, "0::/machine.slice/machine-vm.scope\n")
    owners = ProcessOwners(["slurm"], proc)
    assert owner_of(owners, 7).unresolved == "no_owner"
    for _ in range(2):
        assert owner_of(owners, 99).unresolved == "not_visible"
    add_process(proc, 99, f"0::{JOB}\n")
    assert owner_of(owners, 99).owner.kind == "slurm"


def test_reused_pid_is_read_again(proc):
    add_process(proc, 7, f"0::{JOB}\n")
    owners = ProcessOwners(["slurm", "container"], proc)
    assert owner_of(owners, 7).owner.kind == "slurm"
    assert owners.read([]) == {}
    add_process(proc, 7, f"0::/docker/{ID}\n", started_ticks=900)
    again = owner_of(owners, 7)
    assert (again.owner.kind, again.process.started_s) == ("container", 9.0)


def test_ended_process_that_the_driver_still_lists_has_no_owner(proc):
    add_process(proc, 7, f"0::{JOB}\n")
    owners = ProcessOwners(["slurm"], proc)
    assert owner_of(owners, 7).owner.kind == "slurm"
    (proc / "7" / "stat").unlink()
    for _ in range(2):
        assert owner_of(owners, 7) == OwnedProcess(7)
    add_process(proc, 7, f"0::{JOB}\n", started_ticks=900)
    assert owner_of(owners, 7).process.started_s == 9.0
    add_process(proc, 8, f"0::{JOB}\n")
    owners.read([8])
    add_process(proc, 8, f"0::{JOB}\n", started_ticks=900)
    assert owner_of(owners, 8).process.started_s == 9.0


def test_uses_of_gpus_by_owner_name_those_with_processes_of_other_owners(proc):
    for pid, cgroup in ((7, JOB), (8, JOB), (9, f"/docker/{ID}")):
        add_process(proc, pid, f"0::{cgroup}\n")
    owned = ProcessOwners(["slurm", "container"], proc).read([7, 8, 9, 99])
    job, box = owned[7].owner, owned[9].owner
    using = users_of_gpus({"GPU-1": [7, 99], "GPU-2": [7, 8], "GPU-3": [8, 9]}, owned)
    assert {
        owner: sorted(process.pid for process in use.processes) for owner, use in using.items()
    } == {
        job: [7, 8],
        box: [9],
    }
    assert {owner: list(use.gpus) for owner, use in using.items()} == {
        job: ["GPU-1", "GPU-2", "GPU-3"],
        box: ["GPU-3"],
    }
    assert {owner: use.shared for owner, use in using.items()} == {job: {"GPU-3"}, box: {"GPU-3"}}

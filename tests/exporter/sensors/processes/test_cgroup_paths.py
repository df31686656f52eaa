"""Owners of processes by the paths of their cgroups."""

import pytest

from tests.fakes.cgroup_tree import (
    ID,
    OTHER_ID,
    UID,
    CgroupTree,
    docker_systemd,
    kubernetes_in_docker,
    podman_rootless,
    slurm,
)
from wattline_exporter.sensors.processes.cgroup_paths import owners_of_path


def kinds_and_ids(path):
    return [(owner.kind, owner.id) for owner in owners_of_path(path)]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", []),
        ("/machine.slice/machine-qemu.scope", []),
        ("/slurm/uid_1000/job_123/step_batch/task_0", [("slurm", "123")]),
        ("/system.slice/ollama.service", [("service", "ollama.service")]),
        ("/user.slice/user-1000.slice/session-3.scope", [("user", "1000")]),
        (f"/docker/{OTHER_ID}/docker/{ID}", [("container", OTHER_ID)]),
        (f"/docker/{ID}/system.slice/web.service", [("container", ID)]),
    ],
)
def test_owners_of_path_returns_the_outermost_of_each_kind(path, expected):
    assert kinds_and_ids(path) == expected


def test_owners_of_path_orders_job_before_container(tmp_path):
    path = f"{slurm(CgroupTree(tmp_path))}/step_0/user/docker-{ID}.scope"
    job, container = owners_of_path(path)
    assert (job.kind, job.id, job.path) == (
        "slurm",
        "4711",
        "/system.slice/slurmstepd.scope/job_4711",
    )
    assert (container.kind, container.path) == ("container", path)


def test_owners_of_path_in_kubernetes_in_docker_begins_with_the_pod(tmp_path):
    pod, container = owners_of_path(kubernetes_in_docker(CgroupTree(tmp_path)))
    assert (pod.kind, pod.id) == ("kubernetes", UID)
    assert pod.path.endswith(f"pod{UID.replace('-', '_')}.slice")
    assert (container.kind, container.id) == ("container", OTHER_ID)


def test_owners_of_path_of_rootless_container_has_container_and_user(tmp_path):
    assert kinds_and_ids(podman_rootless(CgroupTree(tmp_path))) == [
        ("container", ID),
        ("user", "1000"),
    ]


def test_owners_of_path_below_the_owner_has_the_owners_path(tmp_path):
    path = docker_systemd(CgroupTree(tmp_path))
    assert [owner.path for owner in owners_of_path(f"{path}/init.scope")] == [path]

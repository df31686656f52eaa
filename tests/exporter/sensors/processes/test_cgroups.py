from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.cgroup_tree import (
    CONTAINERS,
    ID,
    OTHER_ID,
    UID,
    CgroupTree,
    V1Tree,
    docker_cgroupfs,
    docker_systemd,
    kubernetes_cgroupfs,
    kubernetes_containerd_systemd,
    kubernetes_in_docker,
    slurm,
)
from wattline_exporter.sensors.processes import cgroups
from wattline_exporter.sensors.processes.cgroup_paths import parse_cgroup_path
from wattline_exporter.sensors.processes.cgroups import resolve_cgroup


@pytest.fixture
def tree(tmp_path):
    return CgroupTree(tmp_path / "cgroup")


@pytest.mark.parametrize("layout", CONTAINERS, ids=lambda layout: layout.__name__)
def test_resolve_container_by_id_prefix_in_every_layout(tree, layout):
    path = layout(tree)
    assert resolve_cgroup(f"container:{ID[:12]}", tree.root) == path
    assert resolve_cgroup(f"container:{ID}", tree.root) == path
    parsed = parse_cgroup_path(path)
    assert (parsed.kind, parsed.id, parsed.container) == ("container", ID, ID)
    assert parsed.text == f"container:{ID[:12]}"


@pytest.mark.parametrize(
    "layout", [kubernetes_containerd_systemd, kubernetes_cgroupfs, kubernetes_in_docker]
)
def test_resolve_pod_by_uid_and_container_has_its_pod(tree, layout):
    path = layout(tree)
    assert resolve_cgroup(f"pod:{UID}", tree.root) == str(Path(path).parent)
    assert parse_cgroup_path(path).pod_uid == UID
    assert parse_cgroup_path(str(Path(path).parent)).kind == "pod"
    assert parse_cgroup_path(str(Path(path).parent)).text == f"pod:{UID}"


def test_resolve_static_pod_by_hash():
    uid = "0123456789abcdef" * 2
    assert (
        parse_cgroup_path(
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice"
        ).id
        == uid
    )


def test_resolve_container_id_with_runtime_prefix(tree):
    path = kubernetes_cgroupfs(tree)
    assert resolve_cgroup(f"container:containerd://{ID}", tree.root) == path


def test_resolve_container_ignores_conmon_scopes():
    for name in (f"libpod-conmon-{ID}.scope", f"crio-conmon-{ID}.scope", f"conmon-{ID}"):
        assert parse_cgroup_path(f"/machine.slice/{name}").container == ""


def test_resolve_slurm_job_and_step_by_number(tree):
    path = slurm(tree)
    slurm(tree, job=47)
    assert resolve_cgroup("slurm:4711", tree.root) == path
    assert resolve_cgroup("slurm:4711.0", tree.root) == f"{path}/step_0"
    assert resolve_cgroup("slurm:4711.batch", tree.root) == f"{path}/step_batch"
    task = parse_cgroup_path(f"{path}/step_0/user/task_0")
    assert (task.kind, task.id, task.job, task.step) == ("slurm", "4711.0", "4711", "0")
    assert parse_cgroup_path(path).text == "slurm:4711"


@pytest.mark.parametrize(
    ("path", "identity"),
    [
        ("/slurm/uid_1000/job_123/step_batch/task_0", ("slurm", "123.batch")),
        ("/slurm_node7/uid_1000/job_123", ("slurm", "123")),
        ("/system.slice/node7_slurmstepd.scope/job_9/step_extern/user", ("slurm", "9.extern")),
        ("/system.slice/wattline.service", ("service", "wattline.service")),
        ("/user.slice/user-1000.slice/session-3.scope", ("user", "1000")),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/app-code.service",
            ("user", "1000"),
        ),
        ("/", ("other", "/")),
        ("/ci/job_7", ("other", "/ci/job_7")),
        (f"/system.slice/slurmstepd.scope/job_5/step_0/user/docker-{ID}.scope", ("container", ID)),
        (f"/docker/{OTHER_ID}/docker/{ID}", ("container", ID)),
        (f"/libpod_parent/{OTHER_ID}", ("pod", OTHER_ID)),
        (f"/libpod_parent/{OTHER_ID}/libpod-{ID}", ("container", ID)),
    ],
)
def test_parse_cgroup_path_returns_the_owner(path, identity):
    parsed = parse_cgroup_path(path)
    assert (parsed.kind, parsed.id) == identity


def test_parse_cgroup_path_of_container_in_slurm_job_has_the_job():
    parsed = parse_cgroup_path(
        f"/system.slice/slurmstepd.scope/job_5/step_0/user/docker-{ID}.scope"
    )
    assert (parsed.job, parsed.step) == ("5", "0")


def test_resolve_path_returns_it_unchanged(tree):
    tree.group("/training/llm", 301)
    assert resolve_cgroup("/training/llm", tree.root) == "/training/llm"
    assert resolve_cgroup("/training/llm/", tree.root) == "/training/llm"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/not/there", "no cgroup '/not/there' below .*; see: cat /proc/PID/cgroup"),
        ("/docker/../docker", "no cgroup"),
        ("/a\0b", "no cgroup"),
        ("/" + "a" * 5_000, "no cgroup"),
        ("docker", "'docker' names no cgroup; it is /PATH, slurm:JOB"),
        ("", "names no cgroup"),
        ("container:4f1c0d", "at least 12 of its 64 hex digits; see: docker ps --no-trunc"),
        ("container:web-frontend", "at least 12"),
        ("container:000000000000", "sees no cgroup of container:000000000000; see: docker ps"),
        ("slurm:job_5", "give the job's number"),
        ("slurm:5", "sees no cgroup of slurm:5; see: squeue"),
        ("slurm:4711.7", "sees no cgroup of slurm:4711.7"),
        (f"pod:{UID}", "sees no cgroup of pod:.*; see: kubectl get pod"),
    ],
)
def test_resolve_unknown_name_raises_error_with_remedy(tree, text, reason):
    docker_systemd(tree)
    slurm(tree)
    with pytest.raises(ValueError, match=reason):
        resolve_cgroup(text, tree.root)


def test_resolve_ambiguous_name_raises_error_with_both_paths(tree):
    one = slurm(tree, scope="node1_slurmstepd.scope")
    other = slurm(tree, scope="node2_slurmstepd.scope")
    with pytest.raises(ValueError, match="slurm:4711 is not one cgroup but 2") as caught:
        resolve_cgroup("slurm:4711", tree.root)
    assert one in str(caught.value)
    assert other in str(caught.value)


def test_resolve_ambiguous_container_prefix_raises_error(tree):
    tree.group(f"/docker/{ID[:12]}{'0' * 52}", 1)
    tree.group(f"/docker/{ID[:12]}{'1' * 52}", 2)
    with pytest.raises(ValueError, match="not one cgroup but 2"):
        resolve_cgroup(f"container:{ID[:12]}", tree.root)


def test_resolve_on_hybrid_host_uses_unified(tmp_path):
    for controller in ("cpu", "memory"):
        (tmp_path / controller).mkdir()
    tree = CgroupTree(tmp_path / "unified")
    path = docker_cgroupfs(tree)
    tree.use(path, 12.5)
    assert resolve_cgroup(f"container:{ID[:12]}", tmp_path) == path
    assert cgroups.pids_in_cgroup(path, tmp_path) == {101}
    assert cgroups.cgroup_cpu_seconds(path, tmp_path) == 12.5
    assert (
        cgroups.describe_visible_cgroups(tmp_path)
        == f"all of the host's (v1 and v2), at {tmp_path}"
    )


@pytest.mark.parametrize("has_unified", [False, True])
def test_resolve_on_cgroup_v1_finds_group_in_its_hierarchies(tmp_path, has_unified):
    tree = V1Tree(tmp_path)
    if has_unified:
        CgroupTree(tmp_path / "unified")
    job = "/slurm/uid_1000/job_4711"
    tree.group(f"{job}/step_0/task_0", 201, controllers=("freezer", "cpuacct"), usage_s=0.0)
    tree.group(job, controllers=("freezer", "cpuacct"), usage_s=7.25)
    tree.group(f"/docker/{ID}", 101, controllers=("cpuacct", "memory"), usage_s=1.5)
    assert resolve_cgroup("slurm:4711", tmp_path) == job
    assert resolve_cgroup("slurm:4711.0", tmp_path) == f"{job}/step_0"
    assert resolve_cgroup(f"container:{ID[:12]}", tmp_path) == f"/docker/{ID}"
    assert cgroups.pids_in_cgroup(job, tmp_path) == {201}
    assert cgroups.cgroup_cpu_seconds(job, tmp_path) == 7.25
    assert cgroups.is_cgroup_populated(job, tmp_path)
    tree.group(f"{job}/step_0/task_0", controllers=("freezer", "cpuacct"))
    assert not cgroups.is_cgroup_populated(job, tmp_path)
    kind = "v1 and v2" if has_unified else "v1"
    assert (
        cgroups.describe_visible_cgroups(tmp_path) == f"all of the host's ({kind}), at {tmp_path}"
    )


def test_resolve_without_cgroup_file_system_raises_error(tmp_path):
    with pytest.raises(
        ValueError, match=r"there is no cgroup file system at .*mount the host's there"
    ):
        resolve_cgroup("/a", tmp_path)


def test_describe_visible_cgroups_in_container_reports_own_only(tmp_path):
    tree = CgroupTree(tmp_path, seen_from_inside=True)
    assert cgroups.describe_visible_cgroups(tree.root).startswith(
        "only its own container's cgroups"
    )
    with pytest.raises(
        ValueError, match=r"only its own container's cgroups.*docker run --cgroupns=host"
    ):
        resolve_cgroup(f"container:{ID[:12]}", tree.root)


def test_pids_in_cgroup_includes_subgroups_not_other_namespaces(tree):
    path = slurm(tree)
    tree.group(f"{path}/step_1/user/task_0", 0, 0, 205)
    assert cgroups.pids_in_cgroup(path, tree.root) == {200, 201, 202, 203, 204, 205}


def test_is_cgroup_populated_counts_processes_of_other_namespaces(tree):
    tree.group("/a", 0)
    tree.group("/b")
    assert cgroups.is_cgroup_populated("/a", tree.root)
    assert not cgroups.is_cgroup_populated("/b", tree.root)
    assert not cgroups.is_cgroup_populated("/gone", tree.root)


def test_cgroup_hierarchies_are_read_again_each_five_seconds(tmp_path):
    (tmp_path / "memory").mkdir()
    (tmp_path / "cpuacct").mkdir()
    assert cgroups.cgroup_hierarchies(tmp_path, clock=lambda: 10.0) == (
        tmp_path / "cpuacct",
        tmp_path / "memory",
    )
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified/cgroup.controllers").touch()  # mounted later
    assert len(cgroups.cgroup_hierarchies(tmp_path, clock=lambda: 14.9)) == 2
    assert cgroups.cgroup_hierarchies(tmp_path, clock=lambda: 15.0)[0] == tmp_path / "unified"


def _writable_top() -> Path | None:
    try:
        top = cgroups.cgroup_hierarchies()[0]
    except ValueError:
        return None
    return top if os.geteuid() == 0 and os.access(top, os.W_OK) else None


@pytest.mark.skipif(_writable_top() is None, reason="needs root and a writable cgroup v2")
def test_cgroup_cpu_seconds_include_short_lived_children():
    top = _writable_top()
    folder = top / f"wattline-test-{os.getpid()}"
    folder.mkdir()
    path = f"/{folder.name}"
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    script = (
        f"read _ && {sys.executable} -c '{burn}' && {sys.executable} -c '{burn}' && echo "
        "done && read _"
    )
    shell = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        (folder / "cgroup.procs").write_text(f"{shell.pid}\n")
        assert resolve_cgroup(path) == path
        before_s = cgroups.cgroup_cpu_seconds(path)
        shell.stdin.write(b"\n")
        shell.stdin.flush()
        assert shell.stdout.readline() == b"done\n"
        assert cgroups.pids_in_cgroup(path) == {shell.pid}
        assert cgroups.is_cgroup_populated(path)
        assert (
            cgroups.cgroup_cpu_seconds(path) - before_s >= 0.4
        )  # 2 x 0.2 s, and what starting them took
    finally:
        shell.communicate(b"\n")
        folder.rmdir()
    assert not cgroups.has_cgroup(path)


@given(st.text(max_size=200) | st.from_regex(r"(/|slurm:|container:|pod:)[^\n]*"))
def test_resolve_any_text_returns_path_or_value_error(text):
    parse_cgroup_path(text)
    with TemporaryDirectory() as folder:
        tree = CgroupTree(Path(folder))
        docker_systemd(tree)
        try:
            path = resolve_cgroup(text, tree.root)
        except ValueError as error:
            assert str(error)  # noqa: PT017  # it may also be a path
        else:
            assert cgroups.has_cgroup(path, tree.root)

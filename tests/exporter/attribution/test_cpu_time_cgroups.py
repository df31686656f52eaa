"""CPU time of runs that have a cgroup, alone and with trees of processes."""

from __future__ import annotations

import pytest

from tests.exporter.attribution.cpu_usage_node import Node


@pytest.fixture(params=[True, False], ids=["with the kernel's lists", "without"])
def node(tmp_path, request):
    return Node(tmp_path, has_children_lists=request.param)


def test_cpu_usage_cgroup_counts_unscanned_processes(node):
    node.groups.group("/job", 10, usage_s=1_000)
    node.run("a", cgroup="/job")
    assert node.cpu_s() == {"a": 0.0}
    node.groups.use("/job", 1_003.25)
    result = node.read().runs["a"]
    assert (result.cpu_s, result.pids) == (pytest.approx(3.25), {10})


def test_cpu_usage_recreated_cgroup_counts_from_0_on_top(node):
    folder = node.groups.group("/job", 10, usage_s=5)
    node.run("a", cgroup="/job")
    node.read()
    node.groups.use("/job", 7)
    node.read()
    stat = (folder / "cpu.stat").read_text()
    (folder / "cpu.stat").unlink()
    assert node.cpu_s() == {"a": pytest.approx(2)}
    (folder / "cpu.stat").write_text(stat)
    node.groups.use("/job", 0.5)
    assert node.cpu_s() == {"a": pytest.approx(2.5)}


def test_cpu_usage_nested_cgroups_inner_run_has_its_time(node):
    node.groups.group("/job", usage_s=10)
    node.groups.group("/job/step", 11, usage_s=4)
    node.groups.group("/job/other", 12, usage_s=1)
    node.run("outer", cgroup="/job")
    node.run("inner", cgroup="/job/step")
    node.read()
    node.groups.use("/job", 15)  # 3 of them in the step
    node.groups.use("/job/step", 7)
    result = node.read().runs
    assert (result["outer"].cpu_s, result["inner"].cpu_s) == (pytest.approx(2), pytest.approx(3))
    assert (result["outer"].pids, result["inner"].pids) == ({12}, {11})
    assert result["outer"].family == {11, 12}


def test_cpu_usage_tree_with_root_in_cgroup_is_inside_it(node):
    node.groups.group("/slurm/job_1", 10, 11, 12, usage_s=100)
    job = node.proc.add(11)
    rank = node.proc.add(12, parent=11)
    node.run("job", cgroup="/slurm/job_1")
    node.run("run", 11)
    node.read()
    job.own, rank.own = 50, 150
    node.groups.use("/slurm/job_1", 105)
    result = node.read().runs
    assert (result["job"].cpu_s, result["run"].cpu_s) == (pytest.approx(3), pytest.approx(2))
    assert (result["job"].pids, result["run"].pids) == ({10}, {11, 12})


def test_cpu_usage_cgroup_started_by_tree_is_inside_it(node):
    script = node.proc.add(10)
    contained = node.proc.add(11, parent=10)
    node.groups.group("/docker/x", 11, usage_s=50)
    node.run("script", 10)
    node.run("container", cgroup="/docker/x")
    node.read()
    script.own, contained.own = 30, 200
    node.groups.use("/docker/x", 52.5)
    result = node.read().runs
    assert (result["script"].cpu_s, result["container"].cpu_s) == (
        pytest.approx(0.3),
        pytest.approx(2.5),
    )
    assert (result["script"].pids, result["container"].pids) == ({10}, {11})
    node.proc.remove(11)
    node.groups.group("/docker/x", usage_s=53)
    script.waited = (
        250  # CPU time in the container does not belong to the script, even if it waited for it
    )
    assert node.cpu_s() == {"script": pytest.approx(0.3), "container": pytest.approx(3)}


def test_cpu_usage_process_in_own_cgroup_counts_once(node):
    process = node.proc.add(10)
    node.groups.group("/job", 10, usage_s=1)
    outside = node.proc.add(20)
    node.run("a", 10, 20, cgroup="/job")
    node.read()
    process.own, outside.own = 100, 50
    node.groups.use("/job", 2)
    result = node.read().runs["a"]
    assert (result.cpu_s, result.pids) == (pytest.approx(1.5), {10, 20})


def test_cpu_usage_lagging_cgroup_counter_adds_nothing(node):
    node.groups.group("/job", 10, usage_s=1)
    process = node.proc.add(10)
    node.run("job", cgroup="/job")
    node.run("run", 10)
    node.read()
    process.own = 11
    node.groups.use("/job", 1.104)
    assert node.cpu_s() == {"job": 0.0, "run": pytest.approx(0.11)}
    node.groups.use("/job", 1.116)
    assert node.cpu_s() == {"job": pytest.approx(0.006), "run": pytest.approx(0.11)}

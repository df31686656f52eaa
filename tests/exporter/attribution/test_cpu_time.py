from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.exporter.attribution.cpu_usage_node import Node
from wattline_exporter.attribution.cpu_time import CpuUsageReader, ScannedRun
from wattline_exporter.sensors.processes.procfs import ProcessKey, find_process


@pytest.fixture(params=[True, False], ids=["with the kernel's lists", "without"])
def node(tmp_path, request):
    return Node(tmp_path, has_children_lists=request.param)


def test_cpu_usage_starts_at_0_and_grows_with_processes(node):
    root = node.proc.add(10, own=500, waited=900)
    child = node.proc.add(11, parent=10, own=300)
    node.run("a", 10)
    assert node.cpu_s() == {"a": 0.0}
    root.own += 20
    child.own += 30
    assert node.cpu_s() == {"a": pytest.approx(0.5)}


@pytest.mark.parametrize("client_root", [10, 11, 12])
@pytest.mark.parametrize("order", [("client", "found"), ("found", "client")])
def test_cpu_usage_run_of_client_is_inside_discovered_run(node, client_root, order):
    """The discovered run has the process on the GPU, 11; the client began its run in it, above it,
    or below it.
    """
    for pid, parent in ((10, 1), (11, 10), (12, 11)):
        node.proc.add(pid, parent=parent)
    for run_id in order:
        node.run(run_id, client_root if run_id == "client" else 11, is_discovered=run_id == "found")

    runs = node.read().runs

    assert runs["client"].pids == {pid for pid in (10, 11, 12) if pid >= client_root}
    assert runs["found"].pids == {11, 12} - runs["client"].pids
    assert runs["found"].family == {11, 12}


def test_cpu_usage_waited_for_child_is_not_counted_twice(node):
    root = node.proc.add(10)
    node.run("a", 10)
    node.read()
    node.proc.add(11, parent=10, started=10_500, own=40)
    assert node.cpu_s() == {"a": pytest.approx(0.4)}
    node.proc.remove(11)
    root.waited = 70  # it used 300 ms more before its end
    assert node.cpu_s() == {"a": pytest.approx(0.7)}
    assert node.cpu_s() == {"a": pytest.approx(0.7)}


def test_cpu_usage_short_lived_children_count_once_waited_for(node):
    root = node.proc.add(10)
    node.run("a", 10)
    node.read()
    root.waited = 150
    assert node.cpu_s() == {"a": pytest.approx(1.5)}


def test_cpu_usage_zombie_counts_without_being_a_member(node):
    root = node.proc.add(10)
    node.run("a", 10)
    node.read()
    node.proc.add(11, parent=10, started=10_500, own=40, state="Z")
    result = node.read().runs["a"]
    assert (result.cpu_s, result.pids) == (pytest.approx(0.4), {10})
    node.proc.remove(11)
    root.waited = 40
    assert node.cpu_s() == {"a": pytest.approx(0.4)}


def test_cpu_usage_child_never_waited_for_stays_counted(node):
    root = node.proc.add(10)
    node.run("a", 10)
    node.read()
    node.proc.add(11, parent=10, started=10_500, own=40)
    node.read()
    node.proc.remove(11)  # its parent ignores SIGCHLD
    assert node.cpu_s() == {"a": pytest.approx(0.4)}
    node.read()
    root.waited = 25  # it has waited for its children
    assert node.cpu_s() == {"a": pytest.approx(0.65)}


def test_cpu_usage_orphan_stays_with_the_run_after_its_root_ends(node):
    node.proc.add(10, own=10)
    node.run("a", 10)
    node.read()
    orphan = node.proc.add(11, parent=10, started=10_500, own=40)
    node.read()
    node.proc.remove(10)
    orphan.parent, orphan.own = 1, 60
    grandchild = node.proc.add(12, parent=11, started=10_700, own=5)
    result = node.read().runs["a"]
    assert (result.cpu_s, result.pids) == (pytest.approx(0.65), {11, 12})
    grandchild.own = 15
    assert node.cpu_s() == {"a": pytest.approx(0.75)}


def test_cpu_usage_reused_pid_does_not_belong_to_the_run(node):
    node.proc.add(10, started=1_000)
    node.run("a", 10)
    node.read()
    node.proc.remove(10)
    node.proc.add(10, started=10_200, own=500)
    result = node.read().runs["a"]
    assert (result.cpu_s, result.pids) == (0.0, frozenset())


def test_cpu_usage_before_a_process_was_added_does_not_count(node):
    node.proc.add(10)
    node.run("a", 10)
    node.read()
    late = node.proc.add(20, started=10_500, own=7_000)
    node.run("a", 10, 20)
    assert node.cpu_s() == {"a": 0.0}
    late.own += 10
    assert node.cpu_s() == {"a": pytest.approx(0.1)}


def test_cpu_usage_nested_trees_inner_run_has_its_processes(node):
    shell = node.proc.add(10)
    job = node.proc.add(11, parent=10)
    rank = node.proc.add(12, parent=11)
    node.run("outer", 10)
    node.run("inner", 11)
    node.read()
    shell.own, job.own, rank.own = 10, 20, 40
    result = node.read().runs
    assert (result["outer"].cpu_s, result["inner"].cpu_s) == (
        pytest.approx(0.1),
        pytest.approx(0.6),
    )
    assert (result["outer"].pids, result["inner"].pids) == ({10}, {11, 12})
    assert (result["outer"].family, result["inner"].family) == ({10, 11, 12}, {11, 12})


def test_cpu_usage_last_moments_of_inner_tree_belong_to_it(node):
    shell = node.proc.add(10)
    node.proc.add(11, parent=10)
    node.run("outer", 10)
    node.run("inner", 11)
    node.read()
    node.proc.processes[11].own = 50
    node.read()
    node.proc.remove(11)
    shell.waited = 80
    assert node.cpu_s() == {"outer": 0.0, "inner": pytest.approx(0.8)}


def test_cpu_usage_after_inner_run_ends_outer_has_its_processes(node):
    node.proc.add(10)
    job = node.proc.add(11, parent=10)
    node.run("outer", 10)
    node.run("inner", 11)
    node.read()
    job.own = 50
    node.read()
    del node.runs["inner"]
    job.own = 70
    assert node.cpu_s() == {"outer": pytest.approx(0.2)}


def test_cpu_usage_shared_process_belongs_to_the_latest_run(node):
    process = node.proc.add(10)
    node.run("first", 10)
    node.run("second", 10)
    node.read()
    process.own = 100
    assert node.cpu_s() == {"first": 0.0, "second": pytest.approx(1.0)}


def test_cpu_usage_reports_node_time_and_scan_time(node):
    node.proc.busy(12_345, idle=99, steal=3)
    result = node.read()
    assert (result.at_s, result.busy_s, result.runs) == (101.0, pytest.approx(123.45), {})


BURN = """
import os, resource, sys, time
def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until: pass
def forked(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return pid
def used():
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in of)
sys.stdin.readline()
start = used()
for _ in range(5):  # too short-lived for a scan
    os.waitpid(forked(lambda: burn(0.03)), 0)
nested = forked(lambda: os.waitpid(forked(lambda: burn(0.1)), 0))
burn(0.1)
print('half', flush=True)
sys.stdin.readline()
os.waitpid(nested, 0)
burn(0.05)
print(used() - start, flush=True)
sys.stdin.readline()
"""


def test_cpu_usage_of_real_processes_equals_rusage():
    shell = subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def say():
        shell.stdin.write("\n")
        shell.stdin.flush()
        return shell.stdout.readline().strip()

    usage = CpuUsageReader()
    runs = {"a": ScannedRun((find_process(shell.pid),))}
    try:
        assert usage.read(runs).runs["a"].pids == {shell.pid}
        busy_s = usage.read(runs).busy_s
        assert say() == "half"
        half = usage.read(runs).runs["a"].cpu_s
        true_s = float(say())
        result = usage.read(runs)
    finally:
        shell.communicate("\n")
    assert true_s >= 0.4  # 5 x 0.03 + 0.1 + 0.1 + 0.05
    assert 0.2 <= half <= result.runs["a"].cpu_s
    assert result.runs["a"].cpu_s == pytest.approx(
        true_s, abs=0.06
    )  # two ticks for each of three processes
    assert result.busy_s - busy_s >= 0.3
    assert usage.read(runs).runs["a"].cpu_s == result.runs["a"].cpu_s


def test_cpu_usage_of_dead_processes_is_0():
    result = CpuUsageReader().read({"a": ScannedRun((ProcessKey(os.getpid(), 0.0),))})
    assert (result.runs["a"].cpu_s, result.runs["a"].pids) == (0.0, frozenset())

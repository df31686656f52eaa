from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.fakes.cgroup_tree import CgroupTree
from tests.fakes.process_tree import ProcessTree
from wattline_exporter.sensors.processes.cgroups import has_cgroup, pids_in_cgroup
from wattline_exporter.sensors.processes.procfs import (
    ProcessKey,
    ProcessSnapshot,
    find_process,
    is_process_alive,
    node_busy_s,
    process_family,
    read_stat,
)

FAMILY = """
import os, sys, threading
def child():
    if os.fork() == 0:
        if os.fork() == 0:
            os.write(1, b'%d %d\\n' % (os.getppid(), os.getpid()))
        sys.stdin.readline()
        os._exit(0)
thread = threading.Thread(target=child)
thread.start()
os.write(1, b'%d\\n' % os.getpid())
thread.join()
sys.stdin.readline()
"""


@pytest.fixture
def relatives():
    """A process, a child that one of its threads has forked, and that one's child: their pids."""
    shell = subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pids = {int(pid) for _ in range(2) for pid in shell.stdout.readline().split()}
    yield shell, pids
    shell.kill()
    shell.communicate()


def pids_of(tree):
    return {stat.process.pid for stat in tree}


@pytest.mark.parametrize("max_threads", [1_000, 0], ids=["by the kernel's lists", "by reading all"])
def test_snapshot_finds_descendants_forked_by_any_thread(relatives, max_threads):
    shell, pids = relatives
    assert len(pids) == 3
    assert pids_of(ProcessSnapshot(max_threads=max_threads).tree(find_process(shell.pid))) == pids
    assert process_family([find_process(shell.pid)]) == pids


@pytest.mark.parametrize("has_children_lists", [True, False])
def test_snapshot_yields_parents_first(tmp_path, has_children_lists):
    proc = ProcessTree(tmp_path, has_children_lists=has_children_lists)
    for pid, parent in ((10, 1), (9, 10), (12, 10), (8, 9), (7, 8), (50, 1), (51, 50)):
        proc.add(pid, parent)
    found_pids = [
        stat.process.pid for stat in ProcessSnapshot(tmp_path).tree(find_process(10, tmp_path))
    ]
    assert sorted(found_pids) == [7, 8, 9, 10, 12]
    assert all(
        found_pids.index(proc.processes[pid].parent) < found_pids.index(pid)
        for pid in found_pids
        if pid != 10
    )


def test_snapshot_without_children_lists_reads_all_processes_once(tmp_path):
    proc = ProcessTree(tmp_path, has_children_lists=False)
    proc.add(10)
    proc.add(20)
    snapshot = ProcessSnapshot(tmp_path)
    assert pids_of(snapshot.tree(find_process(10, tmp_path))) == {10}
    proc.add(21, parent=20)
    assert pids_of(snapshot.tree(find_process(20, tmp_path))) == {
        20
    }  # of the moment of the first question
    assert pids_of(ProcessSnapshot(tmp_path).tree(find_process(20, tmp_path))) == {20, 21}


def test_snapshot_with_many_threads_reads_all_processes(tmp_path):
    proc = ProcessTree(tmp_path)
    proc.add(10, threads=5_000)
    proc.add(11, parent=10)
    (tmp_path / "10/task/10/children").write_text(
        ""
    )  # so that only a reading of all can find the child
    assert pids_of(ProcessSnapshot(tmp_path).tree(find_process(10, tmp_path))) == {10, 11}


def test_snapshot_reads_children_lists_longer_than_a_page():
    code = "import os, sys, signal\nfor _ in range(900):\n  if os.fork() == 0: signal.pause()\n"
    code += "print('forked', flush=True); sys.stdin.readline(); os.killpg(0, 9)"
    shell = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert shell.stdout.readline() == b"forked\n"
        assert (
            len(
                process_family(
                    [find_process(shell.pid)], snapshot=ProcessSnapshot(max_threads=10_000)
                )
            )
            == 901
        )
    finally:
        shell.communicate(b"\n")


def test_find_process_reused_pid_is_another_process(tmp_path):
    proc = ProcessTree(tmp_path)
    proc.add(10, started=100)
    before = find_process(10, tmp_path)
    assert before == ProcessKey(10, 1.0)
    proc.add(10, started=250)
    proc.add(11, parent=10)
    assert not is_process_alive(before, tmp_path)
    assert pids_of(ProcessSnapshot(tmp_path).tree(before)) == set()


def test_snapshot_reused_pid_is_not_a_child(tmp_path):
    proc = ProcessTree(tmp_path)
    proc.add(10)
    proc.add(11, parent=1)
    (tmp_path / "10/task/10/children").write_text("11 ")
    assert pids_of(ProcessSnapshot(tmp_path).tree(find_process(10, tmp_path))) == {10}


def test_read_stat_accepts_any_process_name(tmp_path):
    proc = ProcessTree(tmp_path)
    proc.add(10, name=") R 1 (x\n)", own=250, waited=100)
    stat = read_stat(10, tmp_path)
    assert (stat.name, stat.parent, stat.own_s, stat.waited_s) == (") R 1 (x\n)", 1, 2.5, 1.0)


def test_find_process_ignores_zombies():
    shell = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, shell.pid, os.WEXITED | os.WNOWAIT)
    assert read_stat(shell.pid).is_over
    assert find_process(shell.pid) is None
    assert process_family([ProcessKey(shell.pid, read_stat(shell.pid).process.started_s)]) == set()
    shell.wait()
    assert read_stat(shell.pid) is None


def test_process_family_includes_the_cgroup(tmp_path):
    CgroupTree(tmp_path).group("/a/b", 1234, 0)
    assert process_family([], "/a", root=tmp_path) == {1234}
    assert process_family([find_process(os.getpid())], "/a", root=tmp_path) >= {1234, os.getpid()}
    assert pids_in_cgroup("/a", tmp_path) == {1234}
    assert has_cgroup("/a/b", tmp_path)


def test_node_busy_time_excludes_idle_and_steal(tmp_path):
    (tmp_path / "stat").write_text(
        "cpu  100 20 30 9000 400 5 6 77 50 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    )
    assert node_busy_s(tmp_path) == pytest.approx(
        1.61
    )  # 100 + 20 + 30 + 5 + 6 ticks; 50 of a guest are in the 100


def test_node_busy_time_grows_with_own_cpu_time():
    before_s, own_s = node_busy_s(), time.process_time()
    while time.process_time() < own_s + 0.2:
        pass
    assert node_busy_s() - before_s >= 0.1

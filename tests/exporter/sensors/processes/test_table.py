from __future__ import annotations

import os
import pwd
import subprocess
import sys

import pytest

from tests.fakes.cgroup_tree import ID
from tests.fakes.process_tree import ProcessTree
from wattline.contract.metrics import HOST_PROCESS_CPU, HOST_PROCESS_PSS, HOST_PROCESS_USS
from wattline_exporter.sensors.processes import table as process_table
from wattline_exporter.sensors.processes.groups import ProcessGroup
from wattline_exporter.sensors.processes.table import MAX_RSS_BYTES, ProcessTable, group_of_pid
from wattline_exporter.sensors.readings import SourceError

MIB = 1 << 20


class Node:
    """A table read every 5 s; process times are in ticks of 10 ms."""

    def __init__(self, folder):
        self.proc = ProcessTree(folder)
        self.now_s = 1_000.0

    def table(self, *args, **more):
        return ProcessTable(*args, **more, proc=self.proc.root, clock=lambda: self.now_s)

    def scan(self, table, after_s=5.0):
        self.proc.show()
        self.now_s += after_s
        return table.read()


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path / "proc")


def values(batch, metric):
    return {
        (*r.labels, *dict(r.extra).values()): r.value for r in batch.readings if r.metric is metric
    }


def cpu(batch):
    return {
        labels[-1] if len(labels) == 1 else labels: value
        for labels, value in values(batch, HOST_PROCESS_CPU).items()
    }


def test_process_cpu_time_of_a_name_is_summed_from_first_read(node):
    one, other = node.proc.add(10, own=500), node.proc.add(11, own=70)
    node.proc.add(12, name="bash")
    table = node.table()
    assert cpu(node.scan(table)) == {"python3": 0.0, "bash": 0.0}
    one.own, other.own = 520, 100
    assert cpu(node.scan(table)) == {"python3": pytest.approx(0.5), "bash": 0.0}


def test_process_end_keeps_total_and_start_counts_fully(node):
    node.proc.add(10)
    node.proc.add(11)
    table = node.table()
    node.scan(table)
    node.proc.processes[10].own = 300
    node.scan(table)
    node.proc.remove(10)
    node.proc.add(12, started=101_200, own=40)
    assert cpu(node.scan(table)) == {"python3": pytest.approx(3.4)}


def test_process_older_than_exporter_counts_from_first_read(node):
    table = node.table()
    node.scan(table)
    node.proc.add(10, started=5, own=900_000)
    assert cpu(node.scan(table)) == {"python3": 0.0}


def test_process_with_new_name_counts_for_its_new_group(node):
    shell = node.proc.add(10, name="sh")
    table = node.table()
    node.scan(table)
    shell.own = 100
    node.scan(table)
    shell.name, shell.own = "train", 250
    assert cpu(node.scan(table)) == {"train": pytest.approx(1.5)}


def test_process_group_by_cgroup_is_its_owner(node):
    node.proc.add(10, cgroup=f"/docker/{ID}")
    node.proc.add(11, cgroup="/system.slice/slurmstepd.scope/job_7/step_0/user/task_0")
    node.proc.add(12, cgroup="/system.slice/slurmstepd.scope/job_7/step_0/user/task_1")
    node.proc.add(13, cgroup="/system.slice/sshd.service")
    table = node.table("cgroup")
    node.scan(table)
    node.proc.processes[11].own = node.proc.processes[12].own = 50
    assert cpu(node.scan(table)) == {
        f"container:{ID[:12]}": 0.0,
        "slurm:7.0": pytest.approx(1),
        "sshd.service": 0.0,
    }


def test_process_with_pids_has_its_own_series(node):
    node.proc.add(10)
    node.proc.add(11)
    assert cpu(node.scan(node.table(pids=True))) == {("python3", "10"): 0.0, ("python3", "11"): 0.0}


def test_kernel_workers_are_one_group(node):
    node.proc.add(10, name="kworker/3:1-events", is_kernel=True)
    node.proc.add(11, name="kworker/u8:0-nvidia", is_kernel=True)
    node.proc.add(12, name="a/b")
    assert set(cpu(node.scan(node.table()))) == {"kworker", "a/b"}


def test_process_of_1000_names_50_are_exported_without_flapping(node):
    for pid in range(10, 1_010):
        node.proc.add_quietly(pid, name=f"n{pid}", own=0)
    table = node.table()
    node.scan(table)
    for pid in range(10, 1_010):
        node.proc.processes[pid].own = pid if pid < 960 else 10 * pid
    first = set(cpu(node.scan(table)))
    assert first == {f"n{pid}" for pid in range(960, 1_010)}
    for pid in range(900, 960):
        node.proc.processes[pid].own += 9_300  # now larger than an exported group, unlike before
    assert set(cpu(node.scan(table))) == first
    node.proc.processes[10].own += 100_000
    assert "n10" in cpu(node.scan(table))
    assert len(cpu(node.scan(table))) == 50


def test_process_memory_needs_all_members_read(node):
    for pid, name in ((10, "a"), (11, "a"), (12, "b")):
        node.proc.add(pid, name=name, rss_bytes=8 * MIB)
        node.proc.smaps(pid, pss_kb=3_000, uss_kb=1_000)
    table = node.table()
    batches = [node.scan(table) for _ in range(3)]
    pss = [values(batch, HOST_PROCESS_PSS) for batch in batches]
    assert all(len(one) <= 1 for one in pss[:2])  # one process per read
    assert pss[2] == {("a",): 6_000 * 1_024, ("b",): 3_000 * 1_024}
    assert values(batches[2], HOST_PROCESS_USS) == {("a",): 2_000 * 1_024, ("b",): 1_000 * 1_024}


def test_process_memory_is_read_once_a_minute(node):
    node.proc.add(10, rss_bytes=8 * MIB)
    node.proc.smaps(10, pss_kb=3_000, uss_kb=1_000)
    table = node.table()
    node.scan(table)
    node.proc.smaps(10, pss_kb=9_000, uss_kb=1_000)
    sizes = [values(node.scan(table), HOST_PROCESS_PSS)[("python3",)] >> 10 for _ in range(13)]
    assert sizes == [3_000] * 11 + [9_000] * 2


def test_process_above_16_gib_has_no_memory_series(node):
    node.proc.add(10, rss_bytes=MAX_RSS_BYTES + MIB)
    node.proc.add(11, rss_bytes=8 * MIB)
    for pid in (10, 11):
        node.proc.smaps(pid, pss_kb=3_000, uss_kb=1_000)
    (node.proc.root / "10/smaps_rollup").unlink()
    (node.proc.root / "10/smaps_rollup").mkdir()  # reading it would raise
    table = node.table()
    for _ in range(20):
        assert values(node.scan(table), HOST_PROCESS_PSS) == {}
    assert cpu(node.scan(table)) == {"python3": 0.0}


def test_process_memory_reads_are_distributed(node):
    for pid in range(10, 70):
        node.proc.add_quietly(pid, name=f"n{pid}", rss_bytes=3 << 30)
        node.proc.smaps(pid, pss_kb=3_000, uss_kb=1_000)
    table = node.table()
    numbers = [len(values(node.scan(table), HOST_PROCESS_PSS)) for _ in range(10)]
    assert numbers == list(range(1, 11))  # 3 GiB and 3 GiB are more than 4


def test_process_new_member_does_not_hide_its_group(node):
    node.proc.add(10, rss_bytes=8 * MIB)
    node.proc.smaps(10, pss_kb=3_000, uss_kb=1_000)
    table = node.table()
    node.scan(table)
    node.proc.add(11, started=100_800, rss_bytes=8 * MIB)  # ended before its memory is read
    assert values(node.scan(table), HOST_PROCESS_PSS) == {("python3",): 3_000 * 1_024}


def test_process_without_proc_fails_with_remedy(tmp_path):
    with pytest.raises(SourceError, match=r"cannot read .*; check that proc is mounted"):
        ProcessTable(proc=tmp_path / "none").read()


def test_process_memory_equals_the_kernels():
    table = ProcessTable(pids=True)
    table.read()
    memory = process_table.read_memory(os.getpid(), 0.0)
    assert memory.pss_bytes > 1_000_000
    assert 0 < memory.uss_bytes <= memory.pss_bytes * 1.1


def test_process_real_work_is_counted():
    table = ProcessTable(pids=True)
    table.read()
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True); input()"
    worker = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        worker.stdout.readline()
        cpu_seconds = values(table.read(), HOST_PROCESS_CPU)
    finally:
        worker.communicate(b"\n")
    seconds_by_pid = {pid: seconds for (_, pid), seconds in cpu_seconds.items()}
    assert (
        seconds_by_pid[str(worker.pid)] >= 0.28
    )  # one tick each of user and system may be missing


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become someone else")
def test_process_memory_without_cap_sys_ptrace_is_absent_and_reported():
    code = (
        "import os, time\n"
        "from wattline_exporter.sensors.processes.table import ProcessTable\n"
        f"os.setgid(65534); os.setuid({pwd.getpwnam('nobody').pw_uid})\n"
        "now = [1000.0]\n"
        "table = ProcessTable(pids=True, clock=lambda: now[0])\n"
        "batches = []\n"
        "for _ in range(30):\n"
        "    now[0] += 61\n"
        "    batches.append(table.read())\n"
        "problems = {p for b in batches for p in b.problems}\n"
        "names = {dict(r.extra)['pid'] for b in batches for r in b.readings if 'pss' in "
        "r.metric.name}\n"
        "print(len(problems), 'CAP_SYS_PTRACE' in ''.join(problems), '1' in names)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["1", "True", "False"]


def test_process_unknown_grouping_is_refused():
    code = (
        "from wattline_exporter.cli.main import main; import sys; sys.argv = ['exporter', "
        "*sys.argv[1:]]; main()"
    )
    options = ["serve", "--collector.processes", "--collector.processes.group", "user"]
    result = subprocess.run(
        [sys.executable, "-c", code, *options], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert (
        result.stderr
        == "exporter: --collector.processes.group: expected name or cgroup, not 'user'\n"
    )


def test_process_on_gpu_is_grouped_like_in_the_table(node):
    node.proc.add(10, name="tra\nin", cgroup=f"/docker/{ID}")
    assert group_of_pid(10, "name", pids=False, proc=node.proc.root) == ProcessGroup("tra?in")
    assert group_of_pid(10, "cgroup", pids=True, proc=node.proc.root) == ProcessGroup(
        f"container:{ID[:12]}", "10"
    )
    assert group_of_pid(99, "name", pids=True, proc=node.proc.root) == ProcessGroup("", "99")

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.daemon import begin, end
from tests.exporter.api import UUIDS, assert_problem, sleeper
from tests.exporter.runs.ledger_node import GPU, LedgerNode
from tests.polling import eventually
from wattline.contract.work import SHARE_POLICY
from wattline_exporter.runs.admission import RunProcesses, merge_processes
from wattline_exporter.sensors.processes.procfs import ProcessKey, find_process
from wattline_exporter.sensors.readings import GpuProcess, RunError
from wattline_exporter.storage.state_file import StateFile


def test_add_processes_is_accepted_at_any_time(exporter):
    run = begin(exporter)
    status, _ = exporter.post(f"/api/v1/runs/{run['run_id']}/processes", {"pids": [os.getpid()]})

    assert status == 200
    end(exporter, run["run_id"])


def test_add_processes_of_other_pid_namespace_is_rejected(exporter):
    """PID 1 in a pod is the init process of the node for the exporter."""
    run = begin(exporter)
    path, namespace = (
        f"/api/v1/runs/{run['run_id']}/processes",
        Path("/proc/self/ns/pid").stat().st_ino,
    )
    assert_problem(
        exporter.post(path, {"pids": [1], "pid_namespace": namespace + 1}),
        422,
        "pids",
        "WATTLINE_CGROUP",
    )
    status, _ = exporter.post(path, {"pids": [os.getpid()], "pid_namespace": namespace})

    assert status == 200
    end(exporter, run["run_id"])


def test_begin_with_process_of_other_pid_namespace_is_rejected(exporter):
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    body = {"workload": "train", "pids": [os.getpid()]}
    assert_problem(
        exporter.post("/api/v1/runs", {**body, "pid_namespace": namespace + 1}),
        422,
        "pids",
        "namespace",
    )
    status, run = exporter.post("/api/v1/runs", {**body, "pid_namespace": namespace})

    assert status == 201
    end(exporter, run["run_id"])


@pytest.mark.parametrize("pid", [2**22 + 1, 2**31, 2**63])
def test_add_processes_unknown_pid_is_rejected(exporter, pid):
    run = begin(exporter)
    assert_problem(
        exporter.post(f"/api/v1/runs/{run['run_id']}/processes", {"pids": [pid]}),
        422,
        "pids",
        str(pid),
    )
    assert_problem(
        exporter.post("/api/v1/runs", {"workload": "x", "pids": [pid]}), 422, "pids", str(pid)
    )
    end(exporter, run["run_id"])


def test_run_without_processes_ends_when_the_last_one_lived(exporter):
    process = sleeper()
    run_id = begin(exporter, pids=[process.pid])["run_id"]
    time.sleep(1.5)
    process.kill()
    killed_at = time.time()
    process.wait()
    eventually(
        lambda: exporter.get(f"/api/v1/runs/{run_id}")[1]["state"] == "ended", "the run ends"
    )
    run = exporter.get(f"/api/v1/runs/{run_id}")[1]

    assert run["outcome"] == "interrupted"
    assert killed_at - 1.6 <= run["ended_at"] <= killed_at + 0.1
    assert any("processes were gone" in note for note in run["notes"])
    truth = 78.0 * run["duration_seconds"]
    assert run["energy_joules"]["gpu"][UUIDS[0]] == pytest.approx(truth, abs=2.0)


def test_run_with_only_a_zombie_process_ends(exporter):
    process = sleeper()
    process.kill()
    eventually(lambda: b"Z" in _state(process.pid), "a zombie")
    assert_problem(
        exporter.post("/api/v1/runs", {"workload": "x", "pids": [process.pid]}), 422, "pids"
    )
    process.wait()


def test_merge_processes_beyond_limit_drops_dead_processes():
    living = [sleeper() for _ in range(3)]
    first, second, third = [
        ProcessKey(child.pid, find_process(child.pid).started_s) for child in living
    ]
    gone = ProcessKey(os.getpid(), -1.0)  # the PID belongs to another process now

    try:
        assert merge_processes([gone, first], [first, second], limit=3) == [gone, first, second]
        assert merge_processes([gone, first], [second], limit=2) == [first, second]
        with pytest.raises(RunError, match="at most 2 living") as error:
            merge_processes([first, second], [third], limit=2)
        assert error.value.status == 422
    finally:
        for child in living:
            child.kill()
            child.wait()


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]


def test_begin_with_empty_gpus_discovers_gpus_of_its_processes(exporter):
    with exporter.simulation() as simulation:
        process, other = sleeper(), sleeper()
        simulation.drive(0, 0.5, other.pid)
        run_id = begin(exporter, gpus=[], pids=[process.pid])["run_id"]
        assert exporter.get(f"/api/v1/runs/{run_id}")[1]["gpus"] == []
        simulation.drive(1, 0.5, process.pid)
        eventually(
            lambda: exporter.get(f"/api/v1/runs/{run_id}")[1]["gpus"] != [], "a GPU is found"
        )
        run = end(exporter, run_id)
        for i, child in enumerate((other, process)):
            simulation.release(i, child.pid)
            child.kill()
            child.wait()

    assert [gpu["uuid"] for gpu in run["gpus"]] == [UUIDS[1]]
    assert list(run["energy_joules"]["gpu"]) == [UUIDS[1]]


def test_run_discovered_on_no_gpu_is_noted(exporter):
    run = end(exporter, begin(exporter, gpus=[], pids=[os.getpid()])["run_id"])

    assert run["gpus"] == []
    (note,) = (note for note in run["notes"] if "no process of the run was found on a GPU" in note)
    assert note.endswith('name the GPUs with --gpus 0, in Python with wattline.run(gpus="0")')


def test_list_runs_by_pid_names_innermost_run(exporter):
    with subprocess_tree() as (parent, child):
        outer = begin(exporter, pids=[parent])["run_id"]
        eventually(lambda: running_of(exporter, child) == [outer], "the child belongs to the run")
        inner = begin(exporter, pids=[child])["run_id"]
        eventually(
            lambda: running_of(exporter, child) == [inner], "the child belongs to the inner run"
        )

        assert running_of(exporter, parent) == [outer]
        assert sorted(running_of(exporter, parent, child)) == sorted([outer, inner])
        assert running_of(exporter, os.getpid()) == []
        end(exporter, inner)
        end(exporter, outer)


@contextmanager
def subprocess_tree():
    """Start a process with a child; yield both pids."""
    program = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        child = int(parent.stdout.readline())
        yield parent.pid, child
        os.kill(child, signal.SIGKILL)
        parent.stdin.close()


def running_of(exporter, *pids):
    query = "&".join(f"pid={pid}" for pid in pids)
    return [run["run_id"] for run in exporter.get(f"/api/v1/runs?state=running&{query}")[1]]


def test_list_runs_by_pid_of_other_namespace_is_rejected(exporter):
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    path = f"/api/v1/runs?pid={os.getpid()}&pid_namespace="

    assert exporter.get(f"{path}{namespace}") == (200, [])
    assert_problem(exporter.get(f"{path}{namespace + 1}"), 422, "pids", "WATTLINE_CGROUP")
    assert_problem(exporter.get("/api/v1/runs?pid=x"), 400, "pid", "whole numbers")
    assert_problem(exporter.get("/api/v1/runs?pid="), 400, "pid", "whole numbers")


def test_added_process_has_its_load_on_a_shared_gpu_at_once(tmp_path):
    """GPU of 360 W, of which two processes use 50 % and 20 % of the time. The second one is added
    to its run later.
    """
    with ExitStack() as stack:
        processes = [sleeper(60) for _ in range(3)]
        for process in processes:
            stack.callback(process.wait)
            stack.callback(process.kill)
        pids = [process.pid for process in processes]
        file = StateFile(tmp_path)
        stack.callback(file.close)
        node = LedgerNode(file)
        node.live.gpus[GPU.id].processes = (
            GpuProcess(pids[0], 100, 0.5),
            GpuProcess(pids[1], 100, 0.2),
        )
        node.begin(run_id="first", gpus=[GPU.id], pids=pids[:1])
        node.begin(run_id="second", gpus=[GPU.id], pids=pids[2:])
        before_j = attributed_j(node, "second")

        asyncio.run(node.service.add_processes("second", RunProcesses(pids=pids[1:2])))
        node.run_for(1.0)

        assert attributed_j(node, "second") - before_j == pytest.approx(360 * 2 / 7, rel=0.01)


def attributed_j(node, run_id):
    node.ledger.attribution.divide()
    return node.ledger.attribution.energies.share_j(GPU, SHARE_POLICY, run_id) or 0.0

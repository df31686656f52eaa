"""Share of a run whose last exit is noted before the run ends."""

import pytest

from exporter.contract.run import EndRequest
from exporter.processes.cgroup_paths import CgroupOwner
from exporter.processes.procfs import ProcessKey
from exporter.storage.state_file import StateFile
from tests.exporter.runs.ledger_node import GPU, POWER_W, LedgerNode


def test_noted_end_run_holds_its_gpu_until_the_exit(tmp_path):
    """Scans are a second apart; the process exits 0.7 s after one of them."""
    file = StateFile(tmp_path)
    node = LedgerNode(file)
    node.ledger.attribution.tick([], node.now_s)
    run = node.begin(gpus=[GPU.id])
    run.processes = [ProcessKey(4711, 1.0)]
    for _ in range(5):
        node.run_for(1.0)
        node.ledger.tick()
        node.ledger.attribution.tick(node.ledger.runs.values(), node.now_s)
    node.run_for(0.7)
    run.note_end(node.now_s)
    node.run_for(0.3)
    node.ledger.stop(run, EndRequest(), run.alive_s)
    node.ledger.release(run)
    node.run_for(0.5)
    node.ledger.finish(run)
    file.close()

    assert run.attributed_j[GPU] == pytest.approx(POWER_W * (run.end_s - run.begin_s), abs=0.1 * POWER_W)


def test_pod_whose_pause_process_lives_holds_its_gpu_until_the_exit_of_its_containers(tmp_path):
    """The discovery notes the exit in each scan; the ledger, between these, finds the pod's cgroup populated."""
    file = StateFile(tmp_path)
    node = LedgerNode(file, is_alive=lambda _: True)
    node.ledger.attribution.tick([], node.now_s)
    run = node.begin(gpus=[GPU.id])
    run.discovered = CgroupOwner("kubernetes", "9d4f", "/kubepods/pod9d4f")
    run.cgroup = run.discovered.path
    for second in range(12):
        node.run_for(1.0)
        if second >= 4:
            exited_s = run.begin_s + 5.0
            run.note_end(exited_s)
        node.ledger.tick()
        node.ledger.attribution.tick(node.ledger.runs.values(), node.now_s)
    node.ledger.stop(run, EndRequest(), exited_s)
    node.ledger.release(run)
    node.run_for(0.5)
    node.ledger.finish(run)
    file.close()

    assert run.attributed_j[GPU] == pytest.approx(POWER_W * 5.0, abs=0.6 * POWER_W)

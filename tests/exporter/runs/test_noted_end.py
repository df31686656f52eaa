"""Share of a run whose last exit is noted before the run ends."""

import pytest

from tests.exporter.runs.ledger_node import GPU, POWER_W, LedgerNode
from wattline_exporter.runs.admission import RunEnd
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.processes.procfs import ProcessKey
from wattline_exporter.storage.state_file import StateFile


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
    node.ledger.stop(run, RunEnd(), run.alive_s)
    node.ledger.release(run)
    node.run_for(0.5)
    node.ledger.finish(run)
    file.close()

    assert run.attributed_j[GPU] == pytest.approx(
        POWER_W * (run.end_s - run.begin_s), abs=0.1 * POWER_W
    )


@pytest.mark.parametrize("is_restarted", [False, True])
def test_pod_holds_its_gpu_until_its_containers_exit(tmp_path, is_restarted):
    """The discovery notes the exit in each scan; the ledger, between these, finds the pod's cgroup
    populated.

    After a restart of the exporter, the discovery knows only that the containers ended since the
    last scan before it.
    """
    file = StateFile(tmp_path)
    node = LedgerNode(file, is_alive=lambda _: True)
    node.ledger.attribution.tick([], node.now_s)
    run = node.begin(gpus=[GPU.id])
    run.discovered = CgroupOwner("kubernetes", "9d4f", "/kubepods/pod9d4f")
    run.cgroup = run.discovered.path
    exited_s = run.begin_s + 5.0
    for second in range(12):
        node.run_for(1.0)
        if second >= 4 and is_restarted:
            run.unwatched = run.unwatched or (exited_s, node.now_s)
            run.end_until_s, run.alive_s = run.end_until_s or node.now_s, exited_s
        elif second >= 4:
            run.note_end(exited_s)
        node.ledger.tick()
        node.ledger.attribution.tick(node.ledger.runs.values(), node.now_s)
    if run.running:
        node.ledger.stop(run, RunEnd(), exited_s)
        node.ledger.release(run)
        node.run_for(0.5)
        node.ledger.finish(run)
    file.close()

    assert run.end_s == exited_s
    assert run.attributed_j[GPU] == pytest.approx(POWER_W * 5.0, abs=0.6 * POWER_W)

"""Share of a run whose last exit is noted before the run ends."""

import pytest

from exporter.contract.run import EndRequest
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

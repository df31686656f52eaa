"""Ends of runs whose processes are gone."""

import os

import pytest

from tests.exporter.runs.ledger_node import GPU, POWER_W, LedgerNode
from wattline_exporter.meter.uncertainty import energy_between
from wattline_exporter.storage.state_file import StateFile

LIMIT_W = 400.0


@pytest.mark.parametrize("asleep_s", [0, 60])
def test_death_found_late_has_at_most_the_energy_of_the_limit(tmp_path, asleep_s):
    """The last process ends after 10 s; the polls of that time are no longer kept `asleep_s`
    later.
    """
    state, living = StateFile(tmp_path), [True]
    node = LedgerNode(state, is_alive=lambda _: living[-1])
    node.live.energy.meters[GPU].max_w = 1.5 * LIMIT_W
    run = node.begin(pids=[os.getpid()])
    for _ in range(10):
        node.run_for(1)
        node.ledger.tick()
    living.append(False)
    node.run_for(9 + asleep_s)
    running_j = node.ledger.measured(run).energy("gpu").number
    node.ledger.tick()
    state.close()
    duration_s = run.end_s - run.begin_s
    energy = energy_between(run.begin[GPU], run.final[GPU])

    assert duration_s == pytest.approx(10.3, abs=0.1)
    assert running_j <= LIMIT_W * duration_s
    assert energy.joules <= LIMIT_W * duration_s + 1e-6
    assert abs(energy.joules - POWER_W * duration_s) <= energy.half_width_j
    assert sum(phase.joules[GPU] for phase in run.phases) <= energy.joules

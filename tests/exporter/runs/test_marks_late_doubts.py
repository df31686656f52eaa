"""Doubts about a run's counter that only the time after the run shows."""

import pytest

from tests.exporter.runs.ledger_node import GPU, POWER_W, LedgerNode
from wattline_exporter.meter.uncertainty import energy_between
from wattline_exporter.polling.hub import PollingDemand
from wattline_exporter.runs.marks import DOUBTED_S
from wattline_exporter.runs.run_record import STORED
from wattline_exporter.storage.state_file import StateFile


def run_for(node, seconds):
    """Let time pass, with a tick every second."""
    for _ in range(seconds):
        node.run_for(1)
        node.ledger.tick()


def energy(run):
    return energy_between(run.begin[GPU], run.final[GPU])


@pytest.fixture
def node(tmp_path):
    state = StateFile(tmp_path)
    yield LedgerNode(state)
    state.close()


def test_late_doubt_slow_counter_before_the_end_widens_the_ended_run(node):
    run = node.begin(run_id="r")
    run_for(node, 5)
    node.counter_ratio = 0.0001
    run_for(node, 1)
    ended = node.end("r")
    answered_j, notes = energy(ended).half_width_j, list(ended.notes)
    assert node.ledger.ids() == ([], ["r"])
    node.ledger.take_changes()
    run_for(node, 4)

    true_j = POWER_W * ((run.end_s or 0.0) - run.begin_s)
    assert abs(energy(ended).joules - true_j) > answered_j
    assert abs(energy(ended).joules - true_j) <= energy(ended).half_width_j
    assert not any("differ" in note for note in notes)
    assert any("differ" in note for note in ended.notes)


def test_late_doubt_makes_a_revision_that_is_exported_and_saved(node):
    node.begin(run_id="r")
    run_for(node, 5)
    node.counter_ratio = 0.0001
    run_for(node, 1)
    node.end("r")
    node.ledger.take_changes()
    run_for(node, 4)

    (saved,) = node.ledger.take_changes().runs
    _, (ended,) = node.ledger.ids()
    assert ended == "r 1"
    assert node.ledger.snapshot(ended).run_id == "r"
    assert STORED.validate_json(saved.body).final == node.ledger.runs["r"].final


def test_late_doubt_fault_after_the_check_changes_no_run(node):
    node.begin(run_id="r")
    run_for(node, 5)
    before = energy(node.end("r"))
    run_for(node, round(DOUBTED_S) + 2)
    node.counter_ratio = 0.0001
    run_for(node, 10)

    assert energy(node.ledger.find("r")) == before
    assert node.ledger.ids() == ([], ["r"])


def test_polls_stay_fast_until_an_ended_run_has_been_checked(node):
    demands: list[PollingDemand] = []
    node.begin(run_id="r")
    run_for(node, 2)
    node.end("r")
    for _ in range(round(DOUBTED_S) + 2):
        run_for(node, 1)
        demands.append(PollingDemand(node.ledger.needs_fast_polls))

    assert demands[0].order().period_s < demands[-1].order().period_s

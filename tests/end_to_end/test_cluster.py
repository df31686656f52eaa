"""The cluster in a short form: a few nodes, every fault, and the same agreement between ledger, servers and truth."""

from __future__ import annotations

import sys

import pytest

from tests.end_to_end.cluster import prove
from tests.end_to_end.cluster_runs import Size

SIZE = Size(nodes=3, gpus=4, seconds=28.0, longest_s=16.0, pause_s=6.0)
SCRAPE_S = 2.0
BEFALLEN = ("killed-under", "lost-and-back", "ended-while-lost")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    def say(text):
        print(text, file=sys.stderr)

    return prove(tmp_path_factory.mktemp("cluster"), SIZE, SCRAPE_S, seed=2, say=say)


@pytest.fixture(scope="module")
def by_id(found):
    return {run.run_id: run for run in found.runs}


def test_every_run_agrees_between_ledger_servers_and_truth_or_says_what_it_lacks(found):
    assert len(found.runs) >= 10
    assert found.problems() == []


def test_what_was_seen_all_the_time_is_true_without_any_excuse(found):
    seen = [run for run in found.runs if not run.unseen_s]

    assert len(seen) >= 4
    assert any(run.is_long for run in seen)
    assert [run.run_id for run in seen if run.is_long and not run.agrees] == []


def test_both_servers_tell_the_ledgers_figure_of_runs_that_they_did_not_see_end(by_id):
    ledger, *servers = by_id["while-both-are-away"].told.values()

    assert len(servers) == 2
    assert [told.joules for told in servers] == pytest.approx([ledger.joules] * 2, rel=1e-9)


def test_a_run_on_two_nodes_has_the_energy_of_both(by_id):
    run = by_id["two-nodes"]

    assert run.nodes == 2
    assert run.gpus == 4
    assert all(told.joules == pytest.approx(run.truth_j, rel=0.005) for told in run.told.values())


@pytest.mark.parametrize("run_id", BEFALLEN)
def test_each_place_declares_what_was_not_seen_in_a_fault(by_id, run_id):
    assert all(told.missing_j > 0 for told in by_id[run_id].told.values())


@pytest.mark.parametrize("run_id", ["killed-under", "lost-and-back"])
def test_what_a_fault_within_a_run_hid_the_counters_tell_afterwards(by_id, run_id):
    assert by_id[run_id].agrees


def test_what_a_lost_gpu_drew_until_the_runs_end_is_missing_and_no_place_makes_it_up(by_id):
    run = by_id["ended-while-lost"]

    assert all(run.truth_j - told.missing_j < told.joules < 0.995 * run.truth_j for told in run.told.values())


def test_parts_of_runs_and_the_rest_are_the_devices_counters_on_each_node(found):
    assert len(found.parts_beside_counters) == SIZE.nodes
    assert max(found.parts_beside_counters.values()) < 1e-9

"""Short run of the simulated cluster with every fault."""

from __future__ import annotations

import sys

import pytest

from tests.end_to_end.cluster import compare_cluster
from tests.end_to_end.cluster_runs import Size

SIZE = Size(nodes=3, gpus=4, seconds=28.0, longest_s=16.0, pause_s=6.0)
SCRAPE_S = 2.0
RUNS_WITH_FAULTS = ("killed-under", "lost-and-back", "ended-while-lost")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    def log(text):
        print(text, file=sys.stderr)

    return compare_cluster(tmp_path_factory.mktemp("cluster"), SIZE, SCRAPE_S, seed=2, log=log)


@pytest.fixture(scope="module")
def by_id(result):
    return {run.run_id: run for run in result.runs}


def test_cluster_run_energies_agree_or_declare_missing_energy(result):
    assert len(result.runs) >= 10
    assert result.problems() == []


def test_cluster_fully_sampled_runs_agree_with_the_true_value(result):
    sampled = [run for run in result.runs if not run.unseen_s]

    assert len(sampled) >= 4
    assert any(run.is_long for run in sampled)
    assert [run.run_id for run in sampled if run.is_long and not run.agrees] == []


def test_cluster_servers_have_final_energy_of_runs_ended_in_downtime(by_id):
    ledger, *servers = by_id["while-both-are-away"].energies.values()

    assert len(servers) == 2
    assert [energy.joules for energy in servers] == pytest.approx([ledger.joules] * 2, rel=1e-9)


def test_cluster_two_node_run_adds_the_energy_of_both(by_id):
    run = by_id["two-nodes"]

    assert run.nodes == 2
    assert run.gpus == 4
    assert all(
        energy.joules == pytest.approx(run.true_j, rel=0.005) for energy in run.energies.values()
    )


@pytest.mark.parametrize("run_id", RUNS_WITH_FAULTS)
def test_cluster_unseen_time_of_faults_is_declared(by_id, run_id):
    assert all(energy.missing_j > 0 for energy in by_id[run_id].energies.values())


@pytest.mark.parametrize("run_id", ["killed-under", "lost-and-back"])
def test_cluster_energy_during_exporter_downtime_is_recovered(by_id, run_id):
    assert by_id[run_id].agrees


def test_cluster_energy_of_a_lost_gpu_is_missing_not_invented(by_id):
    run = by_id["ended-while-lost"]

    assert all(
        run.true_j - energy.missing_j < energy.joules < 0.995 * run.true_j
        for energy in run.energies.values()
    )


def test_cluster_attributed_parts_add_up_to_the_counters(result):
    assert len(result.attribution_deviation) == SIZE.nodes
    assert max(result.attribution_deviation.values()) < 1e-9

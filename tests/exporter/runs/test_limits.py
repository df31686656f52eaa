"""Limits of the runs with series on the page of metrics, on a node in virtual time."""

from collections import Counter

import pytest

from tests.exporter.runs.two_gpu_node import ENERGY, UUIDS, TwoGpuNode, job
from wattline.contract import metrics as m
from wattline_exporter.runs.admission import DiscoveredRun, RunStart
from wattline_exporter.sensors.readings import Device


def run_ids(node, *, recorded=False):
    """Return the ids of the runs that have any series in /metrics, or in the local history."""
    if recorded:
        second = node.collector.second()
        readings = [
            *second.readings,
            *(reading for ended in second.ended.values() for reading in ended),
        ]
        return {r.labels[0] for r in readings if "run_id" in r.metric.labels} - {""}
    page = node.collector.series()
    text = b"".join(
        line for ended in page.ended for _, family in ended.families for line in family
    ).decode()
    ended = {run_id for run_id in node.ledger.runs if f'run_id="{run_id}"' in text}
    return ended | {r.labels[0] for r in page.readings if "run_id" in r.metric.labels} - {""}


@pytest.fixture
def make_node(tmp_path):
    nodes = []

    def make(**limits):
        nodes.append(TwoGpuNode(tmp_path, **limits))
        nodes[-1].run_for(2)
        return nodes[-1]

    yield make
    for node in nodes:
        node.file.close()


def begin(node, number=1):
    node.watts[0] = 500.0
    return node.begin(f"job-{number}", job(number), {"user": "ada"}, [0])


def test_limits_run_has_series_once_it_is_long_enough(make_node):
    node = make_node(min_s=60.0)
    begin(node)
    node.run_for(59)
    assert run_ids(node) == set()
    node.run_for(2)
    assert run_ids(node) == {"job-1"}


def test_limits_run_has_series_once_its_energy_is_large_enough(make_node):
    node = make_node(min_j=10_000.0)
    begin(node)
    node.run_for(19)
    assert run_ids(node) == set()
    node.run_for(3)  # 500 W
    assert run_ids(node) == {"job-1"}


def test_limits_short_run_stays_in_ledger_history_and_owner_counters(make_node):
    node = make_node(min_s=60.0)
    run = begin(node)
    node.run_for(30)
    node.end(run)
    node.watts[0] = 80.0
    node.run_for(100)
    assert run_ids(node) == set()
    assert run_ids(node, recorded=True) == {"job-1"}
    assert node.ledger.measured(node.ledger.find("job-1")).energy("gpu").number == pytest.approx(
        15_000, rel=0.01
    )
    assert node.values(ENERGY)["slurm", "ada", "", "slurm", "gpu", "idle_shared"] == pytest.approx(
        15_000, rel=0.01
    )


def test_limits_history_has_short_runs(make_node):
    node = make_node(min_s=60.0)
    begin(node)
    node.run_for(30)
    assert run_ids(node) == set()
    assert run_ids(node, recorded=True) == {"job-1"}


def test_limits_run_of_a_client_always_has_series(make_node):
    node = make_node(min_s=60.0, min_j=1e9)
    run, _ = node.ledger.begin(RunStart(workload="training", run_id="mine", gpus=["0"]))
    node.ledger.confirm_begin(run)
    node.run_for(5)
    assert run_ids(node) == {"mine"}


def test_limits_tail_is_the_time_of_the_series_of_an_ended_run(make_node):
    node = make_node(tail_s=60.0)
    run = begin(node)
    node.run_for(10)
    node.end(run)
    node.run_for(59)
    assert run_ids(node) == {"job-1"}
    node.run_for(3)
    assert run_ids(node) == set()
    assert node.ledger.find("job-1").outcome == "ok"  # from the archive


def test_limits_tail_shorter_than_late_doubts_ends_fast_polls(make_node):
    node = make_node(tail_s=2.0)
    node.end(begin(node))
    node.run_for(10)
    assert not node.ledger.needs_fast_polls


def test_limits_owner_beyond_the_limit_has_its_energy_without_a_run(make_node):
    node = make_node(max_open=1)
    begin(node)
    folded = node.ledger.fold(
        DiscoveredRun(
            "job-2", job(2), node.s, {"user": "bob"}, gpus=(UUIDS[1],), seen_on=(UUIDS[1],)
        )
    )
    node.watts[1] = 300.0
    node.run_for(100)
    folded.end_s = node.s
    node.watts[1] = 80.0
    node.run_for(50)
    assert list(node.ledger.runs) == ["job-1"]
    assert node.values(ENERGY)["slurm", "bob", "", "slurm", "gpu", "idle_shared"] == pytest.approx(
        30_000, abs=1.0
    )
    shares = {
        r.labels: r.value for r in node.ledger.attribution_readings([Device("gpu", UUIDS[1])])
    }
    assert shares["(other)", "gpu", UUIDS[1], "idle_shared"] == pytest.approx(30_000, abs=1.0)
    total_j = sum(
        joules
        for labels, joules in shares.items()
        if labels[1:] == ("gpu", UUIDS[1], "idle_shared")
    )
    assert total_j == pytest.approx(node.gpu_j[1] - 80.0, abs=1e-5)
    assert not [labels for labels in shares if labels[0].startswith("(other) ")]


def page_names(node, run_id):
    return Counter(
        (r.metric.name, r.labels[-1] if r.metric is m.RUN_ATTRIBUTED_ENERGY else "")
        for r in node.collector.series().readings
        if r.labels and r.labels[0] == run_id
    )


def test_limits_slim_series_lack_what_only_cross_checks_use(tmp_path):
    names = {}
    for is_slim in (False, True):
        node = TwoGpuNode(tmp_path / str(is_slim), is_slim=is_slim)
        node.run_for(2)
        begin(node)
        node.run_for(20)
        names[is_slim] = page_names(node, "job-1")
        recorded = [r.metric for r in node.collector.second().readings]
        assert m.RUN_INTEGRATED_ENERGY in recorded  # in the local history
        node.file.close()
    missing = names[False] - names[True]
    assert set(missing) == {
        (m.RUN_INTEGRATED_ENERGY.name, ""),
        (m.RUN_COVERED_RATIO.name, ""),
        (m.RUN_ATTRIBUTED_ENERGY.name, "idle_apart"),
    }
    assert not names[True] - names[False]

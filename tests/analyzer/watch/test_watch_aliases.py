"""One exporter that is scraped under two addresses counts once."""

import numpy as np
import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, series_of_scrapes
from tests.analyzer.watch.test_watch import text_of
from wattline.contract import metrics as m
from wattline_analyzer.core.facts import newest_facts
from wattline_analyzer.core.recorded_run import RUN_FACTS, read_run
from wattline_analyzer.core.run_catalog import run_entry
from wattline_analyzer.core.sample_table import join_tables, table_of
from wattline_analyzer.watch.output import live_document
from wattline_analyzer.watch.watch import live_state

WATTS = 300.0
ADDRESSES = ("10.0.0.1:9847", "gpu-a:9847")


def series(run, instances, gpus, times):
    return [
        (one.labels, *np.array(one.samples, dtype=np.float64).T)
        for instance in instances
        for one in series_of_scrapes(((t, [*scrape(gpus, run, t)]) for t in times), instance)
    ]


def table(*arguments):
    return table_of(series(*arguments))


def run_of(*arguments):
    facts = newest_facts(m.METRICS, [series(*arguments)])
    of_run = [fact for fact in facts if fact.metric in RUN_FACTS]
    run, _ = read_run(of_run, table_of(()), {})
    return run


@pytest.fixture
def gpus():
    return [NodeGpu([(START_S - 100, 60), (START_S, WATTS)])]


def test_watch_exporter_under_two_addresses_counts_once(gpus):
    open_run = NodeRun(end_s=None)
    times = [START_S + t for t in range(1, 11)]
    state = live_state(table(open_run, ADDRESSES, gpus, times), START_S + 10, {})
    document = live_document(state, "here")

    assert document["gpu_power_watts"] == pytest.approx(WATTS)
    assert [node["instance"] for node in document["nodes"]] == [ADDRESSES[0]]
    assert document["aliases"] == {ADDRESSES[1]: ADDRESSES[0]}
    (run,) = document["runs"]
    assert run["energy_joules"]["gpu"] == pytest.approx(WATTS * 10)
    assert "gpu-a:9847 is not shown: it has the same GPUs as 10.0.0.1:9847" in text_of(state, 200)


def test_watch_exporter_with_new_address_shows_the_new_one(gpus):
    open_run = NodeRun(end_s=None)
    before = table(open_run, ADDRESSES[:1], gpus, [START_S + t for t in range(1, 11)])
    after = table(open_run, ADDRESSES[1:], gpus, [START_S + t for t in range(101, 111)])
    state = live_state(join_tables([before, after]), START_S + 110, {})
    assert state.aliases == {}
    assert state.power_w == pytest.approx(WATTS)


def test_watch_chain_of_addresses_counts_each_gpu_once():
    """Two addresses have one of two GPUs each, and a third one has both: 2 × 300 W."""
    one = NodeGpu([(START_S - 100, WATTS)], index="0")
    two = NodeGpu([(START_S - 100, WATTS)], index="1")
    open_run = NodeRun(end_s=None)
    times = [START_S + t for t in range(1, 11)]
    tables = [
        table(open_run, [address], gpus, times)
        for address, gpus in (("a:9847", [one]), ("b:9847", [one, two]), ("c:9847", [two]))
    ]

    state = live_state(join_tables(tables), START_S + 10, {})

    assert state.aliases == {"a:9847": "b:9847", "c:9847": "b:9847"}
    assert state.power_w == pytest.approx(2 * WATTS)


def test_run_entry_of_exporter_under_two_addresses_counts_once(gpus):
    ended = NodeRun(end_s=START_S + 50)
    times = [START_S + t for t in range(1, 71)]
    once, twice = (
        run_entry(run_of(ended, use, gpus, times), fresh=True) for use in (ADDRESSES[:1], ADDRESSES)
    )
    assert twice.gpu_energy.value == once.gpu_energy.value == pytest.approx(WATTS * 50)
    assert twice.state == once.state == "ok"

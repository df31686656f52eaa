"""Report of a run on several nodes, or of one node with two addresses."""

from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, series_of_scrapes
from tests.analyzer.run_reports import (
    POWER_STEPS,
    SCRAPE_TIMES,
    finding_codes,
    finding_texts,
    load_frames,
    terminal_text,
)
from wattline.contract.history import Series
from wattline_analyzer.report.assess import assess


def two_instances(folder, second_gpu, first_run=None, second_run=None):
    first_run = first_run or NodeRun()
    second_run = second_run or NodeRun()
    first = series_of_scrapes(
        ((t, scrape([NodeGpu(POWER_STEPS)], first_run, t)) for t in SCRAPE_TIMES), "a:9847"
    )
    second = series_of_scrapes(
        ((t, scrape([second_gpu], second_run, t)) for t in SCRAPE_TIMES), "b:9847"
    )
    series = [
        Series({k: v for k, v in s.labels.items() if k != "job"}, s.samples)
        for s in [*first, *second]
    ]
    return assess(load_frames(folder, series))


def test_report_several_instances_add_energy_and_work(tmp_path):
    report = two_instances(tmp_path, NodeGpu(POWER_STEPS, index="1"))

    assert report.instances == ("a:9847", "b:9847")
    assert report.headline.value == 12_000
    assert report.work[0].amount == 2_000
    assert report.devices[0].label == "a:9847 GPU 0"


def test_report_run_that_failed_on_one_node_only_is_running(tmp_path):
    other = NodeGpu(POWER_STEPS, index="1")
    report = two_instances(tmp_path, other, NodeRun(end_s=None), NodeRun(outcome="failed"))

    assert (report.outcome, report.ended_at_s) == (None, None)
    assert "  running" in terminal_text(report).splitlines()[0]
    text = "the run failed on this node, and has not ended on a:9847: its work may be incomplete"
    assert finding_texts(report, "outcome") == [("b:9847", text)]


def test_report_run_that_failed_on_one_of_two_nodes_names_it(tmp_path):
    other = NodeGpu(POWER_STEPS, index="1")
    report = two_instances(tmp_path, other, NodeRun(), NodeRun(outcome="interrupted"))

    assert (report.outcome, report.ended_at_s) == ("interrupted", START_S + 20)
    text = "the run was interrupted on this node: its work may be incomplete"
    assert finding_texts(report, "outcome") == [("b:9847", text)]


def test_report_exporter_with_two_addresses_counts_once(tmp_path):
    report = two_instances(tmp_path, NodeGpu(POWER_STEPS))

    assert report.instances == ("a:9847",)
    assert report.headline.value == 6_000
    assert "alias" in finding_codes(report)


def test_report_address_that_changed_in_the_run_has_the_whole_run(tmp_path):
    """300 W for 20 s; the address changes after 8 s and no scrape succeeds for 3 s."""
    old = [t for t in SCRAPE_TIMES if t < START_S + 8]
    new = [t for t in SCRAPE_TIMES if t >= START_S + 11]
    series = [
        Series({k: v for k, v in s.labels.items() if k != "job"}, s.samples)
        for times, address in ((old, "a:9847"), (new, "b:9847"))
        for s in series_of_scrapes(
            ((t, scrape([NodeGpu(POWER_STEPS)], NodeRun(), t)) for t in times), address
        )
    ]

    report = assess(load_frames(tmp_path, series))

    assert report.instances == ("b:9847",)
    assert (report.outcome, report.ended_at_s) == ("ok", START_S + 20)
    assert report.headline.value == 6_000
    assert finding_texts(report, "alias") == [
        ("a:9847", "earlier address of b:9847: both are one node, which is counted once")
    ]
    raw = report.devices[0].from_raw_samples
    assert raw.low <= 6_000 <= raw.high


def test_report_exporter_with_two_scrape_jobs_counts_once(tmp_path):
    once = series_of_scrapes(
        ((t, scrape([NodeGpu(POWER_STEPS)], NodeRun(), t)) for t in SCRAPE_TIMES), "a:9847"
    )
    again = [
        Series({**s.labels, "job": "other"}, [(t + 0.4, v) for t, v in s.samples]) for s in once
    ]

    report = assess(load_frames(tmp_path, [*once, *again]))

    assert report.headline.value == 6_000
    assert report.work[0].amount == 1_000

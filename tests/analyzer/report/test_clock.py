"""Wall clocks that are wrong or set by an hour during a run."""

from dataclasses import replace

import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, scrape_times, series_of_scrapes
from tests.analyzer.run_reports import (
    POWER_STEPS,
    RUN_GPU,
    SCRAPE_TIMES,
    finding_codes,
    finding_texts,
    load_frames,
)
from wattline.contract import metrics as m
from wattline.contract.history import Series
from wattline_analyzer.report.assess import assess

HOUR_S = 3_600.0
STEP_AT_S = START_S + 8
"""Time of the clock step, for steps during the run."""


def clock_report(folder, values_at):
    """Report of a run; `scrape_at(t)` gives timestamp and values of the scrape at the true time
    `t`.
    """
    return assess(load_frames(folder, series_of_scrapes(values_at(t) for t in SCRAPE_TIMES)))


def ledger_unchanged(report):
    """Return True if the ledger's figures are unchanged."""
    return (
        report.headline.value == 6_000
        and report.headline.half_width == 10
        and report.duration_s == 20
    )


@pytest.mark.parametrize("offset_s", [-HOUR_S, HOUR_S])
def test_clock_of_server_an_hour_off_excludes_raw_samples(tmp_path, offset_s):
    report = clock_report(tmp_path, lambda t: (t + offset_s, scrape([RUN_GPU], NodeRun(), t)))

    assert ledger_unchanged(report)
    assert report.energies.from_raw_samples is None
    assert report.energies.net is None
    ((_, text),) = finding_texts(report, "clock_apart")
    assert "by 1 h: a clock is wrong or was set; raw samples are not used" in text
    assert not {"gap", "outside_bound", "clock_set"} & set(finding_codes(report))
    assert report.devices[0].name == RUN_GPU.name


def test_clock_wrong_still_reports_simulated_hardware(tmp_path):
    gpu = NodeGpu(POWER_STEPS, name="SIMULATED NVIDIA H200")

    assert clock_report(tmp_path, lambda t: (t - HOUR_S, scrape([gpu], NodeRun(), t))).simulated


def run_after_step(t, step_s):
    """The run as exported at `t`; its start moves with the clock step."""
    if t < STEP_AT_S:
        return NodeRun()
    return NodeRun(start_s=START_S + step_s, end_s=START_S + 20 + step_s)


def scrape_after_step(t, step_s):
    """Scrape at the true time `t`: GPU power continues, run timestamps follow the new clock."""
    set_s = step_s if t >= STEP_AT_S else 0.0
    gpu = replace(RUN_GPU, steps=[(begin + set_s, watts) for begin, watts in POWER_STEPS])
    return scrape([gpu], run_after_step(t, step_s), t + set_s)


@pytest.mark.parametrize(("step_s", "way"), [(-HOUR_S, "back"), (HOUR_S, "forward")])
def test_clock_step_in_run_is_reported_and_remote_samples_are_excluded(tmp_path, step_s, way):
    report = clock_report(tmp_path, lambda t: (t, scrape_after_step(t, step_s)))

    assert ledger_unchanged(report)
    assert report.energies.from_raw_samples is None
    ((_, text),) = finding_texts(report, "clock_set")
    assert text.startswith(f"the node's wall clock was set {way} by 1 h during the run")
    assert "clock_apart" in finding_codes(report)


@pytest.mark.parametrize(("step_s", "way"), [(-HOUR_S, "back"), (HOUR_S, "forward")])
def test_clock_step_on_server_node_keeps_ledger_and_newest_values(tmp_path, step_s, way):
    """After a step back, samples from before the step have later timestamps than those from after
    it.
    """
    report = clock_report(
        tmp_path, lambda t: (t + (step_s if t >= STEP_AT_S else 0.0), scrape_after_step(t, step_s))
    )

    assert ledger_unchanged(report)
    assert report.outcome == "ok"
    assert report.started_at_s == START_S + step_s
    assert (
        report.energies.from_raw_samples is None
        or report.energies.from_raw_samples.low <= 6_000 <= report.energies.from_raw_samples.high
    )
    ((_, text),) = finding_texts(report, "clock_set")
    assert f"was set {way} by 1 h" in text
    assert "not_ended" not in finding_codes(report)


def test_clock_step_with_shifted_history_keeps_bound(tmp_path):
    report = clock_report(tmp_path, lambda t: (t - HOUR_S, scrape_after_step(t, -HOUR_S)))

    assert ledger_unchanged(report)
    assert report.energies.from_raw_samples.low <= 6_000 <= report.energies.from_raw_samples.high
    assert finding_texts(report, "clock_set")
    assert "clock_apart" not in finding_codes(report)


def test_clock_overlapping_samples_give_no_bound(tmp_path):
    """The clock was set back before the run: an hour of older samples overlaps; the counter jumps
    by 216,000 J.
    """
    before = [NodeGpu([(START_S - 3 * HOUR_S, 60)])]
    counted_j = before[0].energy_j(START_S)
    now = [NodeGpu([(START_S - 1_000 - counted_j / 60 - HOUR_S, 60), *POWER_STEPS[1:]])]
    values_at = [(t + 0.25, scrape(before, NodeRun(end_s=0), t)) for t in SCRAPE_TIMES]
    values_at += [(t, scrape(now, NodeRun(), t)) for t in SCRAPE_TIMES]

    report = assess(load_frames(tmp_path, merge_series(values_at)))

    assert ledger_unchanged(report)
    assert report.energies.from_raw_samples is None
    assert "clock_mixed" in finding_codes(report)
    assert not {"gap", "outside_bound", "counter_reset"} & set(finding_codes(report))


def merge_series(values_at):
    return [Series(s.labels, sorted(s.samples)) for s in series_of_scrapes(values_at)]


def test_clock_end_before_start_is_reported_without_bound(tmp_path):
    """The exporter did not apply the clock step to the run's end."""

    def values_at(t):
        for metric, labels, value in scrape([RUN_GPU], NodeRun(), t):
            yield metric, labels, value - HOUR_S if metric is m.RUN_END else value

    report = clock_report(tmp_path, lambda t: (t, values_at(t)))

    assert ledger_unchanged(report)
    assert report.energies.from_raw_samples is None
    assert "clock_apart" in finding_codes(report)


def test_clock_run_between_scrapes_is_checked_by_source_read_times(tmp_path):
    run = NodeRun(end_s=START_S + 4)
    gpu = NodeGpu([(START_S - 1_000, 60), (START_S, 300), (START_S + 4, 60)])

    def values_at(t):
        yield from scrape([gpu], run, t)
        yield m.SOURCE_UP, {"source": "nvml"}, 1.0
        yield m.SOURCE_READ_TIMESTAMP, {"source": "nvml"}, t - 0.1
        yield m.SOURCE_UP, {"source": "carbon"}, 1.0
        yield m.SOURCE_READ_TIMESTAMP, {"source": "carbon"}, t - 5_000

    times = scrape_times(15, START_S - 53, START_S + 60)
    right_clock, wrong_clock = tmp_path / "here", tmp_path / "there"
    right_clock.mkdir(), wrong_clock.mkdir()

    assert "clock_apart" not in finding_codes(
        assess(load_frames(right_clock, series_of_scrapes((t, values_at(t)) for t in times)))
    )
    report = assess(
        load_frames(wrong_clock, series_of_scrapes((t - HOUR_S, values_at(t)) for t in times))
    )
    assert "clock_apart" in finding_codes(report)
    assert report.headline.value == 1_200


def test_clock_right_has_no_finding(tmp_path):
    report = clock_report(
        tmp_path, lambda t: (t + 1.5, scrape([RUN_GPU], NodeRun(), t))
    )  # a slow scrape, not a wrong clock

    assert not [code for code in finding_codes(report) if code.startswith("clock")]

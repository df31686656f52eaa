"""Reports of runs with invalid, duplicate or missing samples.

True energy: 60 W, a run of 20 s (in some tests 400 s) at 300 W, then 60 W; so 6,000 J (120,000 J).
"""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, scrape_times, series_of_scrapes
from tests.analyzer.report.untagged import foreign_exporters as foreign
from tests.analyzer.run_reports import (
    POWER_STEPS,
    RUN_GPU,
    SCRAPE_TIMES,
    finding_codes,
    finding_texts,
    load_frames,
    run_frames,
    run_report,
)
from wattline.contract import metrics as m
from wattline.contract.history import Series
from wattline_analyzer.core.runs.load import Clock, load_run
from wattline_analyzer.core.sample_table import SampleTable, join_tables
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_analyzer.report.assess import assess

LONG_END_S = START_S + 400
LONG = NodeGpu([(START_S - 1_000, 60), (START_S, 300), (LONG_END_S, 60)])
LONG_RUN = NodeRun(end_s=LONG_END_S)


def is_correct(report, true_j=6_000):
    """True if the headline is exact and the bound from samples, if present, covers the true
    energy.
    """
    return report.headline.value == true_j and (
        report.energies.from_raw_samples is None
        or report.energies.from_raw_samples.low <= true_j <= report.energies.from_raw_samples.high
    )


def with_extra_sample(frames, metric, at_s, value, later_s=0.0):
    """Repeat the sample of the metric at that time, `later_s` later, with another value."""
    rows = frames.raw.take(frames.raw.where("metric", [metric.name]) & (frames.raw.t == at_s))
    assert len(rows) == 1
    extra = SampleTable(
        rows.t + later_s, np.array([value]), {name: rows.column(name) for name in rows.labels}
    )
    return replace(frames, raw=join_tables([frames.raw, extra]))


def test_bad_samples_two_values_at_one_time_are_reported(tmp_path):
    """The counter has a second sample at the run's 10 s, with 1,000,000 J more."""
    frames = run_frames(tmp_path)
    at_s = next(t for t in SCRAPE_TIMES if t > START_S + 10)

    report = assess(with_extra_sample(frames, m.GPU_ENERGY, at_s, RUN_GPU.energy_j(at_s) + 1e6))

    assert is_correct(report)
    ((_, text),) = finding_texts(report, "duplicate_samples")
    assert text.startswith("its energy has two different values at 1 time; the first value counts")


def test_bad_samples_equal_value_at_one_time_is_ignored(tmp_path):
    frames = run_frames(tmp_path)
    at_s = next(t for t in SCRAPE_TIMES if t > START_S + 10)

    report = assess(with_extra_sample(frames, m.GPU_ENERGY, at_s, RUN_GPU.energy_j(at_s)))

    assert is_correct(report)
    assert "duplicate_samples" not in finding_codes(report)


def test_bad_samples_random_order_gives_same_report(tmp_path):
    frames = run_frames(tmp_path)
    order = np.random.default_rng(1).permutation(len(frames.raw))

    report = assess(replace(frames, raw=frames.raw.take(order)))

    assert is_correct(report)
    assert report == assess(frames)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("metric", [m.GPU_ENERGY, m.GPU_POWER], ids=["energy", "power"])
def test_bad_samples_nan_or_infinite_value_is_ignored(tmp_path, value, metric):
    frames = run_frames(tmp_path)
    at_s = next(t for t in SCRAPE_TIMES if t > START_S + 10)

    report = assess(with_extra_sample(frames, metric, at_s, value, later_s=0.5))

    assert is_correct(report)
    assert report == assess(frames)


def test_bad_samples_missing_for_5_s_are_reported_as_gap(tmp_path):
    times = [t for t in SCRAPE_TIMES if not START_S + 5 < t < START_S + 10]

    report = run_report(tmp_path, times=times)

    assert is_correct(report)
    ((_, text),) = finding_texts(report, "gap")
    assert text.startswith("1 gap between samples, the longest 6.0 s")


def test_bad_samples_counter_reset_is_reported_and_ledger_kept(tmp_path):
    """The raw counter restarts at 0 at the run's 10 s; at most 300 J are hidden."""
    fallen_s = START_S + 10.2

    def counter(t):
        return (
            RUN_GPU.energy_j(t)
            if t < fallen_s
            else RUN_GPU.energy_j(t) - RUN_GPU.energy_j(fallen_s)
        )

    report = assess(
        load_frames(
            tmp_path,
            series_of_scrapes((t, scrape_with_counter(t, counter(t))) for t in SCRAPE_TIMES),
        )
    )

    assert is_correct(report)
    ((_, text),) = finding_texts(report, "counter_reset")
    assert text.startswith("the energy counter was reset 10 s after the start")


def test_bad_samples_late_counter_value_is_no_reset(tmp_path):
    """The scrape at the run's 10 s has the counter's value of 3 s before, of 30,000 J and more."""
    late_s = next(t for t in SCRAPE_TIMES if t > START_S + 10)

    def counter(t):
        return 30_000 + RUN_GPU.energy_j(t - 3 if t == late_s else t)

    report = assess(
        load_frames(
            tmp_path,
            series_of_scrapes((t, scrape_with_counter(t, counter(t))) for t in SCRAPE_TIMES),
        )
    )

    assert is_correct(report)
    # 300 W × 19 s, and half of 180 J in the second of each edge, half of which has 60 W
    assert report.energies.from_raw_samples.value == pytest.approx(5_880)
    assert finding_texts(report, "counter_reset") == []


def scrape_with_counter(t, energy_j):
    """Scrape with another value of the energy counter."""
    for metric, labels, value in scrape([RUN_GPU], NodeRun(), t):
        yield metric, labels, energy_j if metric is m.GPU_ENERGY else value


def test_bad_samples_exporter_down_leaves_gap_without_extrapolation(tmp_path):
    """Power is not extrapolated over the 200 s: the integral would be 60,000 J more."""
    times = [
        t
        for t in scrape_times(1, START_S - 60.5, LONG_END_S + 60)
        if not START_S + 100 < t < START_S + 300
    ]
    run = replace(LONG_RUN, covered_ratio=0.5)

    report = run_report(tmp_path, run, gpus=[LONG], times=times)

    assert is_correct(report, 120_000)
    assert {"gap", "coverage"} <= set(finding_codes(report))
    (budget,) = report.budgets.values()
    assert budget.gaps_j is None  # the counter continued


def test_bad_samples_run_longer_than_retention_uses_ledger(tmp_path):
    """The source has no samples of the first 250 s of 400."""
    times = scrape_times(1, START_S + 250.5, LONG_END_S + 60)

    report = run_report(tmp_path, LONG_RUN, gpus=[LONG], times=times)

    assert report.headline.value == 120_000
    assert report.duration_s == 400
    assert report.energies.from_raw_samples is None
    assert report.devices[0].idle_power_w.value == 60  # from the time after the run
    ((_, text),) = finding_texts(report, "begin_missing")
    assert text.startswith("the source's samples start 250 s after the run")
    assert not {"gap", "outside_bound"} & set(finding_codes(report))


def test_bad_samples_two_exporters_in_one_series_give_no_bound(tmp_path):
    """Each has its own state and its own counter start; only one has the run."""
    ours = series_of_scrapes(((t, scrape([RUN_GPU], NodeRun(), t)) for t in SCRAPE_TIMES), "node-1")
    other = NodeGpu([(START_S - 900_000, 60), *POWER_STEPS[1:]])
    theirs = series_of_scrapes(
        ((t + 0.3, scrape([other], NodeRun(end_s=0), t)) for t in SCRAPE_TIMES), "node-1"
    )
    series = {}
    for entry in [*ours, *theirs]:
        series.setdefault(tuple(sorted(entry.labels.items())), []).extend(entry.samples)

    report = assess(
        load_frames(
            tmp_path, [Series(dict(labels), sorted(both)) for labels, both in series.items()]
        )
    )

    assert is_correct(report)
    assert report.energies.from_raw_samples is None
    ((_, text),) = finding_texts(report, "clock_mixed")
    assert "or two exporters write one series" in text


def test_bad_samples_gpu_of_two_exporters_counts_once(tmp_path):
    """The second exporter, at another address, does not have the run."""
    ours = series_of_scrapes(((t, scrape([RUN_GPU], NodeRun(), t)) for t in SCRAPE_TIMES), "a:9847")
    others = series_of_scrapes(
        ((t + 0.3, scrape([RUN_GPU], NodeRun(start_s=START_S + 1e6), t)) for t in SCRAPE_TIMES),
        "b:9847",
    )

    report = assess(load_frames(tmp_path, [*ours, *others]))

    assert is_correct(report)
    assert report.instances == ("a:9847",)
    assert len(report.devices) == 1


def scrape_lines(times):
    """Lines of the scrapes in Prometheus's text format with timestamps."""
    for t in times:
        for metric, labels, value in scrape([RUN_GPU], NodeRun(), t):
            labels_text = ",".join(
                f'{name}="{text}"' for name, text in {**labels, "instance": "a:9847"}.items()
            )
            yield f"{metric.name}{{{labels_text}}} {value!r} {t:.3f}"


def test_bad_samples_in_real_server_give_correct_energy(tmp_path):
    """Samples are imported in random order; VictoriaMetrics keeps duplicates."""
    at_s = next(t for t in SCRAPE_TIMES if t > START_S + 10)
    counter = f'{m.GPU_ENERGY.name}{{gpu="0",uuid="{RUN_GPU.uuid}",instance="a:9847"}}'
    lines = list(scrape_lines(SCRAPE_TIMES))
    lines += [
        f"{counter} {RUN_GPU.energy_j(at_s) + 1e6!r} {at_s:.3f}",
        f"{counter} NaN {at_s + 0.5:.3f}",
    ]
    np.random.default_rng(2).shuffle(lines)

    with (
        foreign.victoria_metrics_with(tmp_path, lines) as address,
        closing(PrometheusSource(address)) as source,
    ):
        clock = Clock(lambda: START_S + 3_600, lambda _: None)
        report = assess(load_run(source, "train-1", 86_400, clock, lambda _: None))

    assert is_correct(report)
    assert {"duplicate_samples", "counter_reset", "clock_mixed"} & set(finding_codes(report))


@pytest.mark.parametrize(("covered", "found"), [(0.94, False), (1.0, True)])
def test_report_integral_deficit_of_uncovered_time_is_no_disagreement(tmp_path, covered, found):
    """The integral is 8 % below the counter: 6 % of the run without samples explain it within 5
    %.
    """
    run = NodeRun(end_s=START_S + 60, integral_factor=0.92, covered_ratio=covered)
    minute = [(START_S - 1_000, 60), (START_S, 300), (START_S + 60, 60)]

    report = run_report(
        tmp_path, run, gpus=[NodeGpu(minute)], times=scrape_times(1, START_S - 60.5, START_S + 90)
    )

    assert ("counter_integral_apart" in finding_codes(report)) is found

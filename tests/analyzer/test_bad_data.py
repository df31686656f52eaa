"""Samples as they should not be: each gives a finding, and no figure that is silently wrong.

The truth is always the same: 60 W, a run of 20 s (some: 400 s) at 300 W, then 60 W; so 6,000 J (120,000 J).
"""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analyzer.assess.run import assess
from analyzer.sources.prometheus import PrometheusSource
from analyzer.sources.runs.load import Clock, load_run
from exporter.contract import metrics as m
from exporter.contract.history import Series
from tests.analyzer.node import START_S, Gpu, Run, every, scrape, scraped
from tests.analyzer.reported import BOX, BOXED, TIMES, codes, found, frames_of, frames_with, report_of
from tests.analyzer.sources.untagged import foreign_exporters as foreign

LONG_END_S = START_S + 400
LONG = Gpu([(START_S - 1_000, 60), (START_S, 300), (LONG_END_S, 60)])
LONG_RUN = Run(end_s=LONG_END_S)


def holds(report, truth_j=6_000):
    """The headline is the truth, and so is what the raw samples allow, where they allow anything."""
    return report.headline.value == truth_j and (report.own is None or report.own.low <= truth_j <= report.own.high)


def with_more(frames, metric, at_s, value, later_s=0.0):
    """The sample of the metric at that time once more, `later_s` after it, with another value."""
    rows = frames.raw[(frames.raw["metric"] == metric.name) & (frames.raw["t"] == at_s)]
    assert len(rows) == 1
    return replace(frames, raw=pd.concat([frames.raw, rows.assign(t=at_s + later_s, value=value)], ignore_index=True))


def test_two_values_at_one_time_are_told(tmp_path):
    """The counter's sample at the run's 10 s is there twice, once with 1,000,000 J more."""
    frames = frames_with(tmp_path)
    at_s = next(t for t in TIMES if t > START_S + 10)

    report = assess(with_more(frames, m.GPU_ENERGY, at_s, BOXED.energy_j(at_s) + 1e6))

    assert holds(report)
    ((_, text),) = found(report, "duplicate_samples")
    assert text.startswith("its energy has two different values at 1 time; the first value counts")


def test_the_same_value_twice_at_one_time_is_no_contradiction(tmp_path):
    frames = frames_with(tmp_path)
    at_s = next(t for t in TIMES if t > START_S + 10)

    report = assess(with_more(frames, m.GPU_ENERGY, at_s, BOXED.energy_j(at_s)))

    assert holds(report)
    assert "duplicate_samples" not in codes(report)


def test_samples_in_disorder_give_the_same_report(tmp_path):
    frames = frames_with(tmp_path)
    order = np.random.default_rng(1).permutation(len(frames.raw))

    report = assess(replace(frames, raw=frames.raw.iloc[order].reset_index(drop=True)))

    assert holds(report)
    assert report == assess(frames)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("metric", [m.GPU_ENERGY, m.GPU_POWER], ids=["energy", "power"])
def test_a_value_that_is_no_number_is_no_sample(tmp_path, bad, metric):
    frames = frames_with(tmp_path)
    at_s = next(t for t in TIMES if t > START_S + 10)

    report = assess(with_more(frames, metric, at_s, bad, later_s=0.5))

    assert holds(report)
    assert report == assess(frames)


def test_five_seconds_of_no_numbers_are_a_gap(tmp_path):
    times = [t for t in TIMES if not START_S + 5 < t < START_S + 10]

    report = report_of(tmp_path, times=times)

    assert holds(report)
    ((_, text),) = found(report, "gap")
    assert text.startswith("1 gap between samples, the longest 6.0 s")


def test_a_driver_that_was_reloaded_in_the_run_is_told_and_the_ledger_stands(tmp_path):
    """The raw counter begins again at 0 at the run's 10 s; 300 J at most are hidden."""
    fallen_s = START_S + 10.2

    def counter(t):
        return BOXED.energy_j(t) if t < fallen_s else BOXED.energy_j(t) - BOXED.energy_j(fallen_s)

    report = assess(frames_of(tmp_path, scraped((t, swapped(t, counter(t))) for t in TIMES)))

    assert holds(report)
    ((_, text),) = found(report, "counter_reset")
    assert text.startswith("the energy counter was reset 10 s after the start")


def swapped(t, energy_j):
    """A scrape, with another value of the counter."""
    for metric, labels, value in scrape([BOXED], Run(), t):
        yield metric, labels, energy_j if metric is m.GPU_ENERGY else value


def test_an_exporter_that_was_dead_in_the_middle_leaves_a_gap_that_nothing_fills(tmp_path):
    """No power is carried on over the 200 s: the integral would be 60,000 J more."""
    times = [t for t in every(1, START_S - 60.5, LONG_END_S + 60) if not START_S + 100 < t < START_S + 300]
    run = replace(LONG_RUN, covered_ratio=0.5)

    report = report_of(tmp_path, run, gpus=[LONG], times=times)

    assert holds(report, 120_000)
    assert {"gap", "coverage"} <= set(codes(report))
    (device,) = report.devices
    assert device.budget.gaps_j is None  # the counter went on


def test_a_run_longer_than_the_retention_is_the_ledgers_and_samples_cover_the_rest(tmp_path):
    """The source holds nothing of the first 250 s of 400."""
    times = every(1, START_S + 250.5, LONG_END_S + 60)

    report = report_of(tmp_path, LONG_RUN, gpus=[LONG], times=times)

    assert report.headline.value == 120_000
    assert report.duration_s == 400
    assert report.own is None
    assert report.devices[0].idle_power_w.value == 60  # from after the run alone
    ((_, text),) = found(report, "begin_missing")
    assert text.startswith("the source's samples start 250 s after the run")
    assert not {"gap", "outside_bound"} & set(codes(report))


def test_two_exporters_that_write_one_series_give_no_bound(tmp_path):
    """Each has its own state and counts from another begin; only one of them has the run."""
    ours = scraped(((t, scrape([BOXED], Run(), t)) for t in TIMES), "node-1")
    other = Gpu([(START_S - 900_000, 60), *BOX[1:]])
    theirs = scraped(((t + 0.3, scrape([other], Run(end_s=0), t)) for t in TIMES), "node-1")
    series = {}
    for one in [*ours, *theirs]:
        series.setdefault(tuple(sorted(one.labels.items())), []).extend(one.samples)

    report = assess(frames_of(tmp_path, [Series(dict(labels), sorted(both)) for labels, both in series.items()]))

    assert holds(report)
    assert report.own is None
    ((_, text),) = found(report, "clock_mixed")
    assert "or two exporters write one series" in text


def test_a_gpu_that_a_second_exporter_shows_too_is_counted_once(tmp_path):
    """The second, at another address, knows nothing of the run."""
    ours = scraped(((t, scrape([BOXED], Run(), t)) for t in TIMES), "a:9847")
    others = scraped(((t + 0.3, scrape([BOXED], Run(start_s=START_S + 1e6), t)) for t in TIMES), "b:9847")

    report = assess(frames_of(tmp_path, [*ours, *others]))

    assert holds(report)
    assert report.instances == ("a:9847",)
    assert len(report.devices) == 1


def lines_of(times):
    """What was scraped, in Prometheus's text format with times."""
    for t in times:
        for metric, labels, value in scrape([BOXED], Run(), t):
            where = ",".join(f'{name}="{text}"' for name, text in {**labels, "instance": "a:9847"}.items())
            yield f"{metric.name}{{{where}}} {value!r} {t:.3f}"


def test_a_real_server_that_holds_two_values_at_one_time_and_no_numbers_gives_no_wrong_figure(tmp_path):
    """Written in disorder; VictoriaMetrics keeps what it is sent."""
    at_s = next(t for t in TIMES if t > START_S + 10)
    counter = f'{m.GPU_ENERGY.name}{{gpu="0",uuid="{BOXED.uuid}",instance="a:9847"}}'
    lines = list(lines_of(TIMES))
    lines += [f"{counter} {BOXED.energy_j(at_s) + 1e6!r} {at_s:.3f}", f"{counter} NaN {at_s + 0.5:.3f}"]
    np.random.default_rng(2).shuffle(lines)

    with foreign.victoria_metrics_with(tmp_path, lines) as address, closing(PrometheusSource(address)) as source:
        clock = Clock(lambda: START_S + 3_600, lambda _: None)
        report = assess(load_run(source, "train-1", 86_400, clock, lambda _: None))

    assert holds(report)
    assert {"duplicate_samples", "counter_reset", "clock_mixed"} & set(codes(report))

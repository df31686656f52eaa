"""Someone sets the wall clock by an hour: the ledger's figures stand, and nothing else is made up."""

from dataclasses import replace

import pytest

from analyzer.assess.run import assess
from exporter.contract import metrics as m
from exporter.contract.history import Series
from tests.analyzer.node import START_S, Gpu, Run, every, scrape, scraped
from tests.analyzer.reported import BOX, BOXED, TIMES, codes, found, frames_of

HOUR_S = 3_600.0
OPENED_S = START_S + 8
"""When the clock is set, where that happens in the run."""


def report_of(folder, shown):
    """`shown` gives the timestamp of a scrape, and what it shows, at a moment of the true time."""
    return assess(frames_of(folder, scraped(shown(t) for t in TIMES)))


def stands(report):
    """What no clock can change is as it was; and there is no figure from samples that belong to another time."""
    return report.headline.value == 6_000 and report.headline.half == 10 and report.duration_s == 20


@pytest.mark.parametrize("offset_s", [-HOUR_S, HOUR_S])
def test_a_server_whose_clock_is_an_hour_off_gives_no_figure_from_its_samples(tmp_path, offset_s):
    report = report_of(tmp_path, lambda t: (t + offset_s, scrape([BOXED], Run(), t)))

    assert stands(report)
    assert report.own is None
    assert report.net is None
    ((_, text),) = found(report, "clock_apart")
    assert "by 1 h: a clock is wrong or was set; raw samples are not used" in text
    assert not {"gap", "outside_bound", "clock_set"} & set(codes(report))
    assert report.devices[0].name == BOXED.name


def test_simulated_hardware_is_said_whatever_the_clock_is(tmp_path):
    gpu = Gpu(BOX, name="SIMULATED NVIDIA H200")

    assert report_of(tmp_path, lambda t: (t - HOUR_S, scrape([gpu], Run(), t))).simulated


def stepped(t, step_s):
    """The run as the exporter shows it where the clock is set in it: its begin goes along, at once."""
    if t < OPENED_S:
        return Run()
    return Run(start_s=START_S + step_s, end_s=START_S + 20 + step_s)


def after_step(t, step_s):
    """The scrape at `t` of the true time: the GPUs go on, and the run's moments are by the clock that was set."""
    set_s = step_s if t >= OPENED_S else 0.0
    gpu = replace(BOXED, steps=[(begin + set_s, watts) for begin, watts in BOX])
    return scrape([gpu], stepped(t, step_s), t + set_s)


@pytest.mark.parametrize(("step_s", "way"), [(-HOUR_S, "back"), (HOUR_S, "forward")])
def test_a_clock_that_is_set_in_the_run_is_told_and_a_server_elsewhere_gives_no_bound(tmp_path, step_s, way):
    report = report_of(tmp_path, lambda t: (t, after_step(t, step_s)))

    assert stands(report)
    assert report.own is None
    ((_, text),) = found(report, "clock_set")
    assert text.startswith(f"the node's wall clock was set {way} by 1 h during the run")
    assert "clock_apart" in codes(report)


@pytest.mark.parametrize(("step_s", "way"), [(-HOUR_S, "back"), (HOUR_S, "forward")])
def test_a_server_on_the_node_itself_has_samples_by_both_clocks_and_the_newer_count(tmp_path, step_s, way):
    """Set back: those of before the step are stamped later than those of after it."""
    report = report_of(tmp_path, lambda t: (t + (step_s if t >= OPENED_S else 0.0), after_step(t, step_s)))

    assert stands(report)
    assert report.outcome == "ok"
    assert report.started_at_s == START_S + step_s
    assert report.own is None or report.own.low <= 6_000 <= report.own.high
    ((_, text),) = found(report, "clock_set")
    assert f"was set {way} by 1 h" in text
    assert "not_ended" not in codes(report)


def test_a_history_that_was_moved_along_with_the_clock_keeps_its_bound(tmp_path):
    report = report_of(tmp_path, lambda t: (t - HOUR_S, after_step(t, -HOUR_S)))

    assert stands(report)
    assert report.own.low <= 6_000 <= report.own.high
    assert found(report, "clock_set")
    assert "clock_apart" not in codes(report)


def test_samples_of_two_times_that_lie_over_each_other_give_no_bound(tmp_path):
    """The clock was set back before the run, so an hour of before lies under it: the counter jumps by 216,000 J."""
    before = [Gpu([(START_S - 3 * HOUR_S, 60)])]
    counted_j = before[0].energy_j(START_S)
    now = [Gpu([(START_S - 1_000 - counted_j / 60 - HOUR_S, 60), *BOX[1:]])]
    shown = [(t + 0.25, scrape(before, Run(end_s=0), t)) for t in TIMES]
    shown += [(t, scrape(now, Run(), t)) for t in TIMES]

    report = assess(frames_of(tmp_path, merged(shown)))

    assert stands(report)
    assert report.own is None
    assert "clock_mixed" in codes(report)
    assert not {"gap", "outside_bound", "counter_reset"} & set(codes(report))


def merged(shown):
    return [Series(s.labels, sorted(s.samples)) for s in scraped(shown)]


def test_an_end_before_the_begin_is_a_finding_and_no_bound_of_nothing(tmp_path):
    """As an exporter wrote it that did not follow its clock."""

    def shown(t):
        for metric, labels, value in scrape([BOXED], Run(), t):
            yield metric, labels, value - HOUR_S if metric is m.RUN_END else value

    report = report_of(tmp_path, lambda t: (t, shown(t)))

    assert stands(report)
    assert report.own is None
    assert "clock_apart" in codes(report)


def test_a_short_run_that_no_scrape_met_is_placed_by_when_the_sources_were_read(tmp_path):
    run = Run(end_s=START_S + 4)
    gpu = Gpu([(START_S - 1_000, 60), (START_S, 300), (START_S + 4, 60)])

    def shown(t):
        yield from scrape([gpu], run, t)
        yield m.SOURCE_UP, {"source": "nvml"}, 1.0
        yield m.SOURCE_READ_TIMESTAMP, {"source": "nvml"}, t - 0.1
        yield m.SOURCE_UP, {"source": "carbon"}, 1.0
        yield m.SOURCE_READ_TIMESTAMP, {"source": "carbon"}, t - 5_000

    times = every(15, START_S - 53, START_S + 60)
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()

    assert "clock_apart" not in codes(assess(frames_of(here, scraped((t, shown(t)) for t in times))))
    report = assess(frames_of(there, scraped((t - HOUR_S, shown(t)) for t in times)))
    assert "clock_apart" in codes(report)
    assert report.headline.value == 1_200


def test_a_clock_that_is_right_gives_no_finding(tmp_path):
    report = report_of(tmp_path, lambda t: (t + 1.5, scrape([BOXED], Run(), t)))  # a slow scrape is no wrong clock

    assert not [code for code in codes(report) if code.startswith("clock")]

"""A run's report from its history, against truth worked out by hand."""

from dataclasses import replace

import pytest

from analyzer.assess.run import NoEnergyError, assess
from analyzer.model.interval import Interval
from analyzer.model.samples import RunFrames, tidy
from analyzer.output.export import power_samples
from analyzer.output.html.page import html_page
from analyzer.output.plots.run import run_plot
from exporter.contract import metrics as m
from exporter.contract.history import Series
from tests.analyzer.node import START_S, Gpu, Run, every, scrape, scraped
from tests.analyzer.reported import BOX, TIMES, codes, frames_of, report_of


def test_the_headline_is_the_ledgers_and_halves_add_up(tmp_path):
    report = report_of(tmp_path, gpus=[Gpu(BOX, index="0"), Gpu(BOX, index="1")])

    assert report.headline.value == 12_000  # 300 W x 20 s x 2
    assert report.headline.half == 20.0  # 10 J each
    assert [device.label for device in report.devices] == ["GPU 0", "GPU 1"]
    assert report.duration_s == 20
    assert report.mean_power_w.value == 600


def test_the_own_figure_stands_beside_it_with_a_bound_that_holds_the_truth(tmp_path):
    report = report_of(tmp_path)

    assert report.own.low <= 6_000 <= report.own.high
    assert report.own.value == pytest.approx(6_000, rel=0.03)


@pytest.mark.parametrize("interval_s", [1, 5, 15, 30])
def test_a_run_of_any_length_against_any_scrape_interval_has_the_ledgers_energy(tmp_path, interval_s):
    report = report_of(tmp_path, times=every(interval_s, START_S - 61.3, START_S + 120))

    assert report.headline.value == 6_000
    assert report.own.low <= 6_000 <= report.own.high


def test_work_gives_joules_per_unit_and_units_per_second(tmp_path):
    (work,) = report_of(tmp_path).work

    assert (work.unit, work.amount, work.per_second) == ("generated_tokens", 1_000, 50)
    assert work.energy_per_unit.value == 6  # 6,000 J over 1,000 tokens
    assert work.energy_per_unit.half == pytest.approx(0.01)


def test_energy_above_idle_is_told_where_an_idle_window_lies_beside_the_run(tmp_path):
    report = report_of(tmp_path)

    assert report.devices[0].idle_power_w.value == 60
    assert report.net.value == 4_800  # 6,000 J - 60 W x 20 s


def test_without_an_idle_window_there_is_no_net_energy(tmp_path):
    report = report_of(tmp_path, times=every(1, START_S - 5.5, START_S + 25))

    assert report.net is None


def test_another_run_beside_takes_the_idle_window_away_and_the_cpu_is_the_whole_nodes(tmp_path):
    other = Run(run_id="neighbour", start_s=START_S - 200, end_s=START_S + 200)

    report = report_of(tmp_path, run=Run(cpu_j=1_000.0), beside=[other])

    assert report.net is None
    assert all(device.shared for device in report.devices)
    assert report.whole is None
    assert any(f.subject == "CPU 0" and "the whole node, also used by neighbour" in f.text for f in report.findings)


def test_an_earlier_run_leaves_cpu_and_gpu_to_this_one(tmp_path):
    report = report_of(
        tmp_path, run=Run(cpu_j=1_000.0), beside=[Run(run_id="before", start_s=START_S - 40, end_s=START_S - 25)]
    )

    assert not any(device.shared for device in report.devices)
    assert report.whole.value == 7_000
    assert report.net.value == 4_800  # from the 25 s between the runs


def test_emissions_are_the_ledgers_and_a_given_intensity_stands_beside_them(tmp_path):
    report = report_of(tmp_path, run=Run(emissions_g=0.5), carbon=230.0)

    assert [(e.origin, round(e.mass_g.value, 6)) for e in report.emissions] == [
        ("ledger", 0.5),
        ("given intensity", 0.383333),  # 6,000 J / 3.6e6 x 230 g
    ]


def test_each_half_hour_has_its_own_intensity(tmp_path):
    border_s = (START_S // 1_800 + 1) * 1_800
    gpu = Gpu([(border_s - 1_000, 60), (border_s - 5, 300), (border_s + 15, 60)])
    run = Run(start_s=border_s - 5, end_s=border_s + 15)
    series = scraped(
        (t, scrape([gpu], run, t, intensity=100.0 if t < border_s else 300.0))
        for t in every(1, border_s - 60, border_s + 60)
    )

    report = assess(frames_of(tmp_path, series))

    assert [(slot.grams_per_kwh, slot.start_s) for slot in report.carbon_slots] == [
        (100, border_s - 5),
        (300, border_s),
    ]
    assert [slot.gpu_energy_j for slot in report.carbon_slots] == pytest.approx([1_500, 4_500])
    assert sum(slot.mass_g for slot in report.carbon_slots) == pytest.approx((1_500 * 100 + 4_500 * 300) / 3.6e6)


def test_phases_stand_in_the_order_in_which_they_came(tmp_path):
    early = Run(phases={"warm-up": (5.0, 1_500.0)})
    late = Run(phases={"measure": (15.0, 4_500.0), "warm-up": (5.0, 1_500.0)})
    series = scraped((t, scrape([Gpu(BOX)], early if t < START_S + 5 else late, t)) for t in TIMES)

    report = assess(frames_of(tmp_path, series))

    assert [(phase.name, phase.duration_s, phase.energy) for phase in report.phases] == [
        ("warm-up", 5.0, {"gpu": Interval(1_500.0)}),
        ("measure", 15.0, {"gpu": Interval(4_500.0)}),
    ]


def test_energy_and_rate_of_work_are_those_of_the_phases_in_which_it_was_done(tmp_path):
    """Loading takes 15 of 20 s and 4,500 of 6,000 J: 1,000 tokens in the other 5 s are 200/s and 1.5 J each."""
    phases = {"load": (15.0, 4_500.0), "measure": (5.0, 1_500.0)}
    run = Run(phases=phases, phase_uncertainty_j=50.0, phase_work={"measure": {"generated_tokens": 1_000.0}})
    report = assess(frames_of(tmp_path, scraped((t, scrape([Gpu(BOX)], run, t)) for t in TIMES)))

    (work,) = report.work
    assert work.phases == ("measure",)
    assert work.per_second == pytest.approx(200.0)
    assert work.energy_per_unit == Interval(pytest.approx(1.5), pytest.approx(0.05))


def test_a_little_work_that_was_reported_late_takes_in_no_other_phase(tmp_path):
    phases = {"measure": (5.0, 1_500.0), "rest": (15.0, 4_500.0)}
    run = Run(phases=phases, phase_work={"measure": {"generated_tokens": 999}, "rest": {"generated_tokens": 1}})
    report = assess(frames_of(tmp_path, scraped((t, scrape([Gpu(BOX)], run, t)) for t in TIMES)))

    assert report.work[0].phases == ("measure",)
    assert report.work[0].energy_per_unit.value == pytest.approx(1.5)


def test_while_a_run_is_on_its_work_has_the_energy_of_the_whole_run_so_far(tmp_path):
    phases = {"load": (10.0, 3_000.0), "measure": (2.0, 600.0)}
    run = Run(end_s=None, phases=phases, phase_work={"measure": {"generated_tokens": 1_000.0}})
    report = assess(frames_of(tmp_path, scraped((t, scrape([Gpu(BOX)], run, t)) for t in TIMES)))

    assert report.work[0].phases == ()
    assert report.work[0].energy_per_unit.value == pytest.approx(report.headline.value / 1_000)


@pytest.mark.parametrize("counted", [400.0, 0.0], ids=["partly before any phase", "of an older exporter"])
def test_work_that_was_done_at_unknown_times_has_the_energy_of_the_whole_run(tmp_path, counted):
    phases = {"load": (15.0, 4_500.0), "measure": (5.0, 1_500.0)}
    run = Run(phases=phases, phase_work={"measure": {"generated_tokens": counted}} if counted else {})
    report = assess(frames_of(tmp_path, scraped((t, scrape([Gpu(BOX)], run, t)) for t in TIMES)))

    (work,) = report.work
    assert work.phases == ()
    assert work.per_second == pytest.approx(1_000 / report.duration_s)
    assert work.energy_per_unit.value == pytest.approx(report.headline.value / 1_000)


def two_instances(folder, second_gpu):
    first = scraped(((t, scrape([Gpu(BOX)], Run(), t)) for t in TIMES), "a:9847")
    second = scraped(((t, scrape([second_gpu], Run(), t)) for t in TIMES), "b:9847")
    series = [Series({k: v for k, v in s.labels.items() if k != "job"}, s.samples) for s in [*first, *second]]
    return assess(frames_of(folder, series))


def test_over_several_instances_energy_and_work_are_added(tmp_path):
    report = two_instances(tmp_path, Gpu(BOX, index="1"))

    assert report.instances == ("a:9847", "b:9847")
    assert report.headline.value == 12_000
    assert report.work[0].amount == 2_000
    assert report.devices[0].label == "a:9847 GPU 0"


def test_one_exporter_under_two_addresses_is_counted_once(tmp_path):
    report = two_instances(tmp_path, Gpu(BOX))

    assert report.instances == ("a:9847",)
    assert report.headline.value == 6_000
    assert "alias" in codes(report)


def test_two_jobs_that_scrape_the_same_exporter_count_once(tmp_path):
    once = scraped(((t, scrape([Gpu(BOX)], Run(), t)) for t in TIMES), "a:9847")
    again = [Series({**s.labels, "job": "other"}, [(t + 0.4, v) for t, v in s.samples]) for s in once]

    report = assess(frames_of(tmp_path, [*once, *again]))

    assert report.headline.value == 6_000
    assert report.work[0].amount == 1_000


def test_a_run_without_gpus_is_reported_by_its_cpus(tmp_path):
    frames = frames_of(tmp_path, scraped((t, scrape([], Run(cpu_j=1_000.0), t)) for t in TIMES))

    report = assess(frames)
    table = power_samples(frames, report)

    assert report.headline.value == 1_000
    assert report.work[0].energy_per_unit.value == 1
    assert report.own is None
    drawn = run_plot(report, table)
    assert drawn.startswith(b"\x89PNG")
    assert "on CPUs in" in html_page(report, frames, frames.raw, drawn)


def test_simulated_hardware_is_said(tmp_path):
    report = report_of(tmp_path, gpus=[Gpu(BOX, name="SIMULATED NVIDIA H200")])

    assert report.simulated
    assert report.findings[0].text.startswith("SIMULATED hardware (SIMULATED NVIDIA H200)")
    assert "systematic_band" not in codes(report)


def test_the_systematic_band_of_the_architecture_is_told_and_is_no_part_of_the_interval(tmp_path):
    (finding,) = report_of(tmp_path).findings

    assert finding.text.startswith("systematic error of the sensor -6 to +3 % (architecture: GA100)")


def test_a_gap_in_the_scrapes_is_found_and_the_energy_bridges_it(tmp_path):
    times = [t for t in TIMES if not START_S + 5 < t < START_S + 12]

    report = report_of(tmp_path, times=times)

    assert report.own.value == pytest.approx(6_000, rel=0.03)
    assert any(f.code == "gap" and "the longest 8.0 s, 4 s after the start" in f.text for f in report.findings)


def test_coverage_below_one_is_found(tmp_path):
    report = report_of(tmp_path, run=Run(covered_ratio=0.9))

    assert any(f.code == "coverage" and "90.0 %" in f.text for f in report.findings)


def test_counter_and_integral_more_than_five_percent_apart_are_found_over_a_minute_and_not_below(tmp_path):
    minute = [(START_S - 1_000, 60), (START_S, 300), (START_S + 60, 60)]
    short, long = tmp_path / "short", tmp_path / "long"
    short.mkdir()
    long.mkdir()

    assert "counter_integral_apart" not in codes(report_of(short, run=Run(integral_factor=0.9)))
    report = report_of(
        long,
        run=Run(end_s=START_S + 60, integral_factor=0.9),
        gpus=[Gpu(minute)],
        times=every(1, START_S - 60.5, START_S + 90),
    )
    assert any(
        f.code == "counter_integral_apart" and "differ by -10.0 % (limit 5 %)" in f.text for f in report.findings
    )


def test_a_ledger_that_contradicts_the_raw_samples_is_found(tmp_path):
    frames = frames_of(tmp_path, scraped((t, scrape([Gpu(BOX)], Run(), t)) for t in TIMES))
    ledger = frames.ledger.copy()
    ledger.loc[ledger["metric"] == m.RUN_ENERGY.name, "value"] = 9_000.0

    assert "outside_bound" in codes(assess(replace(frames, ledger=ledger)))


def test_a_run_without_any_energy_is_no_report():
    nothing = tidy([])

    with pytest.raises(NoEnergyError, match=r'no wattline_run_energy_joules_total\{run_id="x"\} at here'):
        assess(RunFrames("x", "here", nothing, nothing, nothing))

"""Report of a run from its history."""

from dataclasses import replace

import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, scrape_times, series_of_scrapes
from tests.analyzer.run_reports import (
    POWER_STEPS,
    SCRAPE_TIMES,
    finding_codes,
    load_frames,
    run_report,
    without_half_width,
)
from wattline.contract import metrics as m
from wattline.contract.run_series import SeriesRow
from wattline.figures import Figure
from wattline_analyzer.core.facts import fact_of_row
from wattline_analyzer.core.recorded_run import RecordedRun, read_run
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.report.assess import NoEnergyError, assess
from wattline_analyzer.report.html.page import html_page
from wattline_analyzer.report.plot import run_plot
from wattline_analyzer.report.sections.report import summary_sentences
from wattline_analyzer.report.timeseries import power_samples


def test_report_headline_is_ledger_energy_with_added_half_widths(tmp_path):
    report = run_report(
        tmp_path, gpus=[NodeGpu(POWER_STEPS, index="0"), NodeGpu(POWER_STEPS, index="1")]
    )

    assert report.headline.value == 12_000  # 300 W x 20 s x 2
    assert report.headline.half_width == 20  # 10 J each
    assert [device.label for device in report.devices] == ["GPU 0", "GPU 1"]
    assert report.duration_s == 20
    assert report.mean_power_w.value == 600


def test_report_energy_from_samples_covers_true_value(tmp_path):
    report = run_report(tmp_path)

    assert report.energies.from_raw_samples.low <= 6_000 <= report.energies.from_raw_samples.high
    assert report.energies.from_raw_samples.value == pytest.approx(6_000, rel=0.03)


@pytest.mark.parametrize("interval_s", [1, 5, 15, 30])
def test_report_any_scrape_interval_has_ledger_energy(tmp_path, interval_s):
    report = run_report(tmp_path, times=scrape_times(interval_s, START_S - 61.3, START_S + 120))

    assert report.headline.value == 6_000
    assert report.energies.from_raw_samples.low <= 6_000 <= report.energies.from_raw_samples.high


def test_report_work_has_energy_per_unit_and_rate(tmp_path):
    (work,) = run_report(tmp_path).work

    assert (work.unit, work.amount, work.per_second) == ("generated_tokens", 1_000, 50)
    assert work.energy_per_unit.value == 6  # 6,000 J over 1,000 tokens
    assert work.energy_per_unit.half_width == pytest.approx(0.01)


def test_report_idle_window_next_to_run_gives_net_energy(tmp_path):
    report = run_report(tmp_path)

    assert report.devices[0].idle_power_w.value == 60
    assert report.energies.net.value == 4_800  # 6,000 J - 60 W x 20 s


def test_report_without_idle_window_has_no_net_energy(tmp_path):
    report = run_report(tmp_path, times=scrape_times(1, START_S - 5.5, START_S + 25))

    assert report.energies.net is None


def test_report_concurrent_run_removes_idle_window_and_shares_cpu(tmp_path):
    other = NodeRun(run_id="neighbour", start_s=START_S - 200, end_s=START_S + 200)

    report = run_report(tmp_path, run=NodeRun(cpu_j=1_000.0), other_runs=[other])

    assert report.energies.net is None
    assert all(device.shared for device in report.devices)
    assert report.energies.whole is None
    assert any(
        f.subject == "CPU 0" and "the whole node, also used by neighbour" in f.text
        for f in report.findings
    )


def test_report_earlier_run_does_not_share_cpu_and_gpu(tmp_path):
    report = run_report(
        tmp_path,
        run=NodeRun(cpu_j=1_000.0),
        other_runs=[NodeRun(run_id="before", start_s=START_S - 40, end_s=START_S - 25)],
    )

    assert not any(device.shared for device in report.devices)
    assert report.energies.whole.value == 7_000
    assert report.energies.net.value == 4_800  # from the 25 s between the runs


def test_report_emissions_are_from_ledger_and_given_intensity(tmp_path):
    report = run_report(tmp_path, run=NodeRun(emissions_g=0.5), carbon=230.0)

    assert [(e.origin, round(e.mass_g.value, 6)) for e in report.emissions] == [
        ("ledger", 0.5),
        ("given intensity", 0.383333),  # 6,000 J / 3.6e6 x 230 g
    ]


def test_report_carbon_slots_use_intensity_of_each_half_hour(tmp_path):
    border_s = (START_S // 1_800 + 1) * 1_800
    gpu = NodeGpu([(border_s - 1_000, 60), (border_s - 5, 300), (border_s + 15, 60)])
    run = NodeRun(start_s=border_s - 5, end_s=border_s + 15)
    series = series_of_scrapes(
        (t, scrape([gpu], run, t, intensity=100.0 if t < border_s else 300.0))
        for t in scrape_times(1, border_s - 60, border_s + 60)
    )

    report = assess(load_frames(tmp_path, series))

    assert [(slot.grams_per_kwh, slot.start_s) for slot in report.carbon_slots] == [
        (100, border_s - 5),
        (300, border_s),
    ]
    assert [slot.gpu_energy_j for slot in report.carbon_slots] == pytest.approx([1_500, 4_500])
    assert [slot.mass_g for slot in report.carbon_slots] == pytest.approx(
        [1_500 * 100 / 3.6e6, 4_500 * 300 / 3.6e6]
    )


def test_report_phases_are_in_order_of_first_appearance(tmp_path):
    early = NodeRun(phases={"warm-up": (5.0, 1_500.0)})
    late = NodeRun(phases={"measure": (15.0, 4_500.0), "warm-up": (5.0, 1_500.0)})
    series = series_of_scrapes(
        (t, scrape([NodeGpu(POWER_STEPS)], early if t < START_S + 5 else late, t))
        for t in SCRAPE_TIMES
    )

    report = assess(load_frames(tmp_path, series))

    assert [(phase.name, phase.duration_s, phase.energy) for phase in report.phases] == [
        ("warm-up", 5.0, {"gpu": Figure(1_500.0)}),
        ("measure", 15.0, {"gpu": Figure(4_500.0)}),
    ]


def test_report_phase_work_has_energy_and_rate_of_its_phases(tmp_path):
    """Loading takes 15 of 20 s and 4,500 of 6,000 J: 1,000 tokens in the other 5 s are 200/s and
    1.5 J each.
    """
    phases = {"load": (15.0, 4_500.0), "measure": (5.0, 1_500.0)}
    run = NodeRun(
        phases=phases,
        phase_uncertainty_j=50.0,
        phase_work={"measure": {"generated_tokens": 1_000.0}},
    )
    report = assess(
        load_frames(
            tmp_path,
            series_of_scrapes((t, scrape([NodeGpu(POWER_STEPS)], run, t)) for t in SCRAPE_TIMES),
        )
    )

    (work,) = report.work
    assert work.phases == ("measure",)
    assert work.per_second == pytest.approx(200.0)
    assert (work.energy_per_unit.value, work.energy_per_unit.half_width) == pytest.approx(
        (1.5, 0.05)
    )


def test_report_late_work_in_second_phase_is_ignored(tmp_path):
    phases = {"measure": (5.0, 1_500.0), "rest": (15.0, 4_500.0)}
    run = NodeRun(
        phases=phases,
        phase_work={"measure": {"generated_tokens": 999}, "rest": {"generated_tokens": 1}},
    )
    report = assess(
        load_frames(
            tmp_path,
            series_of_scrapes((t, scrape([NodeGpu(POWER_STEPS)], run, t)) for t in SCRAPE_TIMES),
        )
    )

    assert report.work[0].phases == ("measure",)
    assert report.work[0].energy_per_unit.value == pytest.approx(1.5)


def test_report_unfinished_run_work_has_energy_of_whole_run(tmp_path):
    phases = {"load": (10.0, 3_000.0), "measure": (2.0, 600.0)}
    run = NodeRun(end_s=None, phases=phases, phase_work={"measure": {"generated_tokens": 1_000.0}})
    report = assess(
        load_frames(
            tmp_path,
            series_of_scrapes((t, scrape([NodeGpu(POWER_STEPS)], run, t)) for t in SCRAPE_TIMES),
        )
    )

    assert report.work[0].phases == ()
    assert report.work[0].energy_per_unit.value == pytest.approx(report.headline.value / 1_000)


@pytest.mark.parametrize(
    "phase_tokens", [400.0, 0.0], ids=["partly before any phase", "of an older exporter"]
)
def test_report_work_outside_phases_has_energy_of_whole_run(tmp_path, phase_tokens):
    phases = {"load": (15.0, 4_500.0), "measure": (5.0, 1_500.0)}
    run = NodeRun(
        phases=phases,
        phase_work={"measure": {"generated_tokens": phase_tokens}} if phase_tokens else {},
    )
    report = assess(
        load_frames(
            tmp_path,
            series_of_scrapes((t, scrape([NodeGpu(POWER_STEPS)], run, t)) for t in SCRAPE_TIMES),
        )
    )

    (work,) = report.work
    assert work.phases == ()
    assert work.per_second == pytest.approx(1_000 / report.duration_s)
    assert work.energy_per_unit.value == pytest.approx(report.headline.value / 1_000)


def test_report_run_without_gpus_has_cpu_energy_as_headline(tmp_path):
    frames = load_frames(
        tmp_path,
        series_of_scrapes((t, scrape([], NodeRun(cpu_j=1_000.0), t)) for t in SCRAPE_TIMES),
    )

    report = assess(frames)
    table = power_samples(frames, report)

    assert report.headline.value == 1_000
    assert report.work[0].energy_per_unit.value == 1
    assert report.energies.from_raw_samples is None
    plot = run_plot(report, table)
    assert plot.startswith(b"\x89PNG")
    assert "on CPUs in" in html_page(report, frames, frames.raw, plot)


def test_report_simulated_gpu_is_reported(tmp_path):
    report = run_report(tmp_path, gpus=[NodeGpu(POWER_STEPS, name="SIMULATED NVIDIA H200")])

    assert report.simulated
    assert report.findings[0].text.startswith("SIMULATED hardware (SIMULATED NVIDIA H200)")
    assert "systematic_band" not in finding_codes(report)


def test_report_systematic_band_is_finding_outside_interval(tmp_path):
    (finding,) = run_report(tmp_path).findings

    assert finding.text.startswith(
        "systematic error of the sensor: the true energy is -3 to +6 % from the reading "
        "(architecture: GA100)"
    )


def test_report_gap_in_scrapes_is_finding_and_energy_covers_it(tmp_path):
    times = [t for t in SCRAPE_TIMES if not START_S + 5 < t < START_S + 12]

    report = run_report(tmp_path, times=times)

    assert report.energies.from_raw_samples.value == pytest.approx(6_000, rel=0.03)
    assert any(
        f.code == "gap" and "the longest 8.0 s, 4 s after the start" in f.text
        for f in report.findings
    )


@pytest.mark.parametrize(("half_j", "reported"), [(5_999.0, False), (6_000.0, True)])
def test_report_uncertainty_above_energy_is_run_too_short(tmp_path, half_j, reported):
    report = run_report(tmp_path, run=NodeRun(uncertainty_j=half_j))

    assert ("run_too_short" in finding_codes(report)) is reported


def test_report_uncertainty_above_energy_by_lack_of_reads_is_no_advice(tmp_path):
    """The interval is wide since the exporter was down: a longer run would not help. An energy is
    at least 0.
    """
    gpu = NodeGpu(POWER_STEPS, name="SIMULATED NVIDIA H200")
    report = run_report(tmp_path, run=NodeRun(uncertainty_j=30_000, covered_ratio=0.5), gpus=(gpu,))

    assert [code for code in finding_codes(report) if code in ("run_too_short", "coverage")] == [
        "coverage"
    ]
    assert summary_sentences(report)[0].figure == "1.7 ± 8 Wh"
    assert "(95 % CI: 0.0 to 9.7 Wh)" in summary_sentences(report)[0].after


@pytest.mark.parametrize(
    ("outcome", "text"),
    [("failed", "the run failed: "), ("interrupted", "the run was interrupted: ")],
)
def test_report_of_incomplete_run_states_its_outcome(tmp_path, outcome, text):
    report = run_report(tmp_path, run=NodeRun(outcome=outcome))

    assert [f.text for f in report.findings if f.code == "outcome"] == [
        f"{text}its work may be incomplete"
    ]


def test_report_coverage_below_one_is_finding(tmp_path):
    report = run_report(tmp_path, run=NodeRun(covered_ratio=0.9))

    assert any(f.code == "coverage" and "90.0 %" in f.text for f in report.findings)


def test_report_counter_integral_difference_needs_a_minute(tmp_path):
    minute = [(START_S - 1_000, 60), (START_S, 300), (START_S + 60, 60)]
    short, long = tmp_path / "short", tmp_path / "long"
    short.mkdir()
    long.mkdir()

    assert "counter_integral_apart" not in finding_codes(
        run_report(short, run=NodeRun(integral_factor=0.9))
    )
    report = run_report(
        long,
        run=NodeRun(end_s=START_S + 60, integral_factor=0.9),
        gpus=[NodeGpu(minute)],
        times=scrape_times(1, START_S - 60.5, START_S + 90),
    )
    assert any(
        f.code == "counter_integral_apart" and "differ by -10.0 % (limit 5 %)" in f.text
        for f in report.findings
    )


def frames_with_wrong_ledger(tmp_path):
    """Return a run whose samples give 6,000 J, and its ledger 9,000 ± 10 J."""
    frames = load_frames(
        tmp_path,
        series_of_scrapes((t, scrape([NodeGpu(POWER_STEPS)], NodeRun(), t)) for t in SCRAPE_TIMES),
    )
    (device,) = frames.run.devices
    more = replace(device, energy_j=replace(device.energy_j, value=9_000.0))
    return replace(frames, run=replace(frames.run, devices=(more,)))


def test_report_ledger_outside_sample_bound_is_finding(tmp_path):
    assert "outside_bound" in finding_codes(assess(frames_with_wrong_ledger(tmp_path)))


def test_report_ledger_without_half_width_is_not_checked_against_samples(tmp_path):
    report = assess(without_half_width(frames_with_wrong_ledger(tmp_path), "gpu"))

    assert "outside_bound" not in finding_codes(report)
    (finding,) = [one for one in report.findings if one.code == "bound_not_checked"]
    assert finding.level == "note"
    assert finding.text == (
        "the ledger's 9,000 J are not compared with the limits from raw samples, since their "
        "uncertainty is unknown"
    )


def test_report_run_without_energy_raises():
    no_samples = table_of([])
    start = fact_of_row(SeriesRow(m.RUN_START, {"run_id": "x"}, START_S), "", START_S + 1)
    run, scrapes = read_run([start], no_samples, {})

    with pytest.raises(NoEnergyError, match="run x has no energy at here"):
        assess(RecordedRun(run, scrapes, "here", no_samples, ()))

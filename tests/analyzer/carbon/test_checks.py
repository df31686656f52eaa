"""Findings about missing, replaced or old carbon intensities."""

import io

import pytest

from tests.analyzer.node import START_S, NodeRun, scrape_times
from tests.analyzer.run_reports import (
    finding_codes,
    finding_texts,
    run_frames,
    run_report,
    terminal_text,
)
from wattline.contract import metrics as m
from wattline_analyzer.core.terminal import console
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.html.page import html_page
from wattline_analyzer.report.terminal import terminal_report

HALF_HOUR_S = START_S // 1_800 * 1_800
MIDNIGHT_S = START_S // 86_400 * 86_400
GB = ("GB", "gb", "forecast", HALF_HOUR_S, 100.0)
MEAN = ("GBR", "static", "static", MIDNIGHT_S, 200.0)


def intensity(slot, basis="average"):
    region, provider, quality, begin_s, grams = slot
    labels = {"region": region, "provider": provider, "basis": basis, "quality": quality}
    yield m.CARBON_INTENSITY, labels, grams
    yield m.CARBON_INTENSITY_TIMESTAMP, labels, begin_s


def source(up, name="carbon"):
    yield m.SOURCE_UP, {"source": name}, float(up)


def fetched(at_s, provider="gb", basis="average"):
    yield m.CARBON_FETCHED_TIMESTAMP, {"provider": provider, "basis": basis}, at_s


def grams(value, basis="average", quality="forecast"):
    yield (
        m.RUN_EMISSIONS,
        {"run_id": "train-1", "component": "gpu", "basis": basis, "quality": quality},
        value,
    )


def carbon_codes(report):
    return [code for code in finding_codes(report) if code.startswith("carbon")]


def test_carbon_responding_provider_has_no_finding(tmp_path):
    report = run_report(
        tmp_path, extra=lambda _: [*intensity(GB), *source(1), *fetched(START_S - 600), *grams(0.1)]
    )

    assert carbon_codes(report) == []


def test_carbon_without_region_has_no_finding(tmp_path):
    assert carbon_codes(run_report(tmp_path)) == []


def test_carbon_provider_without_any_response_is_reported(tmp_path):
    ((_, text),) = finding_texts(run_report(tmp_path, extra=lambda _: source(0)), "carbon_missing")

    assert text.startswith(
        "no emissions: a region is configured, but no average carbon intensity was known"
    )
    assert "--carbon G/KWH" in text


def test_carbon_run_just_started_has_no_finding(tmp_path):
    times = scrape_times(1, START_S - 60, START_S + 3)

    assert (
        carbon_codes(
            run_report(tmp_path, NodeRun(end_s=None), times=times, extra=lambda _: source(0))
        )
        == []
    )


def test_carbon_missing_reports_share_of_run_without_intensity(tmp_path):
    def extra(t):
        yield from source(t >= START_S + 10)
        if t >= START_S + 10:
            yield from intensity(GB)
            yield from fetched(START_S + 10)
            yield from grams(0.05)

    report = run_report(tmp_path, extra=extra)

    ((_, text),) = finding_texts(report, "carbon_missing")
    assert text.startswith(
        "no average carbon intensity was known for 48 % of the run"
    )  # until the scrape at 9.5 s
    assert [(slot.start_s - START_S, slot.end_s - START_S) for slot in report.carbon_slots] == [
        (9.5, 20)
    ]


def test_carbon_fallback_reports_energy_by_quality(tmp_path):
    """Constant 300 W: 15 of 20 s are 75 % of the energy."""

    def extra(t):
        outage = START_S + 5 <= t < START_S + 10
        yield from source(not outage)
        yield from fetched(START_S - 600)
        yield from intensity(MEAN if outage else GB)
        if t > START_S:
            yield from grams(0.125)
            yield from grams(0.083, quality="static")

    report = run_report(tmp_path, times=scrape_times(1, START_S - 60, START_S + 60), extra=extra)

    ((_, text),) = finding_texts(report, "carbon_fallback")
    assert text.startswith(
        "the provider (gb) did not respond: the yearly mean of GBR (static) is used instead"
    )
    assert text.endswith(
        "the energy by quality of the average intensity: 75 % forecast, 25 % static"
    )
    assert [slot.provider for slot in report.carbon_slots] == ["gb", "static", "gb"]
    assert sum(slot.gpu_energy_j for slot in report.carbon_slots) == pytest.approx(6_000)


def test_carbon_fallback_without_any_response_has_no_provider_name(tmp_path):
    report = run_report(
        tmp_path, extra=lambda t: [*source(0), *intensity(MEAN), *grams(0.3, quality="static")]
    )

    ((_, text),) = finding_texts(report, "carbon_fallback")
    assert text.startswith("the provider did not respond")
    assert text.endswith("100 % static")


def test_carbon_configured_yearly_mean_is_no_fallback(tmp_path):
    report = run_report(
        tmp_path, extra=lambda t: [*source(1), *intensity(MEAN), *grams(0.3, quality="static")]
    )

    assert carbon_codes(report) == []


@pytest.mark.parametrize(("age_h", "reported"), [(1.9, False), (2.5, True)])
def test_carbon_intensity_older_than_two_hours_is_reported(tmp_path, age_h, reported):
    fetched_s = START_S - age_h * 3_600
    report = run_report(
        tmp_path, extra=lambda t: [*source(0), *intensity(GB), *fetched(fetched_s), *grams(0.1)]
    )

    assert [text.split(":")[0] for _, text in finding_texts(report, "carbon_old")] == [
        "the average carbon intensity is from a response of gb that was up to 2.5 h old"
    ] * reported


def test_carbon_age_of_replaced_intensity_is_not_reported(tmp_path):
    old_s = START_S - 5 * 3_600
    report = run_report(
        tmp_path,
        extra=lambda t: [
            *source(0),
            *intensity(MEAN),
            *fetched(old_s),
            *grams(0.1, quality="static"),
        ],
    )

    assert carbon_codes(report) == ["carbon_fallback"]


def test_carbon_average_and_marginal_are_never_added(tmp_path):
    marginal = ("CAISO_NORTH", "watttime", "forecast", HALF_HOUR_S, 400.0)

    def extra(t):
        yield from [*source(1), *source(1, "carbon_marginal")]
        yield from [*fetched(START_S - 60), *fetched(START_S - 60, "watttime", "marginal")]
        yield from [*intensity(GB), *intensity(marginal, "marginal")]
        if t > START_S:
            yield from [*grams(0.1667), *grams(0.6667, "marginal")]

    frames = run_frames(tmp_path, extra=extra)
    report = assess(frames)
    target = io.StringIO()
    console(target).print(terminal_report(report))

    assert [(total.basis, total.mass_g.value) for total in report.emission_totals] == [
        ("average", 0.1667),
        ("marginal", 0.6667),
    ]
    assert {(slot.basis, round(slot.gpu_energy_j)) for slot in report.carbon_slots} == {
        ("average", 6_000),
        ("marginal", 6_000),
    }
    assert "833" not in target.getvalue()  # 166.7 + 666.7 mg
    assert "833" not in html_page(report, frames, frames.raw, b"").split("<script")[0]
    assert carbon_codes(report) == []


def test_carbon_missing_marginal_intensity_is_reported_separately(tmp_path):
    report = run_report(
        tmp_path,
        extra=lambda t: [
            *source(1),
            *source(0, "carbon_marginal"),
            *intensity(GB),
            *fetched(START_S),
            *grams(0.1),
        ],
    )

    ((_, text),) = finding_texts(report, "carbon_missing")
    assert "no marginal carbon intensity was known" in text


def test_carbon_run_after_restart_without_options_has_no_slot(tmp_path):
    """The exporter had an intensity until 10 s before the run, then none and no carbon source."""

    def extra(t):
        yield from source(1, "nvml")
        if t < START_S - 10:
            yield from [*source(1), *intensity(GB), *fetched(START_S - 600)]

    report = run_report(tmp_path, extra=extra)

    assert report.carbon_slots == ()
    assert carbon_codes(report) == []


def test_carbon_provider_after_run_of_yearly_mean_is_no_finding(tmp_path):
    """The provider, with a failure, is of an exporter that started 10 s after the end of the
    run.
    """

    def extra(t):
        yield from source(1, "nvml")
        if t < START_S + 30:
            yield from [*source(1), *intensity(MEAN)]
        else:
            yield from [*source(0), *intensity(GB), *fetched(START_S + 30)]
        yield from grams(0.3, quality="static")

    assert carbon_codes(run_report(tmp_path, extra=extra)) == []


def test_carbon_given_intensity_has_no_finding_about_missing_one(tmp_path):
    report = run_report(tmp_path, carbon=400, extra=lambda _: [*source(1, "nvml"), *source(0)])

    assert carbon_codes(report) == []
    assert [one.mass_g.value for one in report.emissions] == [pytest.approx(6_000 / 3.6e6 * 400)]


def test_carbon_slots_of_unmeasured_gpus_have_no_energy(tmp_path):
    report = run_report(
        tmp_path, gpus=(), extra=lambda _: [*source(1), *intensity(GB), *fetched(START_S - 600)]
    )

    assert {(slot.gpu_energy_j, slot.mass_g) for slot in report.carbon_slots} == {(None, None)}
    text = terminal_text(report)
    assert "0 J" not in text
    assert "0 mg" not in text


@pytest.mark.parametrize(("region", "count"), [("GBR", 2), ("custom", 0)])
def test_carbon_yearly_mean_states_region_and_year(tmp_path, region, count):
    slot = (region, *MEAN[1:])

    text = terminal_text(
        run_report(tmp_path, extra=lambda _: [*source(1), *intensity(slot), *grams(1)])
    )

    note = "static: the mean intensity of GBR in 2021 (Ember), not of the time of the run."
    assert (text.count(note), text.count("2021")) == (count, count)

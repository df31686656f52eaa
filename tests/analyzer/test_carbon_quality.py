"""Grams that are missing, that a yearly mean stands in for, or whose intensity is old; and two bases kept apart."""

import io

import pytest

from analyzer.assess.run import assess
from analyzer.output.html.page import html_page
from analyzer.output.terminal import console, terminal_report
from exporter.contract import metrics as m
from tests.analyzer.node import START_S, Run, every
from tests.analyzer.reported import codes, found, frames_with, report_of

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
    yield m.RUN_EMISSIONS, {"run_id": "train-1", "component": "gpu", "basis": basis, "quality": quality}, value


def carbon_codes(report):
    return [code for code in codes(report) if code.startswith("carbon")]


def test_a_provider_that_answers_gives_no_finding(tmp_path):
    report = report_of(tmp_path, more=lambda _: [*intensity(GB), *source(1), *fetched(START_S - 600), *grams(0.1)])

    assert carbon_codes(report) == []


def test_without_a_region_nothing_is_missed(tmp_path):
    assert carbon_codes(report_of(tmp_path)) == []


def test_a_region_whose_provider_never_answered_is_told_where_there_are_no_grams(tmp_path):
    ((_, text),) = found(report_of(tmp_path, more=lambda _: source(0)), "carbon_missing")

    assert text.startswith("no emissions: a region is configured, but no average carbon intensity was known")
    assert "--carbon G/KWH" in text


def test_a_run_that_has_just_begun_has_no_grams_yet_and_that_is_no_finding(tmp_path):
    times = every(1, START_S - 60, START_S + 3)

    assert carbon_codes(report_of(tmp_path, Run(end_s=None), times=times, more=lambda _: source(0))) == []


def test_the_part_of_the_run_in_which_no_intensity_was_known_is_told(tmp_path):
    def more(t):
        yield from source(t >= START_S + 10)
        if t >= START_S + 10:
            yield from intensity(GB)
            yield from fetched(START_S + 10)
            yield from grams(0.05)

    report = report_of(tmp_path, more=more)

    ((_, text),) = found(report, "carbon_missing")
    assert text.startswith("no average carbon intensity was known for 48 % of the run")  # until the scrape at 9.5 s
    assert [(slot.start_s - START_S, slot.end_s - START_S) for slot in report.carbon_slots] == [(9.5, 20)]


def test_an_outage_that_the_yearly_mean_bridges_is_told_with_the_energy_by_quality(tmp_path):
    """300 W all along: 15 of 20 s are 75 % of the energy."""

    def more(t):
        out = START_S + 5 <= t < START_S + 10
        yield from source(not out)
        yield from fetched(START_S - 600)
        yield from intensity(MEAN if out else GB)
        if t > START_S:
            yield from grams(0.125)
            yield from grams(0.083, quality="static")

    report = report_of(tmp_path, times=every(1, START_S - 60, START_S + 60), more=more)

    ((_, text),) = found(report, "carbon_fallback")
    assert text.startswith("the provider (gb) did not respond: the yearly mean of GBR (static) is used instead")
    assert text.endswith("the energy by quality of the average intensity: 75 % forecast, 25 % static")
    assert [slot.provider for slot in report.carbon_slots] == ["gb", "static", "gb"]
    assert sum(slot.gpu_energy_j for slot in report.carbon_slots) == pytest.approx(6_000)


def test_a_provider_that_never_answered_is_not_known_by_name(tmp_path):
    report = report_of(tmp_path, more=lambda t: [*source(0), *intensity(MEAN), *grams(0.3, quality="static")])

    ((_, text),) = found(report, "carbon_fallback")
    assert text.startswith("the provider did not respond")
    assert text.endswith("100 % static")


def test_a_mean_that_was_asked_for_is_no_fallback(tmp_path):
    report = report_of(tmp_path, more=lambda t: [*source(1), *intensity(MEAN), *grams(0.3, quality="static")])

    assert carbon_codes(report) == []


@pytest.mark.parametrize(("age_h", "told"), [(1.9, False), (2.5, True)])
def test_an_intensity_that_was_fetched_more_than_two_hours_before_is_told(tmp_path, age_h, told):
    asked_s = START_S - age_h * 3_600
    report = report_of(tmp_path, more=lambda t: [*source(0), *intensity(GB), *fetched(asked_s), *grams(0.1)])

    assert [text.split(":")[0] for _, text in found(report, "carbon_old")] == [
        "the average carbon intensity is from a response of gb that was up to 2.5 h old"
    ] * told


def test_the_age_of_an_answer_that_is_no_longer_in_force_is_not_told(tmp_path):
    old_s = START_S - 5 * 3_600
    report = report_of(
        tmp_path, more=lambda t: [*source(0), *intensity(MEAN), *fetched(old_s), *grams(0.1, quality="static")]
    )

    assert carbon_codes(report) == ["carbon_fallback"]


def test_average_and_marginal_stand_apart_and_are_never_added(tmp_path):
    marginal = ("CAISO_NORTH", "watttime", "forecast", HALF_HOUR_S, 400.0)

    def more(t):
        yield from [*source(1), *source(1, "carbon_marginal")]
        yield from [*fetched(START_S - 60), *fetched(START_S - 60, "watttime", "marginal")]
        yield from [*intensity(GB), *intensity(marginal, "marginal")]
        if t > START_S:
            yield from [*grams(0.1667), *grams(0.6667, "marginal")]

    frames = frames_with(tmp_path, more=more)
    report = assess(frames)
    target = io.StringIO()
    console(target).print(terminal_report(report))

    assert [(sum_.basis, sum_.mass_g.value) for sum_ in report.emission_totals] == [
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


def test_a_second_basis_that_never_answered_is_missed_for_itself(tmp_path):
    report = report_of(
        tmp_path,
        more=lambda t: [*source(1), *source(0, "carbon_marginal"), *intensity(GB), *fetched(START_S), *grams(0.1)],
    )

    ((_, text),) = found(report, "carbon_missing")
    assert "no marginal carbon intensity was known" in text

"""Restated emissions: 200 W for 600 s, then 400 W for 900 s, so 120 kJ and 360 kJ in two half
hours.
"""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, scrape_times, series_of_scrapes
from tests.analyzer.run_reports import (
    finding_codes,
    finding_texts,
    load_frames,
    run_frames,
    terminal_text,
)
from wattline.contract import metrics as m
from wattline_analyzer.carbon.fetch import with_energy_counters
from wattline_analyzer.carbon.restate import EnergyOverTime, restate
from wattline_analyzer.core.emissions import PastIntensities, PastSlot
from wattline_analyzer.core.run_report import UserInputs
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.report.assess import assess, run_power_profile
from wattline_analyzer.report.devices import RawSeries
from wattline_analyzer.report.document import report_document
from wattline_analyzer.report.energy_over_time import energy_tracks

HALF_S = START_S // 1_800 * 1_800 + 1_800
BEGIN_S, END_S = HALF_S - 600, HALF_S + 900
TWO_POWERS = NodeGpu([(BEGIN_S - 5_000, 60), (BEGIN_S, 200), (HALF_S, 400), (END_S, 60)])
TIMES = scrape_times(10, BEGIN_S - 60, END_S + 60)
JOULES = 3.6e6


def run(**extra):
    return NodeRun(start_s=BEGIN_S, end_s=END_S, emissions_g=480_000 / JOULES * 100, **extra)


def past(*values, basis="average", quality="actual", sigma=None, provider="gb"):
    """Intensities of half hours from the one of the run's start; None leaves one out."""
    begins_s = [HALF_S - 1_800 + 1_800 * n for n in range(len(values))]
    slots = [
        PastSlot(begin_s, begin_s + 1_800, grams, quality, sigma)
        for begin_s, grams in zip(begins_s, values, strict=True)
        if grams is not None
    ]
    return PastIntensities(provider, "GB", basis, tuple(slots))


def restated_report(
    folder, *pasts, carbon=None, intensity=100.0, restatement=None, extra=lambda _: ()
):
    frames = run_frames(
        folder,
        restatement or run(),
        gpus=[TWO_POWERS],
        times=TIMES,
        intensity=intensity,
        extra=extra,
    )
    return assess(frames, UserInputs(grams_per_kwh=carbon, past=pasts))


def test_restate_multiplies_energy_of_each_slot_by_its_intensity(tmp_path):
    report = restated_report(tmp_path, past(150.0, 300.0))

    (restatement,) = report.restated
    assert [slot.energy_j for slot in restatement.slots] == pytest.approx(
        [120_000, 360_000], rel=1e-9
    )
    assert [slot.mass_g for slot in restatement.slots] == pytest.approx(
        [5.0, 30.0], rel=1e-9
    )  # 120 kJ at 150, 360 kJ at 300
    assert restatement.mass_g == pytest.approx(35.0, rel=1e-9)
    assert restatement.ledger_g == pytest.approx(480_000 / JOULES * 100)
    assert restatement.difference_ratio == pytest.approx(
        35 / (480_000 / JOULES * 100) - 1, rel=1e-9
    )  # +162.5 %
    assert restatement.share_of("actual") == pytest.approx(1)


def test_restate_lists_ledger_total_with_restated_total(tmp_path):
    report = restated_report(tmp_path, past(150.0, 300.0))

    assert {total.origin: total.mass_g.value for total in report.emission_totals} == pytest.approx(
        {"ledger": 480_000 / JOULES * 100, "restated": 35.0}
    )
    assert "recorded 13.33 g CO₂eq (+162.5 %)" in terminal_text(report)
    assert "not_restated" not in finding_codes(report)


DIVISION_G = 440 * 0.4 * (300 - 150) / JOULES
"""A counter scraped at the border may be 0.4 s old; meanwhile the GPU used at most 1.1 times its
limit of 400 W.
"""


def test_restate_without_sigma_has_uncertainty_of_energy(tmp_path):
    """10 J of 480 kJ, in proportion over the slots: 35 g x 10 / 480,000; and the error of the
    division.
    """
    (restatement,) = restated_report(tmp_path, past(150.0, 300.0)).restated

    (emission,) = restatement.emissions
    assert emission.mass_g.half_width == pytest.approx(
        math.hypot(35 * 10 / 480_000, DIVISION_G), rel=1e-6
    )


def test_restate_sigma_of_intensity_widens_interval(tmp_path):
    """1.96 x 10 g/kWh on 480 kJ are 2.613 g; the energy's 0.0007 g and the division's 0.007 g are
    negligible.
    """
    (restatement,) = restated_report(tmp_path, past(150.0, 300.0, sigma=10.0)).restated

    (emission,) = restatement.emissions
    expected = math.hypot(1.96 * 10 * 480_000 / JOULES, 35 * 10 / 480_000, DIVISION_G)
    assert emission.mass_g.half_width == pytest.approx(expected, rel=1e-9)


def test_restate_slot_without_actual_keeps_recorded_intensity(tmp_path):
    report = restated_report(tmp_path, past(150.0, None))

    (restatement,) = report.restated
    assert [(slot.provider, slot.quality, slot.grams_per_kwh) for slot in restatement.slots] == [
        ("gb", "actual", 150.0),
        ("gb", "actual as before", 100.0),
    ]
    assert restatement.mass_g == pytest.approx(5 + 10)
    ((_, text),) = finding_texts(report, "restated_partly")
    assert text.startswith("25 % of the energy is restated by actual average intensities")


def test_restate_forecast_in_place_of_actual_is_labelled(tmp_path):
    both = PastIntensities(
        "gb",
        "GB",
        "average",
        (*past(150.0).slots, PastSlot(HALF_S, HALF_S + 1_800, 300.0, "forecast")),
    )

    report = restated_report(tmp_path, both)

    assert {
        e.quality: e.mass_g.value for e in report.emissions if e.origin == "restated"
    } == pytest.approx({"actual": 5.0, "forecast": 30.0})
    assert "restated_partly" in finding_codes(report)


def test_restate_energy_without_intensity_is_excluded_and_reported(tmp_path):
    report = restated_report(tmp_path, past(150.0, None), intensity=None)

    (restatement,) = report.restated
    assert restatement.mass_g == pytest.approx(5.0)
    ((_, text),) = finding_texts(report, "restated_missing")
    assert "75 % of the energy" in text


def test_restate_given_intensity_fills_gap_as_static(tmp_path):
    report = restated_report(tmp_path, past(150.0, None), intensity=None, carbon=200.0)

    (restatement,) = report.restated
    assert [(slot.provider, slot.quality) for slot in restatement.slots] == [
        ("gb", "actual"),
        ("given", "static"),
    ]
    assert restatement.mass_g == pytest.approx(5 + 20)
    assert "restated_missing" not in finding_codes(report)


def test_restate_average_and_marginal_are_never_added(tmp_path):
    report = restated_report(
        tmp_path, past(150.0, 300.0), past(600.0, 600.0, basis="marginal", provider="file.csv")
    )

    assert {
        (total.basis, total.origin): total.mass_g.value for total in report.emission_totals
    } == pytest.approx(
        {
            ("average", "ledger"): 480_000 / JOULES * 100,
            ("average", "restated"): 35,
            ("marginal", "restated"): 80,
        }
    )
    assert [restatement.ledger_g is None for restatement in report.restated] == [
        False,
        True,
    ]  # the ledger has no marginal emissions
    assert "115.0 g" not in terminal_text(report)


def test_restate_given_average_does_not_fill_marginal_gap(tmp_path):
    marginal = past(600.0, None, basis="marginal", provider="file.csv")

    (restatement,) = restated_report(tmp_path, marginal, intensity=None, carbon=200.0).restated

    assert restatement.mass_g == pytest.approx(20.0)  # 120 kJ at 600
    assert restatement.share_of("") == pytest.approx(0.75)


def cpu_work(t):
    """The CPU's 36 kJ are all in the second half hour; the DRAM's 7.2 kJ are at constant power."""
    yield m.CPU_ENERGY, {"package": "0", "zone": "package"}, 40.0 * min(max(t - HALF_S, 0), 900)
    yield m.CPU_ENERGY, {"package": "0", "zone": "dram"}, 4.8 * min(max(t - BEGIN_S, 0), 1_500)
    if t > BEGIN_S:
        yield m.RUN_ENERGY, {"run_id": "train-1", "component": "dram", "device": "0"}, 7_200.0


@pytest.mark.parametrize(
    ("with_counters", "cpu_g"),
    [(True, 3.0), (False, 36_000 * (0.4 * 150 + 0.6 * 300) / JOULES)],  # by time without a counter
)
def test_restate_cpu_and_dram_energy_follow_their_counters(tmp_path, with_counters, cpu_g):
    frames = run_frames(tmp_path, run(cpu_j=36_000), gpus=[TWO_POWERS], times=TIMES, extra=cpu_work)
    if with_counters:
        source = HistorySource(tmp_path)
        frames = with_energy_counters(source, frames)
        source.close()

    report = assess(frames, UserInputs(past=(past(150.0, 300.0),)))

    grams = {e.component: e.mass_g.value for e in report.emissions if e.origin == "restated"}
    assert grams["gpu"] == pytest.approx(35.0)
    assert grams["cpu"] == pytest.approx(cpu_g)
    assert grams["dram"] == pytest.approx(7_200 * (0.4 * 150 + 0.6 * 300) / JOULES)
    (restatement,) = report.restated
    assert restatement.difference_ratio == pytest.approx(
        35 / (480_000 / JOULES * 100) - 1
    )  # of the GPUs, which both include


def test_restate_provider_without_response_keeps_ledger_total(tmp_path):
    report = restated_report(
        tmp_path, PastIntensities("gb", "GB", "average", problem="gb answered HTTP 500")
    )

    assert report.restated == ()
    assert [total.origin for total in report.emission_totals] == ["ledger"]
    assert finding_texts(report, "not_restated") == [
        ("", "not restated: gb answered HTTP 500; the ledger's emissions remain valid")
    ]


def test_restate_adds_nodes_in_each_slot(tmp_path):
    """A second node at 100 W throughout: 60 kJ more in the first half hour, 90 kJ in the second."""
    steady = NodeGpu([(BEGIN_S - 5_000, 60), (BEGIN_S, 100), (END_S, 60)], index="1")
    series = series_of_scrapes(((t, scrape([TWO_POWERS], run(), t)) for t in TIMES), "a:9847")
    series += series_of_scrapes(((t, scrape([steady], run(), t)) for t in TIMES), "b:9847")

    report = assess(load_frames(tmp_path, series), UserInputs(past=(past(150.0, 300.0),)))

    (restatement,) = report.restated
    assert [slot.energy_j for slot in restatement.slots] == pytest.approx([180_000, 450_000])
    assert restatement.mass_g == pytest.approx(7.5 + 37.5)


def test_restate_node_that_ended_early_has_no_later_energy(tmp_path):
    """On node b the run ended 60 s before the half hour; its GPU continued at 400 W for another
    run.
    """
    early_s = HALF_S - 60
    other = NodeGpu([(BEGIN_S - 5_000, 60), (BEGIN_S, 200), (early_s, 400), (END_S, 60)], index="1")
    series = series_of_scrapes(
        ((t, scrape([TWO_POWERS], run(), t, intensity=100.0)) for t in TIMES), "a:9847"
    )
    ended = replace(run(), end_s=early_s)
    series += series_of_scrapes(
        ((t, scrape([other], ended, t, intensity=100.0)) for t in TIMES), "b:9847"
    )

    frames = load_frames(tmp_path, series)
    report = assess(frames, UserInputs(past=(past(150.0, 300.0),)))

    slots = [
        (slot.instance, slot.start_s, slot.end_s, slot.gpu_energy_j) for slot in report.carbon_slots
    ]
    assert slots == [
        ("a:9847", BEGIN_S, HALF_S, pytest.approx(120_000)),
        ("a:9847", HALF_S, END_S, pytest.approx(360_000)),
        ("b:9847", BEGIN_S, early_s, pytest.approx(200 * 540)),
    ]
    assert [slot.energy_j for slot in report.restated[0].slots] == pytest.approx(
        [120_000 + 108_000, 360_000]
    )
    drawn = run_power_profile(
        frames, report
    )  # five minutes each: at 200 W twice, then at 400 W; b adds 60 and 48 kJ
    assert drawn.energies_j == pytest.approx([120_000, 108_000, 120_000, 120_000, 120_000])


def test_restate_single_intensity_multiplies_whole_energy(tmp_path):
    (restatement,) = restated_report(tmp_path, past(360.0, 360.0)).restated

    assert restatement.mass_g == pytest.approx(48.0, rel=1e-12)  # 480 kJ at 360 g/kWh


def test_restate_untagged_range_has_emissions_by_slot(tmp_path):
    untagged = NodeRun(start_s=BEGIN_S, end_s=END_S)
    frames = run_frames(tmp_path, untagged, gpus=[TWO_POWERS], times=TIMES, intensity=100.0)

    report = assess(replace(frames, untagged=True))

    assert [
        (restatement.origin, restatement.quality, restatement.mass_g.value)
        for restatement in report.emissions
    ] == [("by slot", "actual", pytest.approx(480_000 / JOULES * 100))]
    assert "carbon_missing" not in finding_codes(report)
    assert report.restated == ()


def test_restate_unknown_quality_is_reported_and_not_called_actual(tmp_path):
    report = restated_report(tmp_path, past(150.0, 300.0, quality="unknown", provider="mine.csv"))

    assert [slot.quality for slot in report.restated[0].slots] == ["unknown", "unknown"]
    ((_, text),) = finding_texts(report, "restated_unknown")
    assert text.startswith(
        "100 % of the energy is restated by average intensities of mine.csv without a quality"
    )
    assert "restated_partly" not in finding_codes(report)


def test_restate_document_has_slots_and_difference(tmp_path):
    (data,) = json.loads(
        json.dumps(report_document(restated_report(tmp_path, past(150.0, 300.0))))
    )["restated_emissions"]

    assert data["emissions_grams"] == pytest.approx(35)
    assert data["difference_ratio"] == pytest.approx(1.625)
    assert [slot["intensity_then_grams_per_kilowatt_hour"] for slot in data["slots"]] == [100, 100]


@pytest.fixture(scope="module")
def run_energy(tmp_path_factory):
    """Energies of the run over time."""
    times = scrape_times(60, BEGIN_S - 60, END_S + 60)
    frames = run_frames(tmp_path_factory.mktemp("linear"), run(), gpus=[TWO_POWERS], times=times)
    report = assess(frames)
    windows = report.times.windows
    tracks = energy_tracks(
        RawSeries(frames.raw, frames.exact), frames.run_id, report.devices, windows
    )
    return EnergyOverTime(report.energies, windows, tracks, report.carbon_slots)


@given(st.lists(st.floats(0, 900), min_size=2, max_size=2), st.floats(0, 900))
@settings(max_examples=20, deadline=None)  # each example reads the counters again
def test_restate_is_linear_in_intensity(run_energy, values, extra):
    """The energy of each slot does not depend on the intensity: f(a + b) = f(a) + f(b)."""

    def grams(*intensities):
        return restate(run_energy, past(*intensities)).mass_g

    assert grams(*(value + extra for value in values)) == pytest.approx(
        grams(*values) + grams(extra, extra)
    )

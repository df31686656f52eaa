"""Emissions restated by slot. 200 W for 600 s, then 400 W for 900 s: 120 kJ in one half hour and 360 kJ in the next."""

import io
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.assess.run import assess, run_power_profile
from analyzer.carbon.restate import energy_lines, restate
from analyzer.energy.devices import RawSeries, gpu_energy_lines
from analyzer.model import timeline
from analyzer.model.emissions import Past, PastSlot
from analyzer.model.user_inputs import Given
from analyzer.output.documents import report_document
from analyzer.output.terminal import console, terminal_report
from analyzer.sources.carbon.past_intensity import with_cpu_counters
from analyzer.sources.history import HistorySource
from exporter.contract import metrics as m
from tests.analyzer.node import START_S, Gpu, Run, every, scrape, scraped
from tests.analyzer.reported import codes, found, frames_of, frames_with

HALF_S = START_S // 1_800 * 1_800 + 1_800
BEGIN_S, END_S = HALF_S - 600, HALF_S + 900
TWO_POWERS = Gpu([(BEGIN_S - 5_000, 60), (BEGIN_S, 200), (HALF_S, 400), (END_S, 60)])
TIMES = every(10, BEGIN_S - 60, END_S + 60)
JOULES = 3.6e6


def run(**more):
    return Run(start_s=BEGIN_S, end_s=END_S, emissions_g=480_000 / JOULES * 100, **more)


def past(*values, basis="average", quality="actual", sigma=None, provider="gb"):
    """Half hours from the one in which the run began; None leaves one out."""
    begins_s = [HALF_S - 1_800 + 1_800 * n for n in range(len(values))]
    slots = [
        PastSlot(begin_s, begin_s + 1_800, grams, quality, sigma)
        for begin_s, grams in zip(begins_s, values, strict=True)
        if grams is not None
    ]
    return Past(provider, "GB", basis, tuple(slots))


def restated(folder, *pasts, carbon=None, intensity=100.0, one=None, more=lambda _: ()):
    frames = frames_with(folder, one or run(), gpus=[TWO_POWERS], times=TIMES, intensity=intensity, more=more)
    return assess(frames, Given(grams_per_kwh=carbon, past=pasts))


def printed(report):
    target = io.StringIO()
    console(target, plain_columns=140).print(terminal_report(report))
    return target.getvalue()


def test_each_half_hours_joules_are_multiplied_by_that_half_hours_intensity(tmp_path):
    report = restated(tmp_path, past(150.0, 300.0))

    (one,) = report.restated
    assert [slot.energy_j for slot in one.slots] == pytest.approx([120_000, 360_000], rel=1e-9)
    assert [slot.mass_g for slot in one.slots] == pytest.approx([5.0, 30.0], rel=1e-9)  # 120 kJ at 150, 360 kJ at 300
    assert one.mass_g == pytest.approx(35.0, rel=1e-9)
    assert one.ledger_g == pytest.approx(480_000 / JOULES * 100)
    assert one.difference_ratio == pytest.approx(35 / (480_000 / JOULES * 100) - 1, rel=1e-9)  # +162.5 %
    assert one.share_of("actual") == pytest.approx(1)


def test_the_ledgers_figure_stands_beside_the_restated_one(tmp_path):
    report = restated(tmp_path, past(150.0, 300.0))

    assert {total.origin: total.mass_g.value for total in report.emission_totals} == pytest.approx(
        {"ledger": 480_000 / JOULES * 100, "restated": 35.0}
    )
    assert "recorded 13.33 g CO₂eq (+162.5 %)" in printed(report)
    assert "not_restated" not in codes(report)


def test_the_interval_is_that_of_the_energy_where_the_source_tells_none(tmp_path):
    """10 J of 480 kJ, in proportion over the slots: 35 g x 10 / 480,000."""
    (restatement,) = restated(tmp_path, past(150.0, 300.0)).restated

    (emission,) = restatement.emissions
    assert emission.mass_g.half == pytest.approx(35 * 10 / 480_000, rel=1e-9)


def test_an_intensity_with_a_sigma_of_its_own_widens_the_interval(tmp_path):
    """1.96 x 10 g/kWh on 480 kJ are 2.613 g; the energy's share of 0.0007 g vanishes beside it."""
    (restatement,) = restated(tmp_path, past(150.0, 300.0, sigma=10.0)).restated

    (emission,) = restatement.emissions
    expected = ((1.96 * 10 * 480_000 / JOULES) ** 2 + (35 * 10 / 480_000) ** 2) ** 0.5
    assert emission.mass_g.half == pytest.approx(expected, rel=1e-9)


def test_a_slot_without_an_actual_keeps_what_the_run_saw_and_says_so(tmp_path):
    report = restated(tmp_path, past(150.0, None))

    (one,) = report.restated
    assert [(slot.provider, slot.quality, slot.grams_per_kwh) for slot in one.slots] == [
        ("gb", "actual", 150.0),
        ("gb", "actual as before", 100.0),
    ]
    assert one.mass_g == pytest.approx(5 + 10)
    ((_, text),) = found(report, "restated_partly")
    assert text.startswith("25 % of the energy is restated by actual average intensities")


def test_a_forecast_that_stands_in_for_an_actual_is_labelled(tmp_path):
    both = Past("gb", "GB", "average", (*past(150.0).slots, PastSlot(HALF_S, HALF_S + 1_800, 300.0, "forecast")))

    report = restated(tmp_path, both)

    assert {e.quality: e.mass_g.value for e in report.emissions if e.origin == "restated"} == pytest.approx(
        {"actual": 5.0, "forecast": 30.0}
    )
    assert "restated_partly" in codes(report)


def test_energy_of_a_time_that_no_one_knows_is_not_in_the_grams_and_that_is_said(tmp_path):
    report = restated(tmp_path, past(150.0, None), intensity=None)

    (one,) = report.restated
    assert one.mass_g == pytest.approx(5.0)
    ((_, text),) = found(report, "restated_missing")
    assert "75 % of the energy" in text


def test_a_given_intensity_stands_in_as_a_labelled_static(tmp_path):
    report = restated(tmp_path, past(150.0, None), intensity=None, carbon=200.0)

    (one,) = report.restated
    assert [(slot.provider, slot.quality) for slot in one.slots] == [("gb", "actual"), ("given", "static")]
    assert one.mass_g == pytest.approx(5 + 20)
    assert "restated_missing" not in codes(report)


def test_average_and_marginal_are_restated_apart_and_never_added(tmp_path):
    report = restated(tmp_path, past(150.0, 300.0), past(600.0, 600.0, basis="marginal", provider="file.csv"))

    assert {(total.basis, total.origin): total.mass_g.value for total in report.emission_totals} == pytest.approx(
        {("average", "ledger"): 480_000 / JOULES * 100, ("average", "restated"): 35, ("marginal", "restated"): 80}
    )
    assert [one.ledger_g is None for one in report.restated] == [False, True]  # the ledger has no marginal grams
    assert "115.0 g" not in printed(report)


def test_a_given_average_does_not_stand_in_for_a_marginal(tmp_path):
    marginal = past(600.0, None, basis="marginal", provider="file.csv")

    (one,) = restated(tmp_path, marginal, intensity=None, carbon=200.0).restated

    assert one.mass_g == pytest.approx(20.0)  # 120 kJ at 600
    assert one.share_of("") == pytest.approx(0.75)


def cpu_work(t):
    """All of the CPU's 36 kJ are drawn in the second half hour; the DRAM's 7.2 kJ at one rate throughout."""
    yield m.CPU_ENERGY, {"package": "0", "zone": "package"}, 40.0 * min(max(t - HALF_S, 0), 900)
    yield m.CPU_ENERGY, {"package": "0", "zone": "dram"}, 4.8 * min(max(t - BEGIN_S, 0), 1_500)
    if t > BEGIN_S:
        yield m.RUN_ENERGY, {"run_id": "train-1", "component": "dram", "device": "0"}, 7_200.0


@pytest.mark.parametrize(
    ("with_counters", "cpu_g"),
    [(True, 3.0), (False, 36_000 * (0.4 * 150 + 0.6 * 300) / JOULES)],  # by time where there is no counter
)
def test_cpu_and_dram_are_shared_out_by_their_own_counters(tmp_path, with_counters, cpu_g):
    frames = frames_with(tmp_path, run(cpu_j=36_000), gpus=[TWO_POWERS], times=TIMES, more=cpu_work)
    if with_counters:
        source = HistorySource(tmp_path)
        frames = with_cpu_counters(source, frames)
        source.close()

    report = assess(frames, Given(past=(past(150.0, 300.0),)))

    grams = {e.component: e.mass_g.value for e in report.emissions if e.origin == "restated"}
    assert grams["gpu"] == pytest.approx(35.0)
    assert grams["cpu"] == pytest.approx(cpu_g)
    assert grams["dram"] == pytest.approx(7_200 * (0.4 * 150 + 0.6 * 300) / JOULES)
    (one,) = report.restated
    assert one.difference_ratio == pytest.approx(35 / (480_000 / JOULES * 100) - 1)  # of the GPUs, which both count


def test_a_provider_that_does_not_answer_leaves_the_ledgers_figure_and_is_told(tmp_path):
    report = restated(tmp_path, Past("gb", "GB", "average", problem="gb answered HTTP 500"))

    assert report.restated == ()
    assert [total.origin for total in report.emission_totals] == ["ledger"]
    assert found(report, "not_restated") == [
        ("", "not restated: gb answered HTTP 500; the ledger's emissions remain valid")
    ]


def test_nodes_are_added_in_each_slot(tmp_path):
    """A second node beside the first, at 100 W throughout: 60 kJ more in the first half hour, 90 kJ in the other."""
    steady = Gpu([(BEGIN_S - 5_000, 60), (BEGIN_S, 100), (END_S, 60)], index="1")
    series = scraped(((t, scrape([TWO_POWERS], run(), t)) for t in TIMES), "a:9847")
    series += scraped(((t, scrape([steady], run(), t)) for t in TIMES), "b:9847")

    report = assess(frames_of(tmp_path, series), Given(past=(past(150.0, 300.0),)))

    (one,) = report.restated
    assert [slot.energy_j for slot in one.slots] == pytest.approx([180_000, 450_000])
    assert one.mass_g == pytest.approx(7.5 + 37.5)


def test_a_node_that_ended_early_has_no_energy_in_the_slots_after_it(tmp_path):
    """On b the run ended a minute before the half hour, and its card went on at 400 W for somebody else."""
    early_s = HALF_S - 60
    other = Gpu([(BEGIN_S - 5_000, 60), (BEGIN_S, 200), (early_s, 400), (END_S, 60)], index="1")
    series = scraped(((t, scrape([TWO_POWERS], run(), t, intensity=100.0)) for t in TIMES), "a:9847")
    ended = replace(run(), end_s=early_s)
    series += scraped(((t, scrape([other], ended, t, intensity=100.0)) for t in TIMES), "b:9847")

    frames = frames_of(tmp_path, series)
    report = assess(frames, Given(past=(past(150.0, 300.0),)))

    slots = [(slot.instance, slot.start_s, slot.end_s, slot.gpu_energy_j) for slot in report.carbon_slots]
    assert slots == [
        ("a:9847", BEGIN_S, HALF_S, pytest.approx(120_000)),
        ("a:9847", HALF_S, END_S, pytest.approx(360_000)),
        ("b:9847", BEGIN_S, early_s, pytest.approx(200 * 540)),
    ]
    assert [slot.energy_j for slot in report.restated[0].slots] == pytest.approx([120_000 + 108_000, 360_000])
    drawn = run_power_profile(frames, report)  # five minutes each: at 200 W twice, then at 400 W; b adds 60 and 48 kJ
    assert drawn.energies_j == pytest.approx([120_000, 108_000, 120_000, 120_000, 120_000])


def test_energy_of_a_begin_that_the_source_forgot_is_what_the_ledger_has_beyond_the_samples(tmp_path):
    """Samples from the half hour on rise by 360 kJ, the ledger's 480 kJ: 120 kJ were drawn before."""
    times = [t for t in TIMES if t >= HALF_S]
    frames = frames_with(tmp_path, run(), gpus=[TWO_POWERS], times=times, intensity=100.0)

    (one,) = assess(frames, Given(past=(past(150.0, 300.0),))).restated

    assert [slot.energy_j for slot in one.slots] == pytest.approx([120_000, 360_000])
    assert one.mass_g == pytest.approx(35.0)


def test_one_intensity_for_all_slots_is_the_whole_energy_times_it(tmp_path):
    (one,) = restated(tmp_path, past(360.0, 360.0)).restated

    assert one.mass_g == pytest.approx(48.0, rel=1e-12)  # 480 kJ at 360 g/kWh


def test_a_range_that_no_run_tagged_has_the_grams_of_the_slots_in_force(tmp_path):
    untagged = Run(start_s=BEGIN_S, end_s=END_S)
    frames = frames_with(tmp_path, untagged, gpus=[TWO_POWERS], times=TIMES, intensity=100.0)

    report = assess(replace(frames, untagged=True))

    assert [(one.origin, one.quality, one.mass_g.value) for one in report.emissions] == [
        ("by slot", "actual", pytest.approx(480_000 / JOULES * 100))
    ]
    assert "carbon_missing" not in codes(report)
    assert report.restated == ()


def test_intensities_of_which_nobody_says_what_they_are_are_not_called_actual(tmp_path):
    report = restated(tmp_path, past(150.0, 300.0, quality="unknown", provider="mine.csv"))

    assert [slot.quality for slot in report.restated[0].slots] == ["unknown", "unknown"]
    ((_, text),) = found(report, "restated_unknown")
    assert text.startswith("100 % of the energy is restated by average intensities of mine.csv without a quality")
    assert "restated_partly" not in codes(report)


def test_the_document_has_the_slots_and_the_difference(tmp_path):
    (data,) = json.loads(json.dumps(report_document(restated(tmp_path, past(150.0, 300.0)))))["restated_emissions"]

    assert data["emissions_grams"] == pytest.approx(35)
    assert data["difference_ratio"] == pytest.approx(1.625)
    assert [slot["intensity_then_grams_per_kilowatt_hour"] for slot in data["slots"]] == [100, 100]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The report, the window of the run and the energies over time."""
    times = every(60, BEGIN_S - 60, END_S + 60)
    frames = frames_with(tmp_path_factory.mktemp("linear"), run(), gpus=[TWO_POWERS], times=times)
    report = assess(frames)
    lines = energy_lines(
        frames.raw, report.devices, gpu_energy_lines(RawSeries(frames.raw, frames.exact), report.devices)
    )
    return report, timeline.windows(frames.ledger, frames.run_id), lines


@given(st.lists(st.floats(0, 900), min_size=2, max_size=2), st.floats(0, 900))
@settings(max_examples=20, deadline=None)  # each looks the counters up anew
def test_restating_is_linear_in_the_intensity(whole, values, more):
    """The joules of each slot do not depend on the intensity: f(a + b) = f(a) + f(b)."""

    def grams(*intensities):
        return restate(*whole, past(*intensities)).mass_g

    assert grams(*(value + more for value in values)) == pytest.approx(grams(*values) + grams(more, more))

import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun
from tests.analyzer.recommend.sample_sweeps import sample_run
from tests.analyzer.run_reports import finding_texts, run_report
from wattline.contract.work import (
    energy_of_one,
    is_amount,
    is_shared,
    most_common_first,
    noun_of_one,
    primary_first,
    unit_of_one,
)
from wattline.figures import Figure, unknown
from wattline_analyzer.recommend.advice import advise
from wattline_analyzer.recommend.objective import Objective, SweepQuestion
from wattline_analyzer.recommend.sweep import Sweep, setting_of


@pytest.mark.parametrize(
    ("half_j", "shared"), [(0.0, True), (9.0, True), (11.0, False), (None, True)]
)
def test_share_beyond_the_edges_and_a_known_half_width_is_divided(half_j, shared):
    """60 J are missing; 2 x 0.25 s at 100 W are 50 J. An unknown half-width leaves them shared."""
    found = is_shared(1_000.0, 940.0, mean_power_w=100.0, max_power_w=80.0, half_j=half_j)

    assert found is shared


def test_energy_of_one_has_the_errors_and_the_state_of_the_whole():
    """6,000 ± 10 J over 1,000 tokens, of which up to 50 J more were not measured."""
    whole = Figure(6_000.0, 10.0, bias=(-30.0, 60.0), rest=(0.0, 50.0), reason="a gap")

    each = energy_of_one(whole, 1_000.0)

    assert each == Figure(
        pytest.approx(6.0),
        pytest.approx(0.01),
        bias=pytest.approx((-0.03, 0.06)),
        rest=pytest.approx((0.0, 0.05)),
        reason="a gap",
    )


@pytest.mark.parametrize(
    ("energy", "amount"),
    [(Figure(6.0), 0.0), (Figure(6.0), 1e-320), (unknown("no sensor"), 5.0)],
)
def test_energy_of_one_without_a_finite_number_is_none(energy, amount):
    assert energy_of_one(energy, amount) is None


def test_primary_first_prefers_useful_work_to_its_effort():
    units = ["flop", "padding_tokens", "prompt_tokens", "samples", "steps", "tokens", "verdicts"]

    assert primary_first(units) == [
        "tokens",
        "prompt_tokens",
        "samples",
        "steps",
        "verdicts",
        "flop",
        "padding_tokens",
    ]


def test_primary_first_prefers_the_unit_of_the_job():
    assert primary_first(["tokens", "verdicts", "steps"], "verdicts") == [
        "verdicts",
        "tokens",
        "steps",
    ]
    assert primary_first(["tokens", "verdicts"], "never_reported") == ["tokens", "verdicts"]


def test_most_common_first_prefers_the_primary_unit_of_most_runs():
    assert most_common_first([["steps", "tokens"], ["verdicts", "tokens"], ["verdicts"], []]) == [
        "verdicts",
        "steps",
        "tokens",
    ]


def test_is_amount_scores_and_times_are_results():
    assert [unit for unit in ("score", "time", "train_seconds", "steps") if is_amount(unit)] == [
        "steps"
    ]


def test_report_score_reported_as_work_is_a_result(tmp_path):
    """A benchmark that takes 20 s at 300 W: 6,000 J, and no joules per second of score."""
    gpu = NodeGpu([(START_S - 1_000, 60), (START_S, 300), (START_S + 20, 60)])

    report = run_report(tmp_path, NodeRun(work={"score": 20.0}), gpus=[gpu])

    assert report.work == ()
    assert report.results["score"] == 20.0
    assert finding_texts(report, "work_is_result")[0][0] == "score"


def test_recommend_fixed_benchmark_is_not_advised_to_take_longer():
    """4.1 s and 2,811 J at 700 W, 20.2 s and 6,017 J at 300 W: 300 W costs 114 % more energy."""
    runs = [
        sample_run(
            cap_w,
            energy_j * (1 + repeat / 1_000),
            time_s,
            repeat=str(repeat),
            steps=0,
            results={"score_seconds": time_s},
        )
        for repeat in range(3)
        for cap_w, energy_j, time_s in ((700, 2_811.0, 4.1), (300, 6_017.0, 20.2))
    ]

    advice = advise(Sweep("container", tuple(runs)), SweepQuestion())

    assert advice.costs.objective is Objective.ENERGY
    assert advice.best.setting == setting_of({"power_limit_watts": "700"})


@pytest.mark.parametrize(
    ("unit", "one", "noun"),
    [
        ("generated_tokens", "generated token", "token"),
        ("samples_loaded", "sample loaded", "sample"),
        ("requests_failed", "request failed", "request"),
        ("steps", "step", "step"),
        ("batches", "batch", "batch"),
        ("caches", "cache", "cache"),
        ("queries_answered", "query answered", "query"),
        ("training_passes", "training pass", "pass"),
        ("gflop", "gflop", "gflop"),
        ("loss", "loss", "loss"),
        ("time_series", "time series", "series"),
    ],
)
def test_unit_of_one_is_singular_of_counted_noun(unit, one, noun):
    assert (unit_of_one(unit), noun_of_one(unit)) == (one, noun)

"""Runs of a sweep that report no work, or other units."""

import math
from dataclasses import replace

import pytest

from tests.analyzer.recommend.sample_sweeps import sample_run
from wattline.figures import Figure
from wattline_analyzer.core.run_report import Work
from wattline_analyzer.recommend import text as recommend_text
from wattline_analyzer.recommend.advice import advise
from wattline_analyzer.recommend.equal_work import of_equal_work
from wattline_analyzer.recommend.objective import Objective, QuestionError, SweepQuestion
from wattline_analyzer.recommend.sweep import Sweep


def unequal_units(work):
    """Return three runs each of 10 s at 300 W with 50 units, at 500 W with 140: 60 and 35.7 J a
    unit.

    `work` returns the unit of a run by its limit and repeat; None for a run without work.
    """
    runs = []
    for repeat in range(3):
        for cap_w, joules, amount in ((300, 3_000 + repeat, 50.0), (500, 5_000 + repeat, 140.0)):
            unit = work(cap_w, repeat)
            done = {unit: Work(unit, amount, amount / 10, Figure(joules / amount))} if unit else {}
            runs.append(sample_run(cap_w, joules, 10.0, repeat=repeat, work=done))
    return Sweep("unequal", tuple(runs))


@pytest.mark.parametrize("objective", [None, *Objective])
def test_advise_run_without_the_unit_is_left_out(objective):
    sweep = unequal_units(lambda cap_w, repeat: None if (cap_w, repeat) == (500, 2) else "steps")

    advice = advise(sweep, SweepQuestion(objective))

    assert advice.candidates[0].saving.value == pytest.approx(
        1 - 140 / 50 * 0.6, rel=0.001
    ) or objective in (
        Objective.EDP,
        Objective.ED2P,
        Objective.ZEUS,
    )
    assert advice.best.setting.power_limit_w == 500
    assert [(run.run_id, run.unfit) for run in advice.sweep.unfit] == [
        ("500-2", "it reports no steps")
    ]
    assert "run 500-2 (500 W) is excluded: it reports no steps" in recommend_text.advice_remarks(
        advice
    )


@pytest.mark.parametrize("objective", [None, *Objective])
@pytest.mark.parametrize(
    ("work", "units"),
    [
        (lambda cap_w, repeat: "steps" if cap_w == 500 else None, "300 W: no work; 500 W: steps"),
        (
            lambda cap_w, repeat: "steps" if cap_w == 300 else "requests",
            "300 W: steps; 500 W: requests",
        ),
        (lambda cap_w, repeat: "requests_failed", "300 W: requests_failed; 500 W: requests_failed"),
    ],
)
def test_advise_settings_without_common_unit_are_refused(work, units, objective):
    with pytest.raises(QuestionError, match=f"the settings have no common unit.*{units}"):
        advise(unequal_units(work), SweepQuestion(objective))


def test_advise_phase_without_energy_in_some_runs_compares_whole_runs():
    # 100 units each at 300 W and 500 W: whole runs of 60 and 50 J a unit, the phase of the work at
    # 300 W of 10 J a unit
    runs = []
    for repeat in range(3):
        in_phase = Work("steps", 100.0, 20.0, Figure(10.0 + repeat / 1000), ("measure",))
        runs.append(sample_run(300, 6_000 + repeat, 20.0, repeat=repeat, work={"steps": in_phase}))
        runs.append(sample_run(500, 5_000 + repeat, 10.0, repeat=repeat))

    advice = advise(Sweep("short", tuple(runs)), SweepQuestion())

    assert advice.best.setting.power_limit_w == 500
    assert advice.candidates[0].saving.value == pytest.approx(-0.2, rel=0.001)
    assert advice.candidates[0].slowdown.value == pytest.approx(1.0)
    assert any(
        line.startswith("energy and time of whole runs")
        for line in recommend_text.advice_remarks(advice)
    )


def test_whole_run_with_a_part_of_its_energy_has_none_per_unit():
    """100 steps of 6,000 J take 60 J each; a lower limit of 6,000 J has no energy per step."""
    in_phase = Work("steps", 100.0, 20.0, Figure(10.0), ("measure",))
    in_run = Work("steps", 100.0, 10.0, Figure(50.0))
    part = Figure(6_000.0, 20.0, rest=(0.0, math.inf), reason="the energy of one GPU is unknown")
    whole = sample_run(300, 6_000, 20.0, work={"steps": in_phase})
    runs = (
        replace(whole, energy=Figure(6_000.0, 20.0)),
        replace(whole, energy=part, repeat="1"),
        sample_run(500, 5_000, 10.0, work={"steps": in_run}),
    )

    found, unit = of_equal_work(Sweep("short", runs), SweepQuestion())

    assert unit == "steps"
    assert [run.work["steps"].energy_per_unit for run in found.runs[:2]] == [
        Figure(pytest.approx(60.0), pytest.approx(0.2)),
        None,
    ]


def test_advise_whole_runs_with_work_are_refused():
    sweep = unequal_units(lambda cap_w, repeat: "steps" if cap_w == 500 else None)

    with pytest.raises(QuestionError, match="cannot compare whole runs: they report steps"):
        advise(sweep, SweepQuestion(unit="runs"))
    with pytest.raises(
        QuestionError, match="fewer than two settings have runs with work in 'steps'"
    ):
        advise(sweep, SweepQuestion(unit="steps"))


@pytest.mark.parametrize("objective", [None, Objective.ENERGY, Objective.EDP])
def test_advise_equal_time_with_scatter_is_refused(objective):
    """A fixed measurement of 30 s after a load of 5 to 9 s, whose time depends on the disk."""
    loads_s = iter((9.0, 5.0, 5.5, 8.0, 7.0, 9.0))
    runs = []
    for repeat in range(3):
        for cap_w in (300, 500):
            seconds = 30 + next(loads_s)
            facts = {"longest_phase_s": 30.0, "work": {}}
            runs.append(sample_run(cap_w, cap_w * seconds, seconds, repeat=repeat, **facts))

    for phase_s in (30.0, None):
        sweep = Sweep("fixed", tuple(replace(run, longest_phase_s=phase_s) for run in runs))
        with pytest.raises(QuestionError, match="report no work and last equally long"):
            advise(sweep, SweepQuestion(objective))

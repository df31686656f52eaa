"""Advice on sweeps with a known best setting."""

from dataclasses import replace

import pytest

from tests.analyzer.recommend.sample_sweeps import power_and_speed, sample_run, sample_sweep
from wattline.figures import Figure
from wattline_analyzer.recommend import text as recommend_text
from wattline_analyzer.recommend.advice import advise
from wattline_analyzer.recommend.objective import Objective, QuestionError, SweepQuestion
from wattline_analyzer.recommend.sweep import HostEnergy, Setting, Sweep

LEAST_W = 450
SWEEPS = range(100)
ENOUGH = 95


def noisy_sweep(name, seed):
    """Sweep with noise of 1 to 2 %, by seed."""
    return sample_sweep(
        name, seed, noise=0.01 * (1 + seed / len(SWEEPS)), caps_w=(350, 450, 550, 650, 700)
    )


def watts(candidates):
    return [each.setting.power_limit_w for each in candidates]


def near_exact_sweep(rows, repeats=5, **facts):
    """Sweep whose repeats differ by 0.1 %: {cap: (joules, seconds)}."""
    factors = [0.999, 1.0, 1.001, 1.0005, 0.9995][:repeats]
    runs = []
    for number, factor in enumerate(factors):
        for cap_w, (joules, seconds) in rows.items():
            each = bound_by_cap(cap_w, seconds) | facts.get(str(cap_w), {})
            runs.append(
                sample_run(
                    cap_w, joules * factor, seconds * factor, repeat=number, limit_w=cap_w, **each
                )
            )
    return Sweep("by hand", tuple(runs))


def bound_by_cap(cap_w, seconds):
    return {"p95_power_w": cap_w, "capped_s": seconds}


def test_simulated_load_has_minimum_energy_at_450_w():
    joules = {
        cap_w: power * 0.05 / speed
        for cap_w in (400, 450, 500)
        for power, speed in [power_and_speed("compute", cap_w)]
    }

    assert joules == pytest.approx({400: 31.75, 450: 31.20, 500: 31.50}, abs=0.005)


def test_advise_known_best_is_in_the_best_candidates():
    advices = [advise(noisy_sweep("compute", seed), SweepQuestion()) for seed in SWEEPS]

    named = [
        LEAST_W in watts(advice.best_candidates) and advice.advised in advice.best_candidates
        for advice in advices
    ]
    assert sum(named) >= ENOUGH
    assert (
        sum(advice.verdict == "apply" and watts([advice.advised])[0] < 650 for advice in advices)
        >= ENOUGH
    )


def test_advise_equal_costs_keep_the_baseline():
    verdicts = [advise(noisy_sweep("memory", seed), SweepQuestion()).verdict for seed in SWEEPS]

    assert sum(verdict in ("no_clear_difference", "keep") for verdict in verdicts) >= ENOUGH


def test_advise_no_binding_cap_proposes_clock_lock():
    advices = [advise(noisy_sweep("light", seed), SweepQuestion()) for seed in SWEEPS[::10]]

    assert {advice.verdict for advice in advices} == {"no_cap_bound"}
    assert advices[0].advised is None
    assert recommend_text.advice_commands(advices[0]) == []
    assert "try a clock lock" in recommend_text.advice_headline(advices[0])


def test_advise_steady_repeats_give_the_best_with_its_command():
    advice = advise(
        sample_sweep("compute", 1, noise=0.0005, caps_w=(300, 450, 600, 700)), SweepQuestion()
    )

    assert advice.verdict == "apply"
    assert watts(advice.best_candidates) == [LEAST_W]
    assert recommend_text.advice_commands(advice) == ["nvidia-smi -i 0 -pl 450"]
    assert advice.best.saving.value == pytest.approx(
        1 - 31.20 / 35, abs=0.002
    )  # 700 W: 700 × 0.05 = 35 J
    assert advice.best.saving.low <= 1 - 31.20 / 35 <= advice.best.saving.high


def test_advise_equal_candidates_give_the_fastest():
    rows = {400: (700, 12.0), 500: (701, 11.0), 700: (1000, 10.0)}
    advice = advise(near_exact_sweep(rows), SweepQuestion())

    assert watts(advice.best_candidates) == [
        400,
        500,
    ]  # a difference of 0.1 % is not worth 10 % more time
    assert watts([advice.best, advice.advised]) == [400, 500]


def test_objectives_weigh_time_as_defined():
    rows = {400: (600, 20.0), 550: (700, 12.0), 700: (1000, 10.0)}
    best = {
        objective: watts([advise(near_exact_sweep(rows), SweepQuestion(objective, eta=0.1)).best])[
            0
        ]
        for objective in Objective
    }

    assert best == {
        Objective.ENERGY: 400,
        Objective.ENERGY_PER_UNIT: 400,
        Objective.UNITS_PER_JOULE: 400,
        Objective.EDP: 550,  # 12,000, 8,400, 10,000 J s
        Objective.ED2P: 700,  # 240,000, 100,800, 100,000 J s²
        Objective.ZEUS: 700,  # 0.1 E + 0.9 × 700 W × t: 12,660, 7,630, 6,400 J
    }


def test_advise_slowdown_limit_takes_cheapest_allowed_cap():
    rows = {400: (800, 13.0), 500: (700, 12.0), 600: (720, 10.4), 700: (1000, 10.0)}

    assert watts([advise(near_exact_sweep(rows), SweepQuestion(max_slowdown=0.05)).advised]) == [
        600
    ]
    assert watts([advise(near_exact_sweep(rows), SweepQuestion(max_slowdown=0.5)).advised]) == [
        500
    ]  # 400 W costs more
    broken = advise(near_exact_sweep(rows), SweepQuestion(max_slowdown=0.05)).candidates[0].broken
    assert broken == ("takes 30.0 % longer than 700 W",)


def test_advise_only_baseline_meets_constraints_is_reported():
    advice = advise(
        near_exact_sweep({400: (800, 13.0), 500: (700, 12.0), 700: (1000, 10.0)}),
        SweepQuestion(max_slowdown=0.05),
    )

    assert (
        recommend_text.advice_headline(advice)
        == "keep 700 W: no other setting meets the constraints"
    )
    assert not [
        remark
        for remark in recommend_text.advice_remarks(advice)
        if "no clear difference" in remark
    ]


def test_advise_slo_must_hold_for_each_run():
    rows = {400: (600, 12.0), 550: (700, 11.0), 700: (1000, 10.0)}
    late = {
        str(cap): {"results": {"ttft_seconds_p99": ttft}}
        for cap, ttft in ((400, 0.6), (550, 0.45), (700, 0.3))
    }
    sweep = near_exact_sweep(rows, **late)

    assert watts([advise(sweep, SweepQuestion(slos={"ttft_seconds_p99": 0.5})).advised]) == [550]
    assert advise(sweep, SweepQuestion(slos={"ttft_seconds_p99": 0.1})).verdict == "not_feasible"
    with pytest.raises(QuestionError, match="no result 'tpot'; known results: ttft_seconds_p99"):
        advise(sweep, SweepQuestion(slos={"tpot": 0.5}))


def test_advise_slo_with_a_missing_result_is_violated():
    rows = {400: (600, 12.0), 700: (1000, 10.0)}
    sweep = near_exact_sweep(
        rows, **{str(cap): {"results": {"ttft_seconds_p99": 0.3}} for cap in rows}
    )
    one_lacks_it = tuple(
        replace(each, results={})
        if (each.setting.power_limit_w, each.repeat) == (400, "2")
        else each
        for each in sweep.runs
    )

    advice = advise(
        replace(sweep, runs=one_lacks_it), SweepQuestion(slos={"ttft_seconds_p99": 0.5})
    )

    assert watts([advice.advised]) == [700]
    assert advice.candidates[0].broken == ("ttft_seconds_p99 is unknown for 1 of 5 runs",)


@pytest.mark.parametrize("objective", [Objective.ENERGY, Objective.EDP])
def test_advise_run_without_energy_is_refused(objective):
    rows = {400: (600, 12.0), 700: (1000, 10.0)}
    sweep = near_exact_sweep(rows, **{str(cap_w): {"work": {}} for cap_w in rows})
    nothing = replace(sweep.runs[0], energy=Figure(0.0))

    with pytest.raises(QuestionError, match="energy is 0 J"):
        advise(replace(sweep, runs=(nothing, *sweep.runs[1:])), SweepQuestion(objective=objective))


def test_advise_unbound_cap_is_never_advised():
    rows = {400: (800, 13.0), 600: (500, 10.0), 700: (1000, 10.0)}
    free = {"p95_power_w": 450.0, "mean_power_w": 440.0, "capped_s": 0.0}
    advice = advise(
        near_exact_sweep(rows, **{"600": free, "400": bound_by_cap(400, 13.0)}), SweepQuestion()
    )

    assert advice.unbound == (Setting((), 600),)
    assert watts([advice.advised]) == [400]


def test_advise_power_at_limit_binds_without_clock_events():
    rows = {400: (800, 13.0), 700: (1000, 10.0)}
    facts = {"capped_s": None, "mean_power_w": None}
    near = advise(
        near_exact_sweep(rows, **{"400": {**facts, "p95_power_w": 390.0}}), SweepQuestion()
    )  # 0.975 of 400
    far = advise(
        near_exact_sweep(rows, **{"400": {**facts, "p95_power_w": 380.0}}), SweepQuestion()
    )  # 0.95 of 400

    assert (near.candidates[0].binds, far.candidates[0].binds) == (True, False)
    assert (near.verdict, far.verdict) == ("apply", "no_cap_bound")


def test_advise_two_repeats_are_too_few():
    advice = advise(sample_sweep("compute", 1, repeats=2), SweepQuestion())

    assert advice.verdict == "too_few_repeats"
    assert recommend_text.advice_headline(advice).startswith("too few repeats: ")
    assert recommend_text.advice_commands(advice) == []
    assert all(each.saving.low is None for each in advice.candidates)


def test_advise_too_few_repeats_does_not_compare_baseline_with_itself():
    advice = advise(
        near_exact_sweep({400: (1200, 13.0), 700: (1000, 10.0)}, repeats=1), SweepQuestion()
    )

    assert recommend_text.advice_headline(advice) == (
        "too few repeats: 700 W was best with one run per setting, the baseline"
    )


def test_advise_outlier_is_excluded_from_five_runs_not_from_four():
    def odd_one(repeats):
        sweep = near_exact_sweep({400: (700, 12.0), 700: (1000, 10.0)}, repeats)
        first, *settings = sweep.runs
        per_unit = first.work["steps"].energy_per_unit.scaled(3)
        work = {"steps": replace(first.work["steps"], energy_per_unit=per_unit)}
        return advise(Sweep("odd", (replace(first, work=work), *settings)), SweepQuestion())

    # of two settings, the run and the other one of its repeat are left out
    assert [each.outliers for each in odd_one(5).candidates] == [1, 1]
    assert [each.outliers for each in odd_one(4).candidates] == [None, None]
    assert "no outlier detection" in " ".join(recommend_text.advice_remarks(odd_one(4)))


def test_advise_compares_energy_for_equal_work():
    full, half = [], []
    for repeat in range(3):
        full.append(sample_run(700, 1000 + repeat, 10.0, repeat=repeat))
        half.append(
            sample_run(
                400, 600 + repeat, 10.0, repeat=repeat, steps=50.0, **bound_by_cap(400, 10.0)
            )
        )
    advice = advise(Sweep("unequal", (*full, *half)), SweepQuestion(Objective.ENERGY))

    assert advice.candidates[0].saving.value == pytest.approx(
        -0.2, abs=0.005
    )  # 12 J a step for 10 J
    assert watts([advice.advised]) == [700]


def test_advice_commands_name_all_gpus():
    rows = [
        sample_run(cap, joules + repeat, 10.0, repeat=repeat, gpus=2)
        for repeat in range(3)
        for cap, joules in ((200, 3900), (400, 8000))
    ]
    advice = advise(Sweep("two", tuple(rows)), SweepQuestion())

    assert recommend_text.advice_commands(advice) == ["nvidia-smi -i 0,1 -pl 200"]


def test_advise_one_setting_is_no_sweep():
    assert advise(near_exact_sweep({700: (1000, 10.0)}), SweepQuestion()).verdict == "no_sweep"


def test_advise_host_energy_counts_where_all_runs_have_it():
    """GPU: 600 J in 13 s, 700 J in 10 s. With a host of 40 W: 1,120 and 1,100 J, so the slower
    setting costs more.
    """

    def sweep(*, hosts):
        runs = []
        for repeat in range(3):
            for cap_w, joules, seconds in ((400, 600.0, 13.0), (700, 700.0, 10.0)):
                node_j = joules + 40 * seconds + repeat / 10
                per_unit = {"steps": Figure(node_j / 100)}
                host = (
                    HostEnergy(("gpu", "cpu", "dram"), Figure(node_j), per_unit)
                    if repeat < hosts
                    else None
                )
                facts = bound_by_cap(cap_w, seconds) | {"with_host": host}
                runs.append(
                    sample_run(cap_w, joules + repeat / 10, seconds, repeat=repeat, **facts)
                )
        return Sweep("host", tuple(runs))

    with_host, without = (advise(sweep(hosts=hosts), SweepQuestion()) for hosts in (3, 2))

    assert with_host.costs.components == ("gpu", "cpu", "dram")
    assert with_host.candidates[0].saving.value == pytest.approx(1 - 1_120 / 1_100, abs=0.001)
    assert watts([with_host.best]) == [700]
    assert without.costs.components == ("gpu",)
    assert watts([without.best]) == [400]


def test_advise_power_without_samples_has_no_percentile():
    rows = {400: (800, 13.0), 700: (1000, 10.0)}
    advice = advise(
        near_exact_sweep(rows, **{"400": {"p95_power_w": None, "mean_power_w": 60.0}}),
        SweepQuestion(),
    )

    assert [each.p95_power_w for each in advice.candidates] == [None, 700]

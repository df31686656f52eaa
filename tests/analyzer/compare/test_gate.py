"""Sequential test for an increase of the energy: error rates over generated truths, and chosen
figures.

`tests/calibration/decisions.py` has the error rates of other laws of scatter.
"""

import numpy as np
import pytest

from wattline.figures import Figure
from wattline_analyzer.compare.comparison import GroupMember, RunFigure, RunGroup
from wattline_analyzer.compare.gate import GateError, Verdict, gate_figure, judge

ENERGY = RunFigure("energy_gpu_joules", "energy", "energy, GPU")
PER_TOKEN = RunFigure(
    "energy_per_generated_tokens_joules", "energy_per_unit", "energy per unit", "generated_tokens"
)
PER_STEP = RunFigure("energy_per_steps_joules", "energy_per_unit", "energy per unit", "steps")
RATE = RunFigure("generated_tokens_per_second", "rate", "rate", "generated_tokens")
LIMIT, REPEATS, DRAWS = 0.03, 8, 300
FEW_ALARMS = 8
"""Number of DRAWS; a higher one has a chance of 1 in 250 at 1 %."""
ENOUGH_FOUND = 256
"""Number of DRAWS; a lower one has a chance of 1 in 300 at 90 %."""


def group(name, values, *, half=None, figure=ENERGY, repeats=True, work=None):
    members = (
        GroupMember(
            f"{name}-{n}",
            str(n) if repeats else None,
            {},
            frozenset(),
            {figure: Figure(float(value), half)},
            work or {},
        )
        for n, value in enumerate(values)
    )
    return RunGroup(name, tuple(members))


def verdict(baseline, candidate, **options):
    groups = [group("main", baseline, **options), group("change", candidate, **options)]
    return judge(groups, ENERGY, LIMIT, REPEATS)


def counts(increase, *, paired, sigma=0.01, drift=0.0, unequal=1.0, tails=None):
    """Return the numbers of the verdicts over generated groups of eight runs with a relative scatter
    `sigma`.
    """
    rng = np.random.default_rng(7)

    def noise():
        # Student's t with three degrees of freedom has a variance of 3
        return (
            rng.normal(size=REPEATS)
            if tails is None
            else rng.standard_t(tails, REPEATS) / np.sqrt(tails / (tails - 2))
        )

    found = []
    for _ in range(DRAWS):
        common = np.cumsum(rng.normal(0, drift, REPEATS))
        baseline = 500 * np.exp(common + sigma * noise())
        candidate = 500 * (1 + increase) * np.exp(common + unequal * sigma * noise())
        found.append(verdict(baseline, candidate, repeats=paired).verdict)
    return {one: found.count(one) for one in Verdict}


@pytest.mark.parametrize("paired", [True, False], ids=["pairs", "groups"])
@pytest.mark.parametrize(
    "truth",
    [{}, {"sigma": 0.03}, {"unequal": 3.0}, {"tails": 3}, {"sigma": 0.002}],
    ids=["equal", "wide", "unequal", "tails", "narrow"],
)
def test_gate_without_increase_has_at_most_one_percent_false_alarms(truth, paired):
    assert counts(0.0, paired=paired, **truth)[Verdict.REGRESSION] <= FEW_ALARMS


def test_gate_with_drift_and_pairs_has_at_most_one_percent_false_alarms():
    found = counts(0.0, paired=True, drift=0.05)
    assert found[Verdict.REGRESSION] <= FEW_ALARMS
    assert found[Verdict.PASS] >= ENOUGH_FOUND


@pytest.mark.parametrize("paired", [True, False], ids=["pairs", "groups"])
def test_gate_finds_three_percent_in_nine_of_ten(paired):
    found = counts(0.03, paired=paired)
    assert found[Verdict.REGRESSION] >= ENOUGH_FOUND
    assert found[Verdict.PASS] <= 0.08 * DRAWS  # 15 are allowed; more than 24 have 1 in 100


def test_gate_with_wide_scatter_does_not_pass_a_regression():
    found = counts(0.03, paired=False, sigma=0.04)
    assert found[Verdict.PASS] <= 0.08 * DRAWS
    assert found[Verdict.CANNOT_TELL] > DRAWS / 2


def test_gate_stops_at_the_first_verdict():
    rng = np.random.default_rng(1)
    baseline, candidate = 500 * np.exp(rng.normal(0, 0.001, (2, REPEATS)))
    result = verdict(baseline, 1.2 * candidate)
    assert (result.verdict, result.repeats) == (Verdict.REGRESSION, 3)
    again = verdict(baseline[:3], 1.2 * candidate[:3])
    assert (again.verdict, again.repeats, again.ratio) == (result.verdict, 3, result.ratio)
    assert result.ratio == pytest.approx(1.2, rel=0.003)


def test_gate_of_one_run_each_cannot_tell():
    result = verdict([500.0], [900.0], half=0.5)
    assert (result.verdict, result.repeats, result.low) == (
        Verdict.CANNOT_TELL,
        1,
        None,
    )
    assert result.ratio == pytest.approx(1.8)


def test_gate_measurement_uncertainty_larger_than_scatter_cannot_tell():
    # identical values, but each ± 10 %: the means of eight are ± 3.5 %, their ratio ± 5 %
    result = verdict([500.0] * 8, [500.0] * 8, half=50.0)
    assert result.verdict is Verdict.CANNOT_TELL
    assert np.log(result.high) == pytest.approx(0.1 * np.sqrt(2 / 8))


def test_gate_unknown_uncertainty_is_named_and_not_zero():
    # the means of four are 1, one ± 10 % / 4 * √3 with a run of unknown uncertainty, one ± 5 %
    main = group("main", [500.0] * 4, half=50.0)
    unknown = group("main", [500.0] * 4).members[2]
    main = RunGroup("main", (*main.members[:2], unknown, *main.members[3:]))
    result = judge([main, group("change", [500.0] * 4, half=50.0)], ENERGY, LIMIT, 4)
    assert result.without_uncertainty == ("main-2",)
    assert np.log(result.high) == pytest.approx(0.1 * np.sqrt(3 + 4) / 4)


def test_gate_without_any_uncertainty_has_the_limits_of_the_scatter():
    result = verdict([500.0, 505.0], [500.0, 505.0])
    assert result.without_uncertainty == ("main-0", "main-1", "change-0", "change-1")
    # standard error ln(1.01) / √2 with two degrees of freedom, whose quantile has a closed form;
    # this repeat gets 2² of 2² + 3² + … + 8² = 203 parts of the 5 %
    p = 1 - 0.05 * 4 / 203
    quantile = (2 * p - 1) / np.sqrt(2 * p * (1 - p))
    assert np.log(result.high) == pytest.approx(quantile * np.log(1.01) / np.sqrt(2))


def test_gate_with_all_uncertainties_names_no_run():
    assert verdict([500.0] * 8, [500.0] * 8, half=5.0).without_uncertainty == ()


def test_gate_repeats_beyond_the_planned_are_not_used():
    rng = np.random.default_rng(3)
    baseline, candidate = 500 * np.exp(rng.normal(0, 0.05, (2, 30)))
    assert verdict(baseline, candidate).repeats <= REPEATS


def test_gate_missing_repeat_leaves_out_its_pair():
    main, change = group("main", [500, 510, 490, 505]), group("change", [500, 510, 490, 505])
    change = RunGroup("change", change.members[1:])
    result = judge([main, change], ENERGY, LIMIT, REPEATS)
    assert result.paired
    assert result.ratio == 1.0


@pytest.mark.parametrize("side", ["main", "change"])
@pytest.mark.parametrize("paired", [True, False], ids=["pairs", "groups"])
def test_gate_leaves_out_a_cold_first_run(side, paired):
    """The first run of one side needs 25 % more. With pairs, that of the other side goes with it."""
    noise = np.array([0.0, 0.2, -0.2, 0.1, -0.1, 0.3, -0.3, 0.0]) / 100
    energies = {"main": 500 * np.exp(noise), "change": 550 * np.exp(noise[::-1])}
    energies[side][0] *= 1.25
    groups = [group(name, values, repeats=paired) for name, values in energies.items()]

    result = judge(groups, ENERGY, LIMIT, REPEATS)

    assert result.verdict is Verdict.REGRESSION
    assert result.outliers == (("main-0", "change-0") if paired else (f"{side}-0",))
    assert result.ratio == pytest.approx(1.1, rel=0.003)
    assert result.repeats == 5


@pytest.mark.parametrize("paired", [True, False], ids=["pairs", "groups"])
@pytest.mark.parametrize(
    ("costly", "expected"), [(1, Verdict.PASS), (3, Verdict.CANNOT_TELL)], ids=["one", "three"]
)
def test_gate_does_not_pass_without_several_costly_runs(costly, expected, paired):
    """One or three of the candidate's ten runs need 30 % more: 3 or 9 % in the mean of all."""
    noise = np.array([0.0, 0.2, -0.2, 0.1, -0.1, 0.3, -0.3, 0.05, -0.15, 0.15]) / 100
    candidate = 500 * np.exp(noise[::-1])
    candidate[[1, 4, 7][:costly]] *= 1.3
    groups = [
        group("main", 500 * np.exp(noise), repeats=paired),
        group("change", candidate, repeats=paired),
    ]

    assert judge(groups, ENERGY, LIMIT, 10).verdict is expected


def test_gate_small_increase_needs_five_repeats():
    """Four runs of each side may be in two clock states by chance, if they differ by less than 5 %."""
    noise = np.array([0.0, 1.0, -1.0, 0.5, -0.5, 0.2, 0.0, 0.0]) / 1e5
    baseline = 500 * np.exp(noise)

    small = verdict(baseline, 1.04 * baseline * np.exp(noise[::-1]))
    large = verdict(baseline, 1.06 * baseline * np.exp(noise[::-1]))

    assert (small.verdict, small.repeats) == (Verdict.REGRESSION, 5)
    assert large.verdict is Verdict.REGRESSION
    assert large.repeats < 5


def test_gate_figure_is_the_primary_unit_and_never_a_rate():
    figures = {
        RATE: Figure(3.0),
        PER_STEP: Figure(2.0),
        PER_TOKEN: Figure(1.0),
        ENERGY: Figure(5.0),
    }
    groups = [
        RunGroup(name, (GroupMember(name, None, {}, frozenset(), figures),)) for name in ("a", "b")
    ]
    assert gate_figure(groups) is PER_TOKEN
    assert gate_figure(groups, PER_STEP.key) is PER_STEP
    with pytest.raises(
        GateError,
        match="not every run has the figure 'generated_tokens_per_second'; use one of: en",
    ):
        gate_figure(groups, RATE.key)


def test_gate_unequal_work_without_energy_per_unit_is_refused():
    groups = [group("a", [500], work={"steps": 100.0}), group("b", [600], work={"steps": 120.0})]
    with pytest.raises(GateError, match="different amounts of work"):
        gate_figure(groups)
    assert gate_figure(groups, ENERGY.key) is ENERGY

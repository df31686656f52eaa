"""Decisions of the commands that compare repeated runs: few new ones of each law of scatter."""

import math
from functools import cache

import numpy as np
import pytest

from tests.calibration.decisions import COMMANDS, INCREASE, LAWS, Rate, measure_claims
from wattline.figures import Figure
from wattline_analyzer.core.statistics import RunValue, log_difference, outliers

FEW = 100
MOST_ALARMS = 5
"""Of FEW decisions: more have a chance of 1 in 2,000 at 1 %, and of one in three at 5 %."""
FEWEST_FOUND = 80
"""Of FEW decisions: fewer have a chance of 1 in 1,000 at 90 %."""


@cache
def rate(command: str, law: str, increase: float) -> Rate:
    return measure_claims(command, law, increase, FEW, seed=11)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("command", COMMANDS)
def test_decisions_without_difference_are_seldom_false_alarms(command, law):
    assert rate(command, law, 0.0).claims <= MOST_ALARMS


@pytest.mark.parametrize("command", COMMANDS)
def test_decisions_of_all_laws_have_at_most_one_percent_false_alarms(command):
    """Of 600, six are expected at 1 %, and 30 at 5 %. A test at 5 % in `compare` makes 15."""
    assert sum(rate(command, law, 0.0).claims for law in LAWS) <= 10


@pytest.mark.parametrize("law", LAWS)
def test_gate_finds_five_percent_in_nine_of_ten(law):
    assert rate("gate", law, INCREASE).claims >= FEWEST_FOUND


def test_one_cold_run_hides_a_difference_from_a_test_without_outlier_rule():
    """The study notices a missing rule: without it, fewer gates than needed find the increase."""
    rng = np.random.default_rng(3)
    with_rule = 0
    without = 0
    for _ in range(FEW):
        logs = LAWS["cold first run"](rng, 8, 2) + np.array([0.0, math.log1p(INCREASE)])
        groups = [
            [RunValue(Figure(math.exp(log)), repeat) for repeat, log in enumerate(side)]
            for side in logs.T
        ]
        kept = [
            [one for one, is_outlier in zip(group, marks, strict=True) if not is_outlier]
            for group, marks in zip(groups, outliers(groups), strict=True)
        ]
        with_rule += log_difference(kept[0], kept[1]).p < 0.005
        without += log_difference(groups[0], groups[1]).p < 0.005

    assert with_rule >= FEWEST_FOUND
    assert without < FEWEST_FOUND


@pytest.mark.parametrize("law", LAWS)
def test_law_scatters_around_one_by_some_percent(law):
    """Each law has a median of all runs within 3 % of 1, and a scatter that is not 0."""
    logs = LAWS[law](np.random.default_rng(1), 8, 2)

    assert abs(np.median(logs)) <= 0.03
    assert logs.shape == (8, 2)
    assert logs.std() > 0.002

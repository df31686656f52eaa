"""Coverage of all intervals: few new draws of each, and the stored results of many."""

import random
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import bdtr

from tests.calibration import margins, shares, windows
from tests.calibration.coverage import (
    LEVELS,
    RANK_SHARES,
    Coverage,
    Draw,
    contradictions,
    from_bound,
    from_half_width,
    measure,
    summarize,
)
from tests.calibration.kinds import KINDS
from tests.calibration.margins import MarginDraw, summarize_margins
from tests.calibration.sensors import Conditions
from tests.calibration.shares import TITLES, measure_shares
from tests.calibration.table import coverage_table, is_near_nominal, rank_table, stored
from tests.calibration.windows import (
    Condition,
    WindowDraw,
    conditions,
    measure_windows,
    summarize_windows,
)
from tests.laboratory.results import stored_rows
from wattline_exporter.simulation import Constant, Ramp

DRAWS = 40
"""Draws of a kind; a kind of higher cost has fewer."""
NARROWED = 0.6


def normal_draws(count, narrowed=1.0):
    """Errors of a normal distribution with their exact half-width, times a factor."""
    rng = np.random.default_rng(3)
    return [
        from_half_width(100.0, 100 + error, 1.96 * narrowed) for error in rng.standard_normal(count)
    ]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_interval_few_draws_do_not_contradict_its_level(kind):
    assert contradictions(measure(kind, 11, DRAWS)) == []


@pytest.mark.parametrize(
    "name", ["compare: ratio of groups of unequal spread", "variability: correlation"]
)
def test_interval_narrowed_contradicts_its_level(name):
    kind = next(kind for kind in KINDS if kind.name == name)
    draws = [
        replace(
            draw,
            ends=tuple(
                (
                    draw.estimate + NARROWED * (low - draw.estimate),
                    draw.estimate + NARROWED * (high - draw.estimate),
                )
                for low, high in draw.ends
            ),
        )
        for draw in kind.draws(np.random.default_rng(5), 300)
        if draw.ends
    ]

    assert contradictions(summarize(name, "statistical", draws))


def test_coverage_normal_errors_has_nominal_levels_and_ranks():
    found = summarize("normal", "statistical", normal_draws(20_000))

    assert found.coverage == pytest.approx(LEVELS, abs=0.01)
    assert found.ranks == pytest.approx(RANK_SHARES, abs=0.01)
    assert found.width_ratio == pytest.approx(1.96, abs=0.03)
    assert contradictions(found) == []


@pytest.mark.parametrize(("factor", "words"), [(0.8, "at 95 %"), (1.4, "wider than necessary")])
def test_coverage_wrong_half_width_is_found(factor, words):
    # 0.8 · 1.96 σ contains 88.3 % instead of 95 %; 1.4 · 0.674 σ contains 65.5 % instead of 50 %
    found = summarize("wrong", "statistical", normal_draws(500, factor))

    assert any(words in problem for problem in contradictions(found))


def test_coverage_bound_outside_in_one_of_ten_is_found():
    draws = [
        from_bound(1.0, 1.1, (1.05, 1.2) if number % 10 == 0 else (0.9, 1.2))
        for number in range(400)
    ]

    assert contradictions(summarize("bound", "bound", draws)) == ["bound: 90.0 % at 95 %"] * len(
        LEVELS
    )


def test_draw_rank_counts_the_intervals_beyond_which_the_truth_lies():
    ends = tuple((10.0 - half, 10.0 + half) for half in (1, 2, 3, 4))

    assert [Draw(truth, 10.0, ends).rank for truth in (5.5, 6.5, 9.5, 10.5, 11.5, 14.5)] == [
        0,
        1,
        4,
        5,
        6,
        9,
    ]


def test_stored_results_have_each_interval_once():
    assert sorted(one["interval"] for one in stored()) == sorted(kind.name for kind in KINDS)


def test_stored_results_coverage_at_95_percent_is_near_nominal():
    assert [one["interval"] for one in stored() if not is_near_nominal(one)] == []


def test_stored_results_coverage_is_at_most_one_point_below_each_level():
    results = [Coverage.from_row(one) for one in stored()]

    assert [
        found
        for result in results
        for found in contradictions(result, 0.01)
        if "wider" not in found
    ] == []


def test_tables_have_a_row_for_each_interval():
    assert all(f"| {kind.name} |" in coverage_table() for kind in KINDS)
    assert all(f"| {kind.name} |" in rank_table() for kind in KINDS if kind.meaning != "bound")


def test_shares_few_runs_have_errors_like_the_stored_ones():
    draws = measure_shares(11, 15)

    for figure in TITLES:
        errors = np.array([draw.error for draw in draws if draw.figure == figure])
        known = [row for row in stored_rows(shares.RESULTS) if row["figure"] == figure]
        assert np.median(np.abs(errors)) <= 2 * max(row["median"] for row in known), figure
        assert np.quantile(np.abs(errors), 0.9) <= 1.5 * max(row["p95"] for row in known), figure


def test_margins_factor_contains_95_percent_of_all_runs_and_of_each_class():
    """Errors of 1 to 100 % of the half-widths, of which the ten largest belong to a constant
    load.
    """
    loads = [
        Ramp(100.0, 200.0, 1.0) if percent <= 90 else Constant(100.0) for percent in range(1, 101)
    ]
    draws = [
        MarginDraw(Conditions(load, 2.0, 0.5), (number + 1) / 100)
        for number, load in enumerate(loads)
    ]

    rows = {row["class"]: row for row in summarize_margins("counter", draws)}

    assert rows["all"]["factor"] == pytest.approx(0.95, abs=0.01)
    assert rows["constant load"]["factor"] == pytest.approx(1.0, abs=0.01)
    assert rows["constant load"]["narrowed"] == 0.5
    assert rows["rising load"]["narrowed"] == rows["all"]["coverage"] == 1.0
    assert "random steps" not in rows


def test_stored_margins_have_each_class_of_each_sensor():
    assert [(row["sensor"], row["class"]) for row in stored_rows(margins.RESULTS)] == [
        (sensor, name) for sensor in margins.TITLES for name in margins.CLASSES
    ]


WINDOW_CLASSES = (
    ("instant 25 ms, average 1 s", 1.0),
    ("instant 100 ms, average 1 s", 1.1),
    ("instant 100 ms, average 100 ms", 1.0),
    ("instant 100 ms, average 100 ms", 2.0),
    ("average 100 ms", 2.1),
    ("instant 25 ms, seen before", 0.33),
    ("instant 25 ms, seen before", 1.1),
)
MOST_TIMES_NEEDED = 3.5
HELD_CLASSES = (
    ("instant 25 ms, average 1 s", 17.3),
    ("instant 100 ms, average 100 ms", 17.3),
)
MOST_TIMES_NEEDED_OF_HELD = 10.0
"""A level that the load holds may be the mean of bursts, which these sensors do not show."""


@pytest.mark.parametrize(
    ("title", "updates", "most_times"),
    [
        *((*one, MOST_TIMES_NEEDED) for one in WINDOW_CLASSES),
        *((*one, MOST_TIMES_NEEDED_OF_HELD) for one in HELD_CLASSES),
    ],
)
def test_windows_intervals_contain_the_truth_and_are_not_too_wide(title, updates, most_times):
    """Runs of 3 s. The half-width is compared with the error that 95 % of them do not exceed."""
    sensor = next(one for one in windows.SENSORS if one.title == title)
    condition = Condition(sensor, updates, 3.0)

    draws = measure_windows(random.Random(f"windows {title} {updates} 11"), condition, DRAWS)

    inside = sum(abs(draw.error_j) <= draw.half_width_j for draw in draws)
    assert bdtr(inside, len(draws), 0.93) > 1e-3
    assert summarize_windows(draws)["median_times_needed"] < most_times


def test_windows_summary_compares_half_widths_with_the_quantile_of_the_error():
    """Errors of 0 to 100 J, of which 95 J is the 95 % quantile, and half-widths of 95 or 190 J."""
    draws = [WindowDraw(float(error), 95.0 if error < 50 else 190.0) for error in range(101)]

    assert summarize_windows(draws) == {
        "runs": 101,
        "coverage": 1.0,
        "half_width_j": 142.97,  # (50 · 95 + 51 · 190) / 101
        "median_half_width_j": 190.0,
        "needed_j": 95.0,
        "times_needed": 1.5,
        "median_times_needed": 2.0,
    }


def test_stored_windows_have_each_class():
    assert [
        {key: row[key] for key in condition.key}
        for condition, row in zip(conditions(), stored_rows(windows.RESULTS), strict=True)
    ] == [condition.key for condition in conditions()]


def test_stored_windows_contain_the_truth_in_each_class():
    too_few = [row for row in stored_rows(windows.RESULTS) if row["coverage"] < 0.93]

    assert too_few == []

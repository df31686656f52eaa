"""Other figures than a run's energy, on waves."""

import random
from itertools import product

import pytest

from tests.calibration.coverage import from_half_width
from tests.laboratory.results import ENOUGH, stored_rows
from tests.laboratory.wave_figures import (
    PERIODS_S,
    RESULTS,
    TITLES,
    figure_table,
    phased_draws,
    range_draw,
    sampled_draw,
    summarize_draws,
)


def test_summary_compares_half_widths_with_the_quantile_of_the_error():
    """Errors of 0 to 100 J, of which 95 J is the 95 % quantile, and half-widths of 190 J or 50 J.

    The mean of 51 half-widths of 190 J and 50 of 50 J is 120.7 J, 1.27 times 95 J.
    """
    draws = [
        from_half_width(0.0, float(error), 190.0 if error >= 50 else 50.0) for error in range(101)
    ]

    assert summarize_draws(draws) == {"runs": 101, "coverage": 1.0, "times_needed": 1.27}


@pytest.mark.parametrize("period_s", [0.1, 1.73])
def test_phase_and_emissions_of_few_runs_are_inside_their_intervals(period_s):
    rng = random.Random(period_s)
    runs = [phased_draws(rng, period_s) for _ in range(10)]

    for figure in ("phase", "emissions"):
        draws = [run[figure] for run in runs if figure in run]
        assert summarize_draws(draws)["coverage"] >= 0.8


@pytest.mark.parametrize("period_s", PERIODS_S)
def test_range_between_scrapes_is_inside_its_limits(period_s):
    rng = random.Random(period_s)

    assert summarize_draws([range_draw(rng, period_s) for _ in range(20)])["coverage"] == 1.0


def test_samples_of_a_load_in_step_with_the_updates_are_a_constant_power():
    """The means of the updates are equal: the interval of the integral has only their noise."""
    rng = random.Random(3)
    draws = [sampled_draw(rng, 0.1) for _ in range(20)]

    assert max(draw.half_width for draw in draws) < 3.0
    assert summarize_draws(draws)["coverage"] < ENOUGH


def test_stored_figures_have_each_period():
    found = [(row["figure"], row["period_s"]) for row in stored_rows(RESULTS)]

    assert sorted(found) == sorted(product(TITLES, PERIODS_S))


def test_stored_phases_and_ranges_contain_the_truth_in_each_class():
    """The page of evidence says why emissions and integrals of samples do not."""
    too_few = [
        row
        for row in stored_rows(RESULTS)
        if row["figure"] in {"phase", "range"} and row["coverage"] < ENOUGH
    ]

    assert too_few == []


def test_figure_table_has_a_row_for_each_figure():
    lines = figure_table().splitlines()[2:]

    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == list(TITLES.values())

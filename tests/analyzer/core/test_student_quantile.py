"""Quantile of Student's t, compared with closed forms and tables."""

import math
from statistics import NormalDist

import pytest

from wattline_analyzer.core.statistics import student_quantile

PROBABILITIES = (0.501, 0.6, 0.9, 0.975, 0.995, 0.99995)


@pytest.mark.parametrize("p", PROBABILITIES)
def test_student_quantile_one_and_two_degrees_equal_closed_forms(p):
    assert student_quantile(1, p) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-12)
    assert student_quantile(2, p) == pytest.approx(
        (2 * p - 1) / math.sqrt(2 * p * (1 - p)), rel=1e-12
    )


@pytest.mark.parametrize(
    ("freedom", "p", "expected"),
    [
        (3, 0.975, 3.182446305283709),
        (4, 0.995, 4.604094871349992),
        (10, 0.975, 2.2281388519862744),
        (30, 0.99, 2.4572615424005915),
        (120, 0.975, 1.9799304050824413),
    ],
)
def test_student_quantile_equals_table(freedom, p, expected):
    assert student_quantile(freedom, p) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("p", PROBABILITIES)
def test_student_quantile_many_degrees_approaches_normal(p):
    z, freedom = NormalDist().inv_cdf(p), 1e5
    expansion = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    assert student_quantile(freedom, p) == pytest.approx(expansion, rel=1e-11)


@pytest.mark.parametrize("p", PROBABILITIES)
def test_student_quantile_around_change_of_formula_is_continuous(p):
    below, above = student_quantile(300 - 1e-7, p), student_quantile(300 + 1e-7, p)
    assert 0 <= below - above < 1e-8


@pytest.mark.parametrize(("freedom", "p"), [(0, 0.975), (-1, 0.975), (5, 1.0), (math.nan, 0.975)])
def test_student_quantile_outside_domain_is_nan(freedom, p):
    assert math.isnan(student_quantile(freedom, p))

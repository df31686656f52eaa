from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from wattline_exporter.requests.division.fit import (
    SHARED_STEP,
    FitWindows,
    bootstrap,
    fit,
    is_separable,
    least_squares,
)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(4, 40))
def test_least_squares_agrees_with_scipy(seed, terms, windows):
    rng = np.random.default_rng(seed)
    systems, targets = rng.normal(size=(5, windows, terms)), rng.normal(size=(5, windows))

    found = least_squares(systems, targets)

    expected = [nnls(system, target)[0] for system, target in zip(systems, targets, strict=True)]
    assert found == pytest.approx(np.array(expected), abs=1e-9)


def test_fit_finds_the_joules_of_each_term():
    """Prefilled tokens cost 0.01 J, steps 2 J, and context nothing: noise must not make it
    negative.
    """
    rng = np.random.default_rng(1)
    terms = rng.uniform(0, [5_000, 4e6, 150, 3_000], (60, 4))
    joules = 0.01 * terms[:, 0] + 2.0 * terms[:, 2] + rng.normal(0, 0.1, 60)

    found = fit(FitWindows(terms, joules), SHARED_STEP)

    assert found == pytest.approx([0.01, 0.0, 2.0, 0.0], rel=0.01, abs=1e-7)
    assert (found >= 0).all()


def test_a_term_without_load_has_no_joules():
    terms = np.column_stack([np.zeros(30), np.zeros(30), np.arange(30.0), np.arange(30.0)])

    found = fit(FitWindows(terms, 3.0 * np.arange(30.0)), SHARED_STEP)

    assert found == pytest.approx([0.0, 0.0, 3.0, 0.0])


def test_fewer_windows_than_terms_are_fitted():
    found = fit(FitWindows(np.array([[100.0, 0.0, 10.0, 0.0]]), np.array([20.0])), SHARED_STEP)

    assert 100 * found[0] + 10 * found[2] == pytest.approx(20.0)


def test_bootstrap_scatters_like_the_fit():
    """The standard error of a mean slope is known: 1 W of noise over 100 windows of equal load
    1.
    """
    rng = np.random.default_rng(2)
    terms = np.column_stack([np.ones(100), np.zeros(100), np.zeros(100), np.zeros(100)])

    draws = bootstrap(FitWindows(terms, 50 + rng.normal(0, 1.0, 100)), SHARED_STEP, rng, 400)

    assert draws.shape == (400, 4)
    assert draws[:, 0].std() == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize(("prefill_j", "separable"), [(300.0, True), (0.0, False)])
def test_a_phase_without_energy_is_not_separable(prefill_j, separable):
    """Its half-width is 0, too, so the energy per token would be 0 J without an error."""
    windows = FitWindows(np.random.default_rng(1).uniform(0, 1, (60, 4)), np.ones(60))

    assert is_separable(windows, (prefill_j, 1_000.0), (prefill_j / 10, 100.0)) is separable

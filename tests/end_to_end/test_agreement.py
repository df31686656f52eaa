"""Definition of agreement between ledger, servers and true value."""

from __future__ import annotations

import pytest

from tests.end_to_end.agreement import ReportedEnergy, RunComparison, too_many_outside
from tests.end_to_end.cluster_table import table


def comparison(joules, *, prometheus=None, duration_s=20.0, half_j=5.0, unseen_s=0.0, trouble=()):
    """Return the comparison of a run of 10,000 J; Prometheus has the ledger's figure by default."""
    ledger = ReportedEnergy(joules, half_j, unseen_s)
    stored = ReportedEnergy(joules if prometheus is None else prometheus, half_j, unseen_s)
    energies = {"ledger": ledger, "Prometheus": stored, "VictoriaMetrics": ledger}
    return RunComparison("train-1", 1, 2, duration_s, 10_000.0, energies, trouble)


@pytest.mark.parametrize("joules", [9_951.0, 10_000.0, 10_049.0])
def test_agreement_long_run_tolerates_half_a_percent(joules):
    assert list(comparison(joules).problems()) == []
    assert comparison(joules).agrees


@pytest.mark.parametrize("joules", [9_949.0, 10_051.0])
def test_agreement_long_run_beyond_tolerance_is_a_problem_per_source(joules):
    result = comparison(joules)

    assert len(list(result.problems())) == 3
    assert not result.agrees
    assert table([result]).splitlines()[-1].endswith("OFF")


def test_agreement_short_run_uses_its_interval():
    assert comparison(10_004.0, duration_s=9.9).agrees
    assert comparison(10_006.0, duration_s=9.9).is_outside
    assert not comparison(10_006.0, duration_s=10.0).is_outside


def test_agreement_short_run_slightly_outside_its_interval_passes():
    assert not list(comparison(10_009.0, duration_s=9.9).problems())
    assert len(list(comparison(10_011.0, duration_s=9.9).problems())) == 3


def test_agreement_of_many_short_runs_allows_chance_misses_only():
    """Use the binomial tail: P(more than 13 of 100) is 0.0005 at 5 % each, P(more than 12)
    0.0015.
    """
    inside, outside = comparison(10_000.0, duration_s=5.0), comparison(10_006.0, duration_s=5.0)

    assert not too_many_outside([outside] * 13 + [inside] * 87)
    assert too_many_outside([outside] * 14 + [inside] * 86)


def test_agreement_server_differing_from_the_ledger_is_a_problem():
    result = list(comparison(10_000.0, prometheus=10_000.1).problems())

    assert result == ["Prometheus reports 10000.1 J, the ledger 10000.0 J"]


def test_agreement_run_missing_on_a_server_is_a_problem():
    energies = {
        "ledger": ReportedEnergy(10_000.0),
        "Prometheus": ReportedEnergy(None, notes=("no run 'train-1'",)),
    }
    result = RunComparison("train-1", 1, 1, 20.0, 10_000.0, energies)

    assert list(result.problems()) == ["Prometheus has no such run: no run 'train-1'"]
    assert not result.agrees


def test_agreement_missing_energy_is_bounded_by_the_unseen_time():
    assert not list(
        comparison(8_000.0, unseen_s=3.0).problems()
    )  # 3 s × 700 W = 2,100 J, and 50 J of tolerance
    assert len(list(comparison(7_800.0, unseen_s=3.0).problems())) == 3


def test_agreement_unseen_time_does_not_excuse_excess_energy():
    assert len(list(comparison(10_100.0, unseen_s=3.0).problems())) == 3


def test_agreement_window_contradicted_by_calls_is_a_problem():
    assert list(
        comparison(10_000.0, trouble=("its recorded start is -2.0 s from the call",)).problems()
    ) == ["its recorded start is -2.0 s from the call"]

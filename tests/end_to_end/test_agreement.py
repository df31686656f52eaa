"""What the proof calls agreement, and what it does not let pass."""

from __future__ import annotations

import pytest

from tests.end_to_end.agreement import Compared, Told, too_many_outside
from tests.end_to_end.cluster_table import table


def compared(joules, *, prometheus=None, duration_s=20.0, half_j=5.0, unseen_s=0.0, trouble=()):
    """A run that drew 10,000 J; Prometheus has what the ledger has unless told otherwise."""
    ledger = Told(joules, half_j, unseen_s)
    stored = Told(joules if prometheus is None else prometheus, half_j, unseen_s)
    told = {"ledger": ledger, "Prometheus": stored, "VictoriaMetrics": ledger}
    return Compared("train-1", 1, 2, duration_s, 10_000.0, told, trouble)


@pytest.mark.parametrize("joules", [9_951.0, 10_000.0, 10_049.0])
def test_a_long_run_may_be_half_a_percent_off(joules):
    assert list(compared(joules).problems()) == []
    assert compared(joules).agrees


@pytest.mark.parametrize("joules", [9_949.0, 10_051.0])
def test_a_long_run_that_is_further_off_is_told_for_each_place(joules):
    found = compared(joules)

    assert len(list(found.problems())) == 3
    assert not found.agrees
    assert table([found]).splitlines()[-1].endswith("OFF")


def test_a_short_run_is_held_to_its_own_interval():
    assert compared(10_004.0, duration_s=9.9).agrees
    assert compared(10_006.0, duration_s=9.9).is_outside
    assert not compared(10_006.0, duration_s=10.0).is_outside


def test_one_short_run_may_lie_outside_of_an_interval_of_95_percent_but_not_far():
    assert not list(compared(10_009.0, duration_s=9.9).problems())
    assert len(list(compared(10_011.0, duration_s=9.9).problems())) == 3


def test_of_a_hundred_short_runs_no_more_may_lie_outside_than_chance_explains():
    """P(more than 13 of 100) is 0.0005 at 5 % each, P(more than 12) 0.0015."""
    inside, outside = compared(10_000.0, duration_s=5.0), compared(10_006.0, duration_s=5.0)

    assert not too_many_outside([outside] * 13 + [inside] * 87)
    assert too_many_outside([outside] * 14 + [inside] * 86)


def test_a_server_that_tells_another_figure_than_the_ledger_is_wrong_even_within_the_tolerance():
    found = list(compared(10_000.0, prometheus=10_000.1).problems())

    assert found == ["Prometheus tells 10000.1 J, the ledger 10000.0 J"]


def test_a_run_that_a_server_does_not_know_is_no_agreement():
    told = {"ledger": Told(10_000.0), "Prometheus": Told(None, notes=("no run 'train-1'",))}
    found = Compared("train-1", 1, 1, 20.0, 10_000.0, told)

    assert list(found.problems()) == ["Prometheus does not know it: no run 'train-1'"]
    assert not found.agrees


def test_what_is_missing_may_be_no_more_than_a_gpu_can_draw_in_the_time_that_is_declared():
    assert not list(compared(8_000.0, unseen_s=3.0).problems())  # 3 s × 700 W = 2,100 J, and 50 J of tolerance
    assert len(list(compared(7_800.0, unseen_s=3.0).problems())) == 3


def test_unseen_time_is_no_excuse_for_energy_that_was_never_drawn():
    assert len(list(compared(10_100.0, unseen_s=3.0).problems())) == 3


def test_a_window_that_the_calls_contradict_is_a_problem_of_its_own():
    assert list(compared(10_000.0, trouble=("its begin is told -2.0 s from the call",)).problems()) == [
        "its begin is told -2.0 s from the call"
    ]

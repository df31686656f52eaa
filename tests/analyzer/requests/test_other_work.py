"""Note on GPUs that work while no request is in progress."""

import numpy as np
import pytest

from wattline.contract import metrics as m
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.requests.other_work import other_work_note, working_runs
from wattline_exporter.requests.division.spans import EnergySlots, RequestSpans

IDLE_W, BUSY_W = 100.0, 700.0
EDGES_S = np.arange(0.0, 61.0)
FROM_S, TO_S = 20.0, 40.0


def spans():
    """Return ten requests of 2 s each, from 20 to 40 s."""
    begun_s = FROM_S + 2.0 * np.arange(10)
    return RequestSpans(
        begun_s, begun_s + 0.1, begun_s + 2.0, np.full(10, 100.0), np.zeros(10), np.full(10, 50.0)
    )


def slots(quiet_w, lag_s=0.0, *, idle_known=True):
    """Return a minute of energy, with `quiet_w` outside of the requests, which the meter shows
    `lag_s` late.
    """
    fine_s = (np.arange(6_000) + 0.5) / 100
    busy = (fine_s >= FROM_S + lag_s) & (fine_s < TO_S + lag_s)
    joules = np.where(busy, BUSY_W, quiet_w).reshape(60, 100).sum(axis=1) / 100
    return EnergySlots(EDGES_S, joules, IDLE_W, idle_known=idle_known)


@pytest.mark.parametrize("lag_s", [0.0, 0.4])
def test_other_work_idle_gpus_between_requests_give_no_note(lag_s):
    assert other_work_note(spans(), slots(IDLE_W, lag_s)) == ""


@pytest.mark.parametrize("quiet_w", [IDLE_W + 0.1, 1.05 * IDLE_W])
def test_other_work_within_the_error_of_the_idle_power_gives_no_note(quiet_w):
    idle = EnergySlots(EDGES_S, np.full(60, quiet_w), IDLE_W)

    assert other_work_note(spans(), idle) == ""


def test_other_work_of_busy_gpus_is_noted_with_its_power():
    assert "draw 600 W above idle while no request is in progress" in other_work_note(
        spans(), slots(BUSY_W)
    )


def test_other_work_is_unknown_with_an_assumed_idle_power():
    assert other_work_note(spans(), slots(BUSY_W, idle_known=False)) == ""


def test_other_work_is_unknown_if_requests_are_always_in_progress():
    whole = RequestSpans(*(np.array([value]) for value in (0.0, 0.1, 60.0, 100.0, 0.0, 50.0)))
    assert other_work_note(whole, slots(BUSY_W)).startswith(
        "too few samples are without a request: energy of work that"
    )


def test_other_work_is_unknown_if_each_sample_has_a_request_in_a_part():
    begun_s = np.arange(60) + 0.25
    half = RequestSpans(
        begun_s, begun_s + 0.1, begun_s + 0.5, np.full(60, 100.0), np.zeros(60), np.full(60, 50.0)
    )
    assert "in progress for 50 % of the time of their samples" in other_work_note(
        half, slots(BUSY_W)
    )
    assert other_work_note(half, EnergySlots(EDGES_S, np.full(60, IDLE_W), IDLE_W)) == "", (
        "all samples are at the idle power"
    )


class AttributedSource:
    """Source with two samples of the attributed energy of runs on a GPU."""

    def __init__(self, **joules):
        self.joules = joules

    def fetch(self, metrics, matchers, _start_s, _end_s):
        assert metrics == (m.RUN_ATTRIBUTED_ENERGY,)
        values = self.joules.get(matchers["run_id"])
        labels = {"__name__": m.RUN_ATTRIBUTED_ENERGY.name, **matchers}
        return table_of(
            [] if values is None else [(labels, np.arange(float(len(values))), np.array(values))]
        )


@pytest.mark.parametrize(
    ("joules", "working"),
    [
        ({"server": (5.0, 9.0), "user": (4.0, 4.0), "training": (1.0, 2.0)}, {"training"}),
        ({"server": (0.0, 0.0), "training": (0.0, 2.0)}, {"training"}),
        ({"server": (0.0, 5.0), "training": (2.0,)}, {"training"}),
        ({}, {"user", "training"}),
    ],
    ids=["outer run", "outer run without series", "one sample", "no attributed energies"],
)
def test_runs_that_are_attributed_nothing_do_no_work_of_their_own(joules, working):
    source = AttributedSource(**joules)

    assert (
        working_runs(source, {"user", "training"}, "server", [("", "GPU-0")], (0.0, 10.0))
        == working
    )

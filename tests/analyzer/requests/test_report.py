"""Figures of all requests of a run."""

from types import SimpleNamespace

import numpy as np
import pytest

from wattline_analyzer.requests.report import RequestEnergyReport


def report(**energies):
    """Return a report of requests without idle energy."""
    joules = np.array([1.0, 2.0, 6.0])
    none = np.zeros(3)
    known = {
        "measured_j": 12.0,
        "unassigned_j": 3.0,
        "idle_j": 0.0,
        "idle_half_j": 0.0,
        "total_half_j": 0.3,
        "half_j": np.array([0.1, 0.5, 9.0]),
        "divided": SimpleNamespace(prefill_j=joules, decode_j=none, idle_j=none),
    }
    return RequestEnergyReport(
        "r", None, SimpleNamespace(**known | energies), [], [], True, [], measured_half_j=0.4
    )


@pytest.mark.parametrize(("idle_j", "share"), [(0.0, None), (3.0, 0.25)])
def test_idle_share_of_an_assumed_idle_power_of_0_w_is_not_known(idle_j, share):
    found = report(idle_j=idle_j, idle_half_j=0.6).idle_share

    assert (found and found.value) == share
    assert found is None or found.half_width == pytest.approx(0.05)


def test_median_is_between_those_of_the_ends_of_the_intervals():
    """The intervals are 0.9 to 1.1, 1.5 to 2.5 and 0 to 15 J: the medians of their ends are 0.9 and
    2.5 J.
    """
    found = report().median

    assert (found.value, found.half_width) == pytest.approx((2.0, 1.1))


def test_rest_has_the_errors_of_the_gpus_and_of_the_requests():
    found = report()

    assert (found.assigned.value, found.assigned.half_width) == pytest.approx((9.0, 0.3))
    assert (found.rest.value, found.rest.half_width) == pytest.approx((3.0, 0.5))

"""Intervals between the energy samples of a GPU."""

import numpy as np
import pytest

from wattline_analyzer.core.samples import Samples
from wattline_analyzer.waste.intervals import ENERGY, EVENT, UNATTRIBUTED, intervals


def energies(*pairs):
    """Return the start, end and energy of the intervals of a counter."""
    found = intervals({ENERGY: Samples(*np.array(pairs, dtype=np.float64).T)})
    return list(
        zip(found.start_s.tolist(), found.end_s.tolist(), found.energy_j.tolist(), strict=True)
    )


def test_intervals_have_the_energy_between_their_samples():
    assert energies((0, 100), (15, 1_600), (30, 3_100)) == [(0, 15, 1_500), (15, 30, 1_500)]


def test_intervals_with_a_restart_are_left_out():
    rows = energies((0, 9_000), (15, 10_500), (30, 700), (45, 2_200))

    assert rows == [(0, 15, 1_500), (30, 45, 1_500)]


def test_intervals_with_a_late_sample_count_its_energy_once():
    """9,900 J at 30 s is older than 10,500 J at 15 s: 3,000 J in the 30 s until 45 s."""
    rows = energies((0, 9_000), (15, 10_500), (30, 9_900), (45, 13_500), (60, 15_000))

    assert rows == [(0, 15, 1_500), (15, 45, 3_000), (45, 60, 1_500)]


def test_intervals_with_a_restart_between_their_samples_are_left_out():
    """The counter restarts at 17 s and is above its earlier value again at 30 s."""
    rows = energies((0, 0), (15, 300), (17, 20), (30, 4_500), (45, 6_000))

    assert rows == [(0, 15, 300), (30, 45, 1_500)]


def test_other_counters_are_unknown_where_they_restarted():
    event = f"{EVENT}sw_power_cap"
    t_s = np.array([0.0, 15.0, 30.0, 45.0])
    found = intervals(
        {
            ENERGY: Samples(t_s, 100 * t_s),
            event: Samples(t_s, np.array([50.0, 60.0, 4.0, 9.0])),
            UNATTRIBUTED: Samples(
                np.array([0.0, 15.0, 17.0, 30.0, 45.0]),
                np.array([0.0, 300.0, 20.0, 900.0, 1_000.0]),
            ),
        }
    )
    assert found.event_s[event].tolist() == [10.0, pytest.approx(np.nan, nan_ok=True), 5.0]
    assert found.unattributed_j.tolist() == [300.0, pytest.approx(np.nan, nan_ok=True), 100.0]

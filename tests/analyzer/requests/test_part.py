"""Energies of a part of a server's requests."""

import numpy as np
import pytest

from wattline_analyzer.requests.part import MeasuredPart, part_of_requests
from wattline_exporter.requests.division.division import (
    DividedEnergy,
    RequestEnergies,
)
from wattline_exporter.requests.division.totals import EnergyPart

MEASURED = MeasuredPart((0.0, 10.0), 40.0, 5.0)


def energies():
    """Return three requests of 10, 20 and 30 J in two groups, and 20 J of idle energy ± 2 J."""
    return RequestEnergies(
        DividedEnergy(np.array([2.0, 4.0, 6.0]), np.array([8.0, 16.0, 24.0]), np.zeros(3)),
        half_j=np.array([1.0, 2.0, 3.0]),
        group_half_j=np.array([1.5, 0.5, 3.0]),
        total_half_j=6.0,
        unassigned_j=10.0,
        measured_j=90.0,
        idle_j=20.0,
        idle_half_j=2.0,
        prefill=EnergyPart(12.0, 1.2),
        decode=EnergyPart(48.0, 2.4),
        context_token=None,
        joules_of=np.zeros(4),
        other_half_j=3.0,
        idle_known=np.array([True, False, True]),
    )


def test_part_of_requests_has_half_widths_of_its_groups():
    """The own requests are the first two, 30 of 60 J: 1.5 + 0.5 J; a half of the 3 J by other
    work; 5 of 20 J are idle.
    """
    own = np.array([True, True, False])

    part = part_of_requests(energies(), own, 2, MEASURED)

    assert part.total_half_j == 2.0
    assert part.half_j.tolist() == [1.0, 2.0]
    assert part.group_half_j.tolist() == [1.5, 0.5]
    assert part.idle_half_j == 0.5
    assert part.other_half_j == 1.5
    assert part.idle_known.tolist() == [True, False]
    assert part.unassigned_j == pytest.approx(10.0)
    assert part.prefill == EnergyPart(6.0, pytest.approx(0.6))


def test_part_without_requests_has_exactly_no_energy():
    part = part_of_requests(energies(), np.zeros(3, dtype=bool), 0, MEASURED)

    assert part.total_half_j == 0.0
    assert part.unassigned_j == 40.0
    assert part.prefill == EnergyPart(0.0, 0.0)

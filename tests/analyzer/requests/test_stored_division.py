"""Energy that an exporter divided: slots, half-widths of groups, and energies of the phases."""

import numpy as np
import pytest

from tests.analyzer.requests.exporter_files import energy_rows
from wattline_analyzer.requests.stored_division import DividedSeconds, stored_request_energies
from wattline_analyzer.requests.stored_energies import StoredEnergies
from wattline_analyzer.requests.table import RequestTable
from wattline_exporter.requests.division.spans import EnergySlots, RequestSpans
from wattline_exporter.requests.division.totals import DivisionTotals

SECONDS = [(10.0, 11.0, 300.0, 100.0, 1), (11.0, 12.0, 200.0, 80.0, 1), (15.0, 16.0, 50.0, 50.0, 1)]


def test_energy_that_was_not_divided_is_in_the_gaps():
    """The run has 1,000 J from 8 to 17 s, of which 550 J are divided: 450 J are in 6 s."""
    slots, gaps_s = DividedSeconds.of(SECONDS, []).slots((8.0, 17.0), 1_000.0)

    assert slots.edges_s.tolist() == [8, 10, 11, 12, 15, 16, 17]
    assert slots.joules == pytest.approx([150.0, 300.0, 200.0, 225.0, 50.0, 75.0])
    assert slots.idle_j == pytest.approx([0.0, 100.0, 80.0, 0.0, 50.0, 0.0])
    assert slots.idle_known
    assert gaps_s.tolist() == [[8, 10], [12, 15], [16, 17]]


def test_energy_of_an_unknown_part_of_a_gpu_is_left_out():
    slots, gaps_s = DividedSeconds.of(SECONDS, []).slots((10.5, 15.0), None)

    assert slots.edges_s.tolist() == [10.5, 11, 12, 15]
    assert slots.joules.tolist() == [150.0, 200.0, 0.0]
    assert gaps_s.tolist() == [[12, 15]]


def test_seconds_have_the_whole_energy_of_a_run_without_gaps():
    """The last divided second goes on for half a second after the end of the run."""
    slots, gaps_s = DividedSeconds.of(SECONDS[:2], []).slots((10.0, 11.5), 404.0)

    assert slots.joules == pytest.approx([303.0, 101.0])
    assert len(gaps_s) == 0


def test_assumed_idle_power_of_a_second_is_assumed_for_all():
    seconds = [SECONDS[0], (*SECONDS[1][:4], 0)]

    assert not DividedSeconds.of(seconds, []).slots((10.0, 12.0), None)[0].idle_known


def stored(rows, totals, groups, slots=None):
    count = len(rows)
    spans = RequestSpans(*(np.ones(count) for _ in range(6)))
    energies = StoredEnergies(rows, np.arange(count, dtype=np.int32))
    table = RequestTable(
        [str(k) for k in range(count)],
        [{}],
        np.zeros(count, dtype=np.int32),
        spans,
        energies=energies,
    )
    slots = slots or EnergySlots(np.array([0.0, 1.0]), np.array([400.0]), 0.0)
    return stored_request_energies(table, totals, slots, np.array(groups, dtype=np.int32))


def test_errors_of_a_group_are_added_with_their_signs():
    """Of 2 J each in one direction, two requests have 4 J and three 6 J. 2 % of 100 J, what a group
    has too much and the others lack, are 2 J; all together lack nothing.
    """
    found = stored(energy_rows([100.0] * 3, [0.0] * 3), None, [0, 0, 1])

    assert found.half_j == pytest.approx([1.96 * np.sqrt(8.0)] * 3, rel=1e-4)
    assert found.group_half_j == pytest.approx(
        [1.96 * np.hypot(4.0, 2.0), 1.96 * np.hypot(2.0, 2.0)], rel=1e-4
    )
    assert found.total_half_j == pytest.approx(1.96 * 6.0, rel=1e-4)
    assert found.unassigned_j == pytest.approx(100.0)


def test_errors_of_opposite_signs_cancel_in_a_group():
    rows = energy_rows([100.0] * 2, [0.0] * 2)
    rows["error_1_j"] = 2.0, -2.0

    assert stored(rows, None, [0, 0]).total_half_j == 0.0


def test_energies_of_the_phases_have_the_relative_errors_of_the_division():
    """The division has 60 J of prefill and 600 J of decode with errors of 3 J: 5 % of the energy of
    prefill is 3 J more for each. Half of both is that of the requests.
    """
    rows = energy_rows([330.0], [0.0])
    rows["prefill_j"], rows["decode_j"], rows["is_separable"] = 30.0, 300.0, True
    totals = DivisionTotals(
        [60.0, 600.0], [[3.0, 0.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0]], 0.0, 6.6, None, 0.0
    )

    found = stored(rows, totals, [0])

    random_j = 1.96 * np.sqrt(18.0)
    assert (found.prefill.joules, found.decode.joules) == (30.0, 300.0)
    assert found.prefill.half_j == pytest.approx((random_j + 0.01 * 60.0) / 2, rel=1e-4)
    assert found.decode.half_j == pytest.approx((random_j + 0.01 * 600.0) / 2, rel=1e-4)
    rows["is_separable"] = False
    assert stored(rows, totals, [0]).prefill is None


def test_totals_of_several_divisions_are_added_and_the_latest_model_counts():
    first = DivisionTotals([1.0, 2.0], [[1.0] * 4, [2.0] * 4], 3.0, 4.0, [1.0] * 4, 0.5)
    later = DivisionTotals([10.0, 20.0], [[-1.0] * 4, [1.0] * 4], 30.0, 40.0, [2.0] * 4, 0.25)

    found = DividedSeconds.of([], [first.to_json(), later.to_json()]).totals

    assert found == DivisionTotals(
        [11.0, 22.0], [[0.0] * 4, [3.0] * 4], 33.0, 44.0, [2.0] * 4, 0.25
    )


def test_damaged_totals_are_refused():
    with pytest.raises(ValueError, match="the sums of a division are damaged"):
        DividedSeconds.of([], ['{"guessed": 1}'])

"""Fault trials: division into nodes, rows of the table, and the recorded results."""

import random
from collections import Counter

import pytest

from tests.fault_trials import kills, table
from tests.fault_trials.__main__ import FAILING, nodes
from tests.fault_trials.cases import CASES
from tests.fault_trials.trial import Outcome
from tests.laboratory.results import stored_rows


def test_nodes_try_each_fault_equally_often():
    found = list(nodes(list(CASES.values()), 3, random.Random(1)))

    assert Counter(case.name for node in found for case in node) == dict.fromkeys(CASES, 3)
    assert max(map(len, found)) == FAILING
    assert all(len(node) == 1 for node in found if any(case.has_own_node for case in node))


def outcome(energy_j, half_j, *notes, case="lost"):
    return Outcome(case, 1_000.0, energy_j, half_j, energy_j, half_j, notes)


def test_table_counts_energies_outside_and_without_a_note():
    outcomes = [
        outcome(900.0, 150.0),
        outcome(800.0, 150.0, "last read 2 s before the end"),
        outcome(1_151.0, 150.0),
        outcome(None, 0.0),
        outcome(1_001.0, 2.0, case=""),
    ]
    row, healthy = table.summarize(outcomes)

    assert (
        row["runs"],
        row["outside"],
        row["silent"],
        row["declared"],
        row["without_energy"],
    ) == (4, 2, 1, 1, 1)
    assert row["worst"] == pytest.approx(-0.2)
    assert row["half_width"] == pytest.approx(0.15)
    assert healthy["outside"] == 0
    assert "2 outside of their interval, 1 of them without a note" in table.text([row, healthy])


def test_recorded_fault_trials_have_each_kind_and_none_outside():
    *rows, healthy = stored_rows(table.RESULTS)

    assert {row["case"] for row in rows} == set(CASES)
    assert sum(row["runs"] for row in rows) >= 500
    assert not any(row["outside"] for row in rows)
    assert healthy["outside"] == healthy["declared"] == 0


def test_recorded_kills_have_lost_nothing():
    rows = stored_rows(kills.RESULTS)

    assert [row["kind"] for row in rows] == list(kills.KINDS)
    for row in rows:
        assert {row[key] for key in kills.KEPT} == {0}, row

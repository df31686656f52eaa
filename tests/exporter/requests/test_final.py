"""Packed energies of final requests."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from wattline.contract.requests.stored import REQUESTS_SCHEMA
from wattline_exporter.requests.division.energy_rows import ENERGY_TYPE, unpack_energies
from wattline_exporter.requests.final import (
    DAMAGED,
    FINAL_TYPE,
    STOPPED,
    FinalEnergy,
    _log_damage,
    latest_rows,
    save_energies,
    saved_energy,
)
from wattline_exporter.requests.views import final_view


def batch(number, count, *, first_j=0.0):
    """Return rows of a batch, with 1 J more of prefill for each further request."""
    rows = np.zeros(count, FINAL_TYPE)
    rows["batch"], rows["position"] = number, np.arange(count)
    rows["prefill_j"] = first_j + np.arange(count)
    return rows


@pytest.fixture
def state():
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(REQUESTS_SCHEMA)
        yield connection


def test_saved_energies_have_all_values_of_their_requests(state):
    rows = batch(7, 3)
    rows["decode_j"] = [2.5, 0.0, 1e5 / 3]
    rows["error_2_j"], rows["limit_j"], rows["most_j"] = 0.25, [1.0, 0.0, 2.0], 1e6
    rows["loss"], rows["is_shared"] = [0, STOPPED, 0], [False, True, False]
    rows["missing_s"], rows["mean_s"] = [0.0, 0.0, 3.5], [0.0, 0.0, 6.5]
    rows["is_separable"], rows["is_idle_known"] = [True, False, False], [False, False, True]
    rows["is_of_role"] = [False, False, True]

    save_energies(state, [rows])

    (body,) = state.execute("SELECT body FROM final_energy").fetchone()
    found = unpack_energies(body)
    assert {name: found[name].tolist() for name in ENERGY_TYPE.names} == {
        name: rows[name].tolist() for name in ENERGY_TYPE.names
    }
    answers = [saved_energy(state, 7, position) for position in range(3)]
    assert answers == [FinalEnergy.of(rows[k : k + 1]) for k in range(3)]


def test_half_width_of_a_saved_energy_is_that_of_its_parts(state):
    """Of 100 J, 60 J are idle energy of a known idle power: 5 %, 3 J. The model has 2 J and 1 J, the
    scaling 4 J2, the meter 3 J2, and 2 % of 40 J are 0.8 J.
    """
    rows = batch(1, 1, first_j=30.0)
    rows["decode_j"], rows["idle_j"], rows["is_idle_known"] = 10.0, 60.0, True
    rows["error_1_j"], rows["error_4_j"] = 2.0, -1.0
    rows["scatter_j2"], rows["meter_j2"] = 4.0, 3.0
    rows["limit_j"], rows["most_j"] = 1.5, 200.0

    save_energies(state, [rows])

    found = saved_energy(state, 1, 0)
    random_j = 1.96 * np.sqrt(4.0 + 1.0 + 4.0 + 3.0 + 0.64)
    assert found.total_j == 100.0
    assert found.half_j == pytest.approx(np.hypot(random_j, 3.0) + 1.5, rel=1e-4)


def test_answer_without_a_known_idle_power_says_how_to_measure_it():
    """The assumed idle energy of 60 J is in the total, and in the half-width as a limit."""
    rows = batch(1, 1, first_j=40.0)
    rows["idle_j"], rows["limit_j"], rows["most_j"] = 60.0, 60.0, 200.0

    view = final_view("r-1", "server", FinalEnergy.of(rows))

    assert view.energy_joules == 100.0
    assert view.energy_uncertainty_joules == pytest.approx(60.0 + 1.96 * 0.8, rel=1e-4)
    assert view.idle_energy_joules is None
    assert view.notes[1].startswith("idle power unknown: the half-width includes an assumed idle")
    assert "without load for ten seconds, once" in view.notes[1]


def test_half_width_of_a_role_has_its_own_floor(state):
    """A server of one phase has errors of 4 % instead of 2 %: 1.96 times 4 J of 100 J."""
    rows = batch(1, 2, first_j=100.0)
    rows["prefill_j"], rows["most_j"], rows["is_of_role"] = 100.0, 200.0, [False, True]

    save_energies(state, [rows])

    found = [saved_energy(state, 1, position).half_j for position in range(2)]
    assert found == pytest.approx([1.96 * 2.0, 1.96 * 4.0], rel=1e-4)


def test_saved_energies_of_mixed_rows_are_those_of_their_positions(state):
    """Requests without duration are final before the others of their batch."""
    rows = np.concatenate([batch(2, 4), batch(1, 3, first_j=100.0)])[[5, 1, 0, 6, 3, 2, 4]]

    save_energies(state, [rows])

    assert [saved_energy(state, 1, position).total_j for position in range(3)] == [
        100.0,
        101.0,
        102.0,
    ]
    assert [saved_energy(state, 2, position).total_j for position in range(4)] == [
        0.0,
        1.0,
        2.0,
        3.0,
    ]


def test_energies_of_a_deleted_batch_are_deleted(state):
    values = "(id, run_id, first_end, last_end, requests, body) VALUES (?, 'a', 0, 0, 1, '')"
    state.executemany(f"INSERT INTO batch {values}", [(1,), (2,)])
    save_energies(state, [batch(1, 1), batch(2, 1)])

    state.execute("DELETE FROM batch WHERE id = 1")

    assert state.execute("SELECT batch_id FROM final_energy").fetchall() == [(2,)]


def test_saved_energies_of_a_repeated_batch_are_the_latest(state):
    """The numbers of batches start again from 1 after the file is deleted."""
    save_energies(state, [batch(1, 2, first_j=10.0)])
    save_energies(state, [batch(1, 2, first_j=20.0)])

    assert saved_energy(state, 1, 1).total_j == 21.0


def test_unsaved_energies_are_bounded():
    parts = [batch(number, 20_000) for number in range(4)]

    assert [part["batch"][0] for part in latest_rows(parts)] == [1, 2, 3]


def damage(state, damaged):
    body = bytearray(state.execute("SELECT body FROM final_energy").fetchone()[0])
    body[damaged] = bytes([body[damaged][0] ^ 1])
    state.execute("UPDATE final_energy SET body = ?", (bytes(body),))


@pytest.mark.parametrize("damaged", [slice(0, 1), slice(8, 9), slice(3, 4)])
def test_saved_energies_that_are_damaged_are_lost(state, caplog, damaged):
    save_energies(state, [batch(1, 2)])
    damage(state, damaged)
    _log_damage.cache_clear()

    energies = [saved_energy(state, 1, position) for position in range(2)]

    assert [(each.total_j, each.loss) for each in energies] == [(0.0, DAMAGED)] * 2
    text = (
        "cannot read saved energies of requests: batch 1 is damaged: its checksum is wrong; these "
        "requests have no energy; check the disk"
    )
    assert caplog.messages == [text]
    assert final_view("r-1", "server", energies[1]).model_dump(
        include={"state", "energy_joules", "notes"}
    ) == {
        "state": "final",
        "energy_joules": None,
        "notes": [
            (
                "no energy: the file with the energy of this request is damaged; check the disk "
                "that holds --state.path"
            )
        ],
    }


def test_saved_energies_of_a_shorter_batch_are_lost(state):
    save_energies(state, [batch(1, 2)])

    assert saved_energy(state, 1, 2).loss == DAMAGED

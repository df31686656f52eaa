"""Packed energies of final requests."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from wattline.contract.requests.stored import REQUESTS_SCHEMA
from wattline_exporter.requests.final import (
    DAMAGED,
    FINAL_TYPE,
    MAX_FINAL,
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
    rows["prefill_j"], rows["half_j"] = first_j + np.arange(count), 0.5
    return rows


@pytest.fixture
def state():
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(REQUESTS_SCHEMA)
        yield connection


def test_saved_energies_have_all_values_of_their_requests(state):
    energies = [
        FinalEnergy(
            1.5, 2.5, 0.25, 0.125, 0.0, is_separable=True, is_shared=False, mean_s=0.0, loss=0
        ),
        FinalEnergy(
            0.0, 0.0, 0.0, 0.0, 0.0, is_separable=False, is_shared=True, mean_s=0.0, loss=STOPPED
        ),
        FinalEnergy(
            8.0, 0.0, 4.0, 2.0, 3.5, is_separable=False, is_shared=False, mean_s=6.5, loss=0
        ),
    ]
    rows = batch(7, 3)
    for row, energy in zip(rows, energies, strict=True):
        for name in FinalEnergy.__dataclass_fields__:
            row[name] = getattr(energy, name)

    save_energies(state, [rows])

    assert [saved_energy(state, 7, position) for position in range(3)] == energies


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


def test_saved_energies_are_those_of_the_latest_requests(state):
    size = 1_000
    for number in range(1, MAX_FINAL // size + 4):
        save_energies(state, [batch(number, size)])

    assert state.execute("SELECT count(*), min(batch_id) FROM final_energy").fetchone() == (
        MAX_FINAL // size,
        4,
    )
    assert saved_energy(state, 3, 0) is None
    assert saved_energy(state, 4, 999).total_j == 999.0


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


@pytest.mark.parametrize("damaged", [slice(0, 1), slice(8, 9), slice(3, None)])
def test_saved_energies_that_are_damaged_are_lost(state, caplog, damaged):
    save_energies(state, [batch(1, 2)])
    damage(state, damaged)
    _log_damage.cache_clear()

    energies = [saved_energy(state, 1, position) for position in range(2)]

    assert [(each.total_j, each.loss) for each in energies] == [(0.0, DAMAGED)] * 2
    text = (
        "cannot read saved energies of requests: batch 1 is damaged: its checksum is wrong; "
        "use analyzer requests"
    )
    assert caplog.messages == [f"{text} for these requests"]
    assert final_view("r-1", "server", energies[1]).model_dump(
        include={"state", "energy_joules", "notes"}
    ) == {
        "state": "final",
        "energy_joules": None,
        "notes": [
            (
                "no energy: the file with the energy of this request is damaged; use analyzer "
                "requests "
                "--run-id server"
            )
        ],
    }


def test_saved_energies_of_a_shorter_batch_are_lost(state):
    save_energies(state, [batch(1, 2)])

    assert saved_energy(state, 1, 2).loss == DAMAGED

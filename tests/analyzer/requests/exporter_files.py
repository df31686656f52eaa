"""Requests in the state folder of an exporter, with final energies and the divided seconds."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np

from tests.workloads.wattline.contract.packed_requests import packed
from wattline.contract.history import REQUESTS_FILE
from wattline.contract.requests.stored import REQUESTS_SCHEMA
from wattline_exporter.requests.division.energy_rows import ENERGY_TYPE, pack_energies
from wattline_exporter.requests.division.totals import DivisionTotals

ERROR_J = 2.0
"""Standard error of the model for each request, in the same direction."""


def energy_rows(joules, idle_j):
    """Return rows of ENERGY_TYPE of requests that decode, with ERROR_J each."""
    rows = np.zeros(len(joules), ENERGY_TYPE)
    rows["idle_j"] = idle_j
    rows["decode_j"] = np.subtract(joules, idle_j)
    rows["error_1_j"] = ERROR_J
    rows["most_j"] = 1e6
    rows["is_idle_known"] = True
    return rows


def write_divided(folder, run_id, requests, rows, seconds):
    """Add a batch of requests with rows of ENERGY_TYPE, None if they are not final.

    `seconds` are begin, end, joules and idle joules.
    """
    ends = [one.ended_at for one in requests]
    decode_j = 0.0 if rows is None else float(rows["decode_j"].sum())
    totals = DivisionTotals([0.0, decode_j], [[0.0] * 4] * 2, 0.0, 0.0, None, 0.0)
    with closing(sqlite3.connect(folder / REQUESTS_FILE)) as connection, connection:
        connection.executescript(REQUESTS_SCHEMA)
        batch = connection.execute(
            "INSERT INTO batch (run_id, first_end, last_end, requests, body) VALUES (?, ?, ?, ?, "
            "?)",
            (run_id, min(ends), max(ends), len(requests), packed(requests)),
        ).lastrowid
        if rows is not None:
            energies = batch, pack_energies(rows)
            connection.execute("INSERT INTO final_energy VALUES (?, ?)", energies)
        connection.executemany(
            "INSERT INTO divided_slot VALUES (?, ?, ?, ?, ?, 1)",
            [(run_id, *each) for each in seconds],
        )
        connection.execute(
            "INSERT INTO division VALUES (?, ?, ?)", (run_id, min(ends), totals.to_json())
        )

"""Table of the runs that a source knows."""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.model.catalog import ListedRun
from analyzer.output import units
from analyzer.output.table import Cell, Column, Table, duration_cell, energy_cell, text_cell

_COLUMNS = (
    Column("Run", "run_id", text=True, whole=True),
    Column("Workload", "workload", text=True),
    Column("State", "state", text=True),
    Column("Started (local)", "started_at_unix_seconds", text=True, whole=True),
    Column("Duration", "duration_seconds"),
    Column("GPU energy", "gpu_energy_joules", "uncertainty"),
    Column("Labels", "labels", text=True),
)


def run_table(runs: Sequence[ListedRun]) -> Table:
    """Return one row per run; ids are never wrapped, so that they can be copied."""
    largest_j = units.largest(run.gpu_energy for run in runs)
    rows = [
        [
            *(text_cell(text) for text in (run.run_id, run.workload, run.state)),
            Cell(units.moment(run.started_at_s)[:19], run.started_at_s, "s"),
            duration_cell(run.duration_s),
            energy_cell(run.gpu_energy, largest_j),
            Cell(" ".join(f"{name}={text}" for name, text in sorted(run.labels.items())), dict(run.labels)),
        ]
        for run in runs
    ]
    return Table("", _COLUMNS, rows)

"""`analyzer runs`: list of the runs at a source."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from wattline.command_line import with_option_groups
from wattline_analyzer.core.options import (
    DEFAULT_SINCE,
    ConnectionOptions,
    FormatOption,
)
from wattline_analyzer.core.printing import OutputFormat, print_message, table_limit
from wattline_analyzer.core.window_options import window_options

if TYPE_CHECKING:
    from wattline_analyzer.core.run_catalog import RunEntry
    from wattline_analyzer.core.tables import Table

COMMAND = {
    "name": "runs",
    "help": "List the runs at the source.",
    "group": "Report",
}

_SHARED = (
    "GPU energy: of the whole GPUs. Add up Attributed, the share of each run: the rest is of other "
    "users, or not "
    "attributed to a run."
)


@with_option_groups
def runs_command(
    *,
    form: FormatOption = OutputFormat.TABLE,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Time to search for runs, up to now: 12h, 30d, or since 2026-11-01.",
        ),
    ] = DEFAULT_SINCE,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of runs to list, newest first (default: 50 as a table, else all).",
        ),
    ] = None,
    connection: ConnectionOptions,
) -> None:
    """List the runs at the source, newest first."""
    now_s = time.time()
    since_s = now_s - window_options(since, "now", now_s)[0]
    limit = limit or table_limit(form)
    from wattline_analyzer.core.printing import print_output
    from wattline_analyzer.core.sources.open import missing_data_remedy
    from wattline_analyzer.core.tables import CommandOutput
    from wattline_analyzer.runs.pages import list_runs

    with connection.open() as source:
        listed = list_runs(source, since_s, limit)
        runs = listed.entries
        if listed.is_cut:
            print_message(f"showing the newest {len(runs)} runs; --limit N lists more")
        if not runs:
            print_message(
                f"no run at {source.name} {_since_text(since)}; start one with workloads run, see "
                "--since, or "
                f"{missing_data_remedy(source)}"
            )
            if form is OutputFormat.TABLE:
                return
        table = _run_table(runs)
    rows = table.records()
    hidden = set() if any(row["simulated"] for row in rows) else {"simulated"}
    shared = any(run.shared for run in runs)
    hidden |= set() if shared else {"attributed_gpu_energy_joules"}
    keys = [column.key for column in table.columns if column.key not in hidden]
    shown = table.select(table.title, keys, [_SHARED] if shared else [])
    print_output(CommandOutput([shown], rows, rows, table.keys()), form)


def _since_text(since: str) -> str:
    return (
        f"in the last {since}" if since[-1:].isalpha() and since[-1:] != "Z" else f"since {since}"
    )


def _run_table(runs: Sequence[RunEntry]) -> Table:
    """Return one row per run; ids are never wrapped, so that they can be copied."""
    from wattline_analyzer.core import units
    from wattline_analyzer.core.tables import (
        Cell,
        Column,
        Table,
        duration_cell,
        energy_cell,
        joules_cell,
        text_cell,
    )

    columns = (
        Column("Run", "run_id", text=True, whole=True),
        Column("Workload", "workload", text=True),
        Column("State", "state", text=True),
        Column("Hardware", "simulated", text=True),
        Column("Started (local)", "started_at_unix_seconds", text=True, whole=True),
        Column("Duration", "duration_seconds"),
        Column("GPU energy", "gpu_energy_joules", "uncertainty"),
        Column("Attributed", "attributed_gpu_energy_joules"),
        Column("Labels", "labels", text=True),
    )
    largest_j = units.largest(run.gpu_energy for run in runs)
    rows = [
        [
            *(text_cell(text) for text in (run.run_id, run.workload, run.state)),
            Cell("SIMULATED" if run.simulated else "", run.simulated),
            Cell(units.moment(run.started_at_s)[:19], run.started_at_s, "s"),
            duration_cell(run.duration_s),
            energy_cell(run.gpu_energy, largest_j),
            joules_cell(run.attributed_gpu_j, largest_j),
            Cell(
                " ".join(f"{name}={text}" for name, text in sorted(run.labels.items())),
                dict(run.labels),
            ),
        ]
        for run in runs
    ]
    return Table("", columns, rows)

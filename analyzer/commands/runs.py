"""`analyzer runs`: list of the runs at a source."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.messages import print_message
from analyzer.commands.options.common import DEFAULT_SINCE, FormatOption, SinceOption, duration_option
from analyzer.commands.options.connection import ConnectionOptions
from analyzer.output.format import OutputFormat
from exporter.contract.command_line import with_option_groups

if TYPE_CHECKING:
    from analyzer.model.catalog import ListedRun
    from analyzer.sources.base import SampleSource


@with_option_groups
def runs_command(
    *,
    form: FormatOption = OutputFormat.TABLE,
    since: SinceOption = DEFAULT_SINCE,
    limit: Annotated[int, typer.Option(min=1, help="Number of runs to list, newest first.")] = 50,
    connection: ConnectionOptions,
) -> None:
    """List the runs at the source, newest first."""
    since_s = duration_option(since)
    from analyzer.output.sections.runs import run_table
    from analyzer.output.view import CommandOutput, print_output

    with connection.open() as source:
        table = run_table(_list_runs(source, since_s, limit))
    print_output(CommandOutput([table], table.records(), table.records()), form)


def _list_runs(source: SampleSource, since_s: float, limit: int) -> list[ListedRun]:
    from analyzer.model.catalog import listed
    from analyzer.sources.runs import load

    now_s = time.time()
    scrapes = load.last_scrapes(source, now_s - since_s, now_s + load.AHEAD_S)
    newest = list(dict.fromkeys(row.labels["run_id"] for row in reversed(scrapes)))
    if len(newest) > limit:
        print_message(f"showing the newest {limit} of {len(newest)} runs; --limit {len(newest)} lists all")
    timing = load.scrape_timing(source, now_s, set())
    found = []
    for run_id in newest[:limit]:
        rows = [row for row in scrapes if row.labels["run_id"] == run_id]
        fresh = timing is not None and max(row.t for row in rows) >= now_s - max(3 * timing.interval_s, load.PATIENCE_S)
        found.append(listed(load.fetch_ledger(source, run_id, rows), run_id, fresh=fresh))
    return found

"""`analyzer watch`: live table of nodes and runs in the terminal."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from wattline.command_line import with_option_groups
from wattline_analyzer.core.options import ConnectionOptions, FormatOption, duration_option
from wattline_analyzer.core.printing import OutputFormat, exit_with_error

if TYPE_CHECKING:
    from rich.console import RenderableType

    from wattline_analyzer.core.sources.base import SampleSource
    from wattline_analyzer.watch.model import WatchState

COMMAND = {
    "name": "watch",
    "help": "Show a live table of nodes and runs.",
    "group": "Report",
}

_SHORTEST_S = 0.2
_LATE_S = 5.0


@dataclass(frozen=True, slots=True)
class WatchUpdate:
    """State at one poll; `problem` is why the source could not be read, `interval_s` the time until
    the next poll.
    """

    found: WatchState
    source: str
    problem: str
    interval_s: float


@with_option_groups
def watch_command(
    *,
    run_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="ID of a run: show only it and its GPUs, until it ends."),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(metavar="INSTANCE", help="Node to show; required if there are many."),
    ] = None,
    interval: Annotated[
        str, typer.Option(metavar="TIME", help="Time between polls: 2s, 1m.")
    ] = "2s",
    once: Annotated[
        bool,
        typer.Option(
            help="Poll once; the default for a table if stdout is not a terminal.",
            show_default=False,
        ),
    ] = False,
    form: FormatOption = OutputFormat.TABLE,
    connection: ConnectionOptions,
) -> None:
    """Show a live table of nodes and runs, or print one line per poll with --format json. Ctrl-C
    ends it.
    """
    interval_s = max(duration_option(interval, "--interval", unit="s"), _SHORTEST_S)
    with connection.open() as source:
        updates = _poll(source, node, run_id, 0.0 if once else interval_s)
        try:
            if form is OutputFormat.TABLE:
                _show_table(updates, live=not once and sys.stdout.isatty())
            else:
                _print_lines(updates, form)
        except KeyboardInterrupt:  # the usual way to leave
            return


def _poll(
    source: SampleSource, node: str | None, run_id: str | None, interval_s: float
) -> Iterator[WatchUpdate]:
    """Yield updates; only one if `interval_s` is 0. Raises FetchError if the first poll fails."""
    from wattline_analyzer.core.runs.scrapes import PATIENCE_S
    from wattline_analyzer.core.sources.base import FetchError
    from wattline_analyzer.watch.source import fetch_latest, find_nodes
    from wattline_analyzer.watch.watch import live_state, lost_state

    instances = find_nodes(source, time.time(), node, run_id)
    found: WatchState | None = None
    start_j: dict[tuple[str, str], float] = {}
    run_seen_s = -math.inf
    while True:
        next_s = time.monotonic() + interval_s
        problem = ""
        now_s = time.time()
        try:
            latest = live_state(
                fetch_latest(source, instances, now_s), now_s, start_j, found, run_id
            )
        except FetchError as error:
            if found is None:
                raise
            latest = lost_state(found, time.time())
            problem = str(error)
        run_missing = bool(run_id) and not latest.runs and not problem
        if run_missing and now_s - run_seen_s > PATIENCE_S:
            raise FetchError(
                f"run {run_id!r} has ended",
                f"see: analyzer report --run-id {run_id} --source {source.name}",
            )
        if not run_missing:  # a newest scrape that is still being stored may lack the run
            found = latest
            run_seen_s = now_s
            start_j = found.counters_j | start_j
            yield WatchUpdate(found, source.name, problem, interval_s)
            if interval_s == 0 or (
                run_id and found.runs and all(_has_ended(run.state) for run in found.runs)
            ):
                return
        time.sleep(max(next_s - time.monotonic(), 0))


def _has_ended(state: str) -> bool:
    return state not in ("running", "stale")


def _show_table(updates: Iterator[WatchUpdate], *, live: bool) -> None:
    """Draw on the terminal's alternate screen, which can be resized; the last table stays after the
    end.
    """
    from rich.live import Live

    from wattline_analyzer.core.terminal import console as terminal_console
    from wattline_analyzer.watch.output import live_table
    from wattline_analyzer.watch.watch import lost_state

    console = terminal_console()
    update = next(updates)

    def table() -> RenderableType:
        """Return the table; a source that answers late counts as lost."""
        late_s = time.time() - update.found.at_s
        if late_s > _LATE_S + update.interval_s:
            return live_table(
                lost_state(update.found, time.time()), update.source, console.width, "no answer yet"
            )
        return live_table(update.found, update.source, console.width, update.problem)

    if not live:
        console.print(table())
        return
    try:
        with Live(get_renderable=table, console=console, screen=True, refresh_per_second=4):
            for update in updates:  # noqa: B007  # drawn by the thread of Live
                pass
    finally:
        console.print(table())


def _print_lines(updates: Iterator[WatchUpdate], form: OutputFormat) -> None:
    from wattline_analyzer.core.documents import as_csv, as_yaml
    from wattline_analyzer.watch.output import live_document, live_gpu_record

    first = True
    for update in updates:
        found = update.found
        name = update.source
        if update.problem:
            exit_with_error(update.problem)
        if form is OutputFormat.CSV:
            rows = [
                {"t_unix_seconds": found.at_s, **_flat(live_gpu_record(gpu))} for gpu in found.gpus
            ]
            text = as_csv(rows)
            print(text if first else text.partition("\n")[2], flush=True)
        elif form is OutputFormat.JSON:
            print(
                json.dumps(live_document(found, name), ensure_ascii=False, allow_nan=False),
                flush=True,
            )
        else:
            print(f"---\n{as_yaml(live_document(found, name))}", flush=True)
        first = False


def _flat(row: dict[str, object]) -> dict[str, object]:
    return {
        name: " ".join(value) if isinstance(value, list) else value for name, value in row.items()
    }

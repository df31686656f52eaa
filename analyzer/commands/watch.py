"""`analyzer watch`: what nodes and runs do now, in the terminal, until Ctrl-C."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.options.connection import Connection, FormatOption, fail, reads, seconds
from analyzer.output.form import Format

if TYPE_CHECKING:
    from rich.console import RenderableType

    from analyzer.live.samples import Glance
    from analyzer.sources.base import Source

_SHORTEST_S = 0.2
_LATE_S = 5.0


@dataclass(frozen=True, slots=True)
class Look:
    """`trouble` is why the source could not be read; `interval_s` is how long until the next look."""

    found: Glance
    source: str
    trouble: str
    interval_s: float


@reads
def watch(
    connection: Connection,
    run_id: Annotated[str | None, typer.Option(help="Only this run and its GPUs, until it ends.")] = None,
    node: Annotated[
        str | None, typer.Option(metavar="INSTANCE", help="Only this node; of many one must be named.")
    ] = None,
    interval: Annotated[str, typer.Option(help="Between two looks: 2s, 1m.")] = "2s",
    once: Annotated[bool, typer.Option(help="One look; a table that is not for a terminal is one, too.")] = False,
    form: FormatOption = Format.TABLE,
) -> None:
    """The live table of nodes and runs; with --format json a line a look. Ctrl-C ends it."""
    interval_s = max(seconds(interval, "--interval"), _SHORTEST_S)
    with connection.open() as chosen:
        looks = _looks(chosen, node, run_id, 0.0 if once else interval_s)
        try:
            if form is Format.TABLE:
                _table(looks, live=not once and sys.stdout.isatty())
            else:
                _lines(looks, form)
        except KeyboardInterrupt:  # how one leaves it
            return


def _looks(source: Source, node: str | None, run_id: str | None, interval_s: float) -> Iterator[Look]:
    """One after the other; one only where `interval_s` is 0. Raises SourceError where the first one fails."""
    from analyzer.live.watch import glance, lost
    from analyzer.sources import live
    from analyzer.sources.error import SourceError

    instances = live.nodes(source, time.time(), node, run_id)
    found: Glance | None = None
    began_j: dict[tuple[str, str], float] = {}
    while True:
        next_s, trouble = time.monotonic() + interval_s, ""
        now_s = time.time()
        try:
            found = glance(live.latest(source, instances, now_s), now_s, began_j, found, run_id)
            began_j = found.counters_j | began_j
        except SourceError as error:
            if found is None:
                raise
            found, trouble = lost(found, time.time()), str(error)
        if run_id and not found.runs and not trouble:
            raise SourceError(f"run {run_id!r} has ended", f"see: analyzer report --run-id {run_id}")
        yield Look(found, source.name, trouble, interval_s)
        if interval_s == 0 or (run_id and found.runs and all(_over(run.state) for run in found.runs)):
            return
        time.sleep(max(next_s - time.monotonic(), 0))


def _over(state: str) -> bool:
    return state not in ("running", "stale")


def _table(looks: Iterator[Look], *, live: bool) -> None:
    """On the terminal's other screen, so that it can be resized; what was last there stays behind."""
    from rich.live import Live

    from analyzer.live.watch import lost
    from analyzer.output.live import live_table
    from analyzer.output.sections import run as tables

    console = tables.console()
    look = next(looks)

    def shown() -> RenderableType:
        """A source that takes its time is not live either."""
        late_s = time.time() - look.found.at_s
        if late_s > _LATE_S + look.interval_s:
            return live_table(lost(look.found, time.time()), look.source, console.width, "no answer yet")
        return live_table(look.found, look.source, console.width, look.trouble)

    if not live:
        console.print(shown())
        return
    try:
        with Live(get_renderable=shown, console=console, screen=True, refresh_per_second=4):
            for look in looks:  # noqa: B007  # shown by the Live's own thread
                pass
    finally:
        console.print(shown())


def _lines(looks: Iterator[Look], form: Format) -> None:
    from analyzer.output import documents as formats
    from analyzer.output import live_formats

    heads = True
    for look in looks:
        found, name = look.found, look.source
        if look.trouble:
            fail(look.trouble)
        if form is Format.CSV:
            rows = [{"t_unix_seconds": found.at_s, **_flat(live_formats.gpu_row(gpu))} for gpu in found.gpus]
            text = formats.rows_csv(rows)
            print(text if heads else text.partition("\n")[2], flush=True)
        elif form is Format.JSON:
            print(json.dumps(live_formats.document(found, name), ensure_ascii=False, allow_nan=False), flush=True)
        else:
            print(f"---\n{formats.as_yaml(live_formats.document(found, name))}", flush=True)
        heads = False


def _flat(row: dict[str, object]) -> dict[str, object]:
    return {name: " ".join(value) if isinstance(value, list) else value for name, value in row.items()}

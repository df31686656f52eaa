"""The analyzer's command line. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, cast

import typer

from analyzer import (
    compare_cli,
    export_cli,
    import_cli,
    recommend_cli,
    report_cli,
    tenants_cli,
    variability_cli,
)
from analyzer.options import (
    DEFAULT_SINCE,
    Connection,
    FormatOption,
    SinceOption,
    reads,
    say,
    seconds,
)
from analyzer.report.form import Format

if TYPE_CHECKING:
    from analyzer.catalog import ListedRun
    from analyzer.sources.source import Source

app = typer.Typer(
    help="Joules, joules per unit of work, and grams of CO2 of runs, from raw samples.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# typer brings a click of its own in newer versions, so click's classes are reached through typer.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415  # as long to import as all the rest

        print(f"analyzer {version('wattline')}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


@app.callback()
def _commands(_version: VersionOption = False) -> None:
    """A group, whatever the number of commands."""


@app.command()
@reads
def runs(  # typer makes each argument an option
    connection: Connection,
    form: FormatOption = Format.TABLE,
    since: SinceOption = DEFAULT_SINCE,
    limit: Annotated[int, typer.Option(min=1, help="How many to list, the newest first.")] = 50,
) -> None:
    """The runs that the source knows, the newest first."""
    since_s = seconds(since)
    from analyzer.report import formats, tables  # noqa: PLC0415  # pandas takes half a second

    with connection.open() as chosen:
        listed = _listed(chosen, since_s, limit)
    if form is Format.TABLE:
        tables.console(plain_columns=tables.UNLIMITED_COLUMNS).print(tables.runs_table(listed))
    elif form is Format.CSV:
        print(formats.runs_csv(listed))
    else:
        write = formats.as_json if form is Format.JSON else formats.as_yaml
        print(write([formats.listed(run) for run in listed]))


def _listed(source: Source, since_s: float, limit: int) -> list[ListedRun]:
    from analyzer.catalog import listed  # noqa: PLC0415
    from analyzer.sources import runs as stored  # noqa: PLC0415

    now_s = time.time()
    seen = stored.sightings(source, now_s - since_s, now_s + stored.AHEAD_S)
    newest = list(dict.fromkeys(row.labels["run_id"] for row in reversed(seen)))
    if len(newest) > limit:
        say(f"the newest {limit} of {len(newest)} runs; --limit {len(newest)} lists all")
    beat = stored.pulse(source, now_s, set())
    found = []
    for run_id in newest[:limit]:
        rows = [row for row in seen if row.labels["run_id"] == run_id]
        fresh = beat is not None and max(row.t for row in rows) >= now_s - max(3 * beat.interval_s, stored.PATIENCE_S)
        found.append(listed(stored.ledger(source, run_id, rows), run_id, fresh=fresh))
    return found


app.command()(report_cli.report)
app.command("import")(import_cli.import_)
app.command()(export_cli.export)
app.command()(recommend_cli.recommend)
app.command()(compare_cli.compare)
app.command()(variability_cli.variability)
app.command()(tenants_cli.tenants)


def main() -> None:
    """Exit 0 good, 1 the data is bad or not there, 2 usage; errors are one line."""
    from analyzer.sources.error import SourceError  # noqa: PLC0415

    try:
        code = app(prog_name="analyzer", standalone_mode=False) or 0
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        tried = context.command_path if context else "analyzer"
        text = " ".join(error.format_message().split())
        print(f"{tried}: {text} (see {tried} --help)" if sys.argv[1:] else error.format_message(), file=sys.stderr)
        code = 2
    except SourceError as error:
        say(str(error))
        code = 1
    except BrokenPipeError:  # what reads our stdout has seen enough; nothing may be flushed into it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code)

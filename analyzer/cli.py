"""The analyzer's command line. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from analyzer import compare_cli, export_cli, import_cli, recommend_cli, tenants_cli, variability_cli
from analyzer.options import (
    DEFAULT_SINCE,
    BasicAuthOption,
    BearerOption,
    CaOption,
    FormatOption,
    HeaderOption,
    SinceOption,
    SourceOption,
    fail,
    say,
    seconds,
    source_of,
)
from analyzer.report.form import Format

if TYPE_CHECKING:
    from analyzer.catalog import ListedRun
    from analyzer.measured import Report
    from analyzer.series import RunFrames
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
def runs(  # typer makes each argument an option
    source: SourceOption = None,
    form: FormatOption = Format.TABLE,
    since: SinceOption = DEFAULT_SINCE,
    limit: Annotated[int, typer.Option(min=1, help="How many to list, the newest first.")] = 50,
    basic_auth: BasicAuthOption = None,
    bearer_token_file: BearerOption = None,
    header: HeaderOption = None,
    ca_file: CaOption = None,
) -> None:
    """The runs that the source knows, the newest first."""
    since_s = seconds(since)
    from analyzer.report import formats, tables  # noqa: PLC0415  # pandas takes half a second

    with closing(source_of(source, basic_auth, bearer_token_file, header, ca_file)) as chosen:
        listed = _listed(chosen, since_s, limit)
    if form is Format.TABLE:
        tables.console(plain_columns=tables.UNLIMITED_COLUMNS).print(tables.runs_table(listed))
    elif form is Format.CSV:
        print(formats.runs_csv(listed))
    else:
        write = formats.as_json if form is Format.JSON else formats.as_yaml
        print(write([formats.listed(run) for run in listed]))


@app.command()
def report(  # typer makes each argument an option
    run_id: Annotated[str, typer.Option(help="The run; see: analyzer runs.")],
    source: SourceOption = None,
    form: FormatOption = Format.TABLE,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.html, report.png, timeseries.csv and metrics.yml.")
    ] = None,
    carbon: Annotated[
        float | None, typer.Option(min=0, metavar="G/KWH", help="Add emissions at this intensity, gCO2eq/kWh.")
    ] = None,
    since: SinceOption = DEFAULT_SINCE,
    basic_auth: BasicAuthOption = None,
    bearer_token_file: BearerOption = None,
    header: HeaderOption = None,
    ca_file: CaOption = None,
) -> None:
    """One run: a table on stdout, and files in the folder of --out."""
    since_s = seconds(since)
    from analyzer import assess  # noqa: PLC0415  # pandas takes half a second
    from analyzer.report import formats, tables  # noqa: PLC0415
    from analyzer.sources import runs as stored  # noqa: PLC0415

    with closing(source_of(source, basic_auth, bearer_token_file, header, ca_file)) as chosen:
        frames = stored.load(chosen, run_id, since_s, stored.Clock(time.time, time.sleep), say)
    try:
        measured = assess.assess(frames, carbon)
    except assess.NoEnergyError as error:
        fail(
            f"{error}: no process of it was seen on a GPU and no CPU could be read, or the node has neither, "
            "or it began seconds ago; "
            "name its GPUs (workloads run --gpus 0,1 or all), and see on the node: exporter check"
        )
    if form is Format.TABLE:
        tables.console().print(tables.report_table(measured))
    elif form is Format.CSV:
        print(formats.report_csv(measured))
    else:
        write = formats.as_json if form is Format.JSON else formats.as_yaml
        print(write(formats.document(measured)))
    if out is not None:
        _write_files(out, measured, frames)


def _write_files(folder: Path, measured: Report, frames: RunFrames) -> None:
    from analyzer.report import formats, html, plots, timeseries  # noqa: PLC0415  # matplotlib takes a second

    table = timeseries.timeseries(frames, measured)
    contents = {
        "report.html": html.page(measured, table).encode(),
        "report.png": plots.picture(measured, table),
        "timeseries.csv": table.to_csv(index=False).encode(),
        "metrics.yml": f"{formats.as_yaml(formats.document(measured))}\n".encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        fail(f"cannot write to {folder}: {error.strerror}; give --out a folder that you may write to")
    say(f"wrote {', '.join(str(folder / name) for name in contents)}")


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


app.command("import")(import_cli.import_)
app.command("recommend")(recommend_cli.recommend)
app.command("export")(export_cli.export)


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

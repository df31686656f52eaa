"""The analyzer's command line. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from analyzer.commands.best_start import best_start
from analyzer.commands.compare import compare
from analyzer.commands.export import export
from analyzer.commands.fleet import fleet
from analyzer.commands.import_ import import_
from analyzer.commands.options.connection import (
    DEFAULT_SINCE,
    Connection,
    FormatOption,
    SinceOption,
    reads,
    say,
    seconds,
)
from analyzer.commands.recommend import recommend
from analyzer.commands.report import report
from analyzer.commands.tenants import tenants
from analyzer.commands.variability import variability
from analyzer.commands.watch import watch
from analyzer.output.form import Format
from exporter.contract.installation import install

if TYPE_CHECKING:
    from analyzer.model.catalog import ListedRun
    from analyzer.sources.base import Source

app = typer.Typer(
    help="Joules, joules per unit of work, and grams of CO2 of runs, from raw samples.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_EXTRA = ("jinja2", "matplotlib", "pandas", "plotly", "requests", "rich", "scipy", "yaml")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# typer brings a click of its own in newer versions, so click's classes are reached through typer.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

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
    from analyzer.output import documents as formats
    from analyzer.output.sections import run as tables

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
    from analyzer.model.catalog import listed
    from analyzer.sources.runs import runs as stored

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


app.command()(report)
app.command("import")(import_)
app.command()(export)
app.command()(recommend)
app.command()(compare)
app.command()(variability)
app.command()(tenants)
app.command("best-start")(best_start)
app.command()(fleet)
app.command()(watch)


def _leave_pyarrow_out() -> None:
    """Where it is installed pandas loads it: 66 MB and a fifth more of start-up, and only Parquet needs it."""
    if "pandas" not in sys.modules and "export" not in sys.argv:
        sys.modules.setdefault("pyarrow", None)  # type: ignore[arg-type]  # None: import it and there is none


def _write_any_character() -> None:
    """Where the locale is ASCII, UTF-8, as Python itself does for C (PEP 540); what an encoding lacks becomes a `?`."""
    if sys.stdout is None:  # closed by the shell: >&-
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # open until the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        is_ascii = codecs.lookup(sys.stdout.encoding).name == "ascii"
        sys.stdout.reconfigure(encoding="utf-8" if is_ascii else None, errors="replace")


def _write_no_more() -> None:
    """Nothing may be flushed at exit into what takes nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Exit 0 good, 1 the data is bad or not there, 2 usage; errors are one line."""
    _leave_pyarrow_out()
    _write_any_character()
    from analyzer.sources.error import SourceError

    try:
        code = app(prog_name="analyzer", standalone_mode=False) or 0
        sys.stdout.flush()
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        tried = context.command_path if context else "analyzer"
        text = " ".join(error.format_message().split()).replace("Value error, ", "")
        print(f"{tried}: {text} (see {tried} --help)" if sys.argv[1:] else error.format_message(), file=sys.stderr)
        code = 2
    except SourceError as error:
        say(str(error))
        code = 1
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        say(f"{error.name} is not installed; {install('analyzer')}")
        code = 1
    except BrokenPipeError:  # what reads our stdout has seen enough
        _write_no_more()
        code = 1
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _write_no_more()
        say(f"cannot write: {error.strerror}; make room, or send the output elsewhere")
        code = 1
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code)

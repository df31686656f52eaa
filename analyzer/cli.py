"""Command line of the analyzer: its commands, exit codes and output streams."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from pathlib import Path
from typing import Annotated, cast

import typer
from typer.core import TyperCommand

from analyzer.commands.best_start import best_start_command
from analyzer.commands.compare import compare_command
from analyzer.commands.export import export_command
from analyzer.commands.fleet import fleet_command
from analyzer.commands.import_ import import_command
from analyzer.commands.printing import print_message
from analyzer.commands.recommend import recommend_command
from analyzer.commands.report import report_command
from analyzer.commands.runs import runs_command
from analyzer.commands.tenants import tenants_command
from analyzer.commands.variability import variability_command
from analyzer.commands.watch import watch_command
from exporter.contract.command_line import PlainHelp, install, usage_message, version_line

app = typer.Typer(
    help="Report energy, energy per unit of work and emissions of runs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_OPTIONAL_PACKAGES = ("jinja2", "matplotlib", "numpy", "plotly", "requests", "rich", "scipy", "yaml")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# newer versions of typer include their own click, so click's class is taken from typer
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])


class AnalyzerCommand(PlainHelp, TyperCommand):
    """Command of the analyzer."""


for _name, _command, _short_help in (
    ("runs", runs_command, "List the runs at the source."),
    ("report", report_command, "Report a run or a time range."),
    ("import", import_command, "Import power logs and results of other tools."),
    ("export", export_command, "Export the raw samples of a run."),
    ("recommend", recommend_command, "Recommend a power limit or clock from the runs of a sweep."),
    ("compare", compare_command, "Compare runs, or groups of runs."),
    ("variability", variability_command, "Show the differences between GPUs at the same work."),
    ("tenants", tenants_command, "Compare jobs that share a GPU with jobs that run alone."),
    ("best-start", best_start_command, "Find the start time with the lowest emissions."),
    ("fleet", fleet_command, "Sum energy and cost per token of all nodes by group."),
    ("watch", watch_command, "Show a live table of nodes and runs."),
):
    app.command(_name, cls=AnalyzerCommand, short_help=_short_help)(_command)


def _print_version(requested: bool) -> None:
    if requested:
        print(version_line("analyzer"))
        raise typer.Exit


@app.callback()
def _options_before_command(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Accept options before the command."""


def main() -> None:
    """Run a command. Exit code 0: success, 1: bad or missing data, 2: usage error, 130: interrupted."""
    _prepare_stdout()
    from analyzer.sources.base import FetchError

    try:
        code = app(prog_name="analyzer", standalone_mode=False) or 0
        sys.stdout.flush()
    except _UsageError as error:
        print(usage_message("analyzer", error, arguments=len(sys.argv) > 1), file=sys.stderr)
        code = 2
    except FetchError as error:
        print_message(str(error))
        code = 1
    except ModuleNotFoundError as error:
        if error.name not in _OPTIONAL_PACKAGES:
            raise
        print_message(f"{error.name} is not installed; {install('analyzer')}")
        code = 1
    except BrokenPipeError:  # the reader of stdout has closed it
        _discard_stdout()
        code = 1
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        _discard_stdout()
        print_message(f"cannot write the output: {error.strerror}; free disk space, or write it elsewhere")
        code = 1
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code)


def _prepare_stdout() -> None:
    """Use UTF-8 where the locale is ASCII, as Python does for C (PEP 540); write `?` for other missing characters."""
    if sys.stdout is None:  # closed by the shell: >&-
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # open until the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        is_ascii = codecs.lookup(sys.stdout.encoding).name == "ascii"
        sys.stdout.reconfigure(encoding="utf-8" if is_ascii else None, errors="replace")


def _discard_stdout() -> None:
    """Redirect stdout to the null device, so that the flush at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

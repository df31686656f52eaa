"""Command line of the analyzer: its commands, exit codes and output streams."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from wattline.command_line import PlainHelp, missing_package, print_usage_error, version_line
from wattline.commands import ListedCommand, analyzer_commands, commands_in_order
from wattline_analyzer.core.printing import print_message

_OPTIONAL_PACKAGES = (
    "jinja2",
    "matplotlib",
    "numpy",
    "plotly",
    "requests",
    "rich",
    "scipy",
    "yaml",
)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# newer versions of typer include their own click, so click's class is taken from typer
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])


class _PlainConversion:
    """Conversion of texts, defaults and valid choices; typer converts, or refuses, all other
    values.

    typer 0.29 loads pydantic to convert any value, even of an option that is not given: a fifth of
    a report's CPU time.
    """

    def __init__(self, option: Any) -> None:
        self._kind = option.type_descriptor.annotation
        self._typer_conversion: Callable[[], Any] = option.get_runtime_param

    def __call__(self) -> _PlainConversion:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is self._kind:
            return value
        if (
            isinstance(self._kind, type)
            and issubclass(self._kind, StrEnum)
            and value in list(self._kind)
        ):
            return self._kind(value)
        try:
            return self._typer_conversion().coerce(value, param=param, ctx=ctx)
        except typer.BadParameter as error:
            if "valid number" in str(error):
                text = f"expected a number with a point, such as 1.3, not {value!r}"
                raise typer.BadParameter(text, ctx, param) from error
            raise


class _PlainValues:
    """Mixin of a command whose options convert plain values without typer."""

    def get_params(self, context: Any) -> list[Any]:
        options: list[Any] = super().get_params(context)  # type: ignore[misc]  # of the command class
        for option in options:
            conversion = getattr(option, "get_runtime_param", None)  # absent before typer 0.29
            if conversion is not None and not isinstance(conversion, _PlainConversion):
                option.get_runtime_param = _PlainConversion(option)
        return options


class AnalyzerCommand(_PlainValues, PlainHelp, TyperCommand):
    """Command of the analyzer; one with --run-id takes the ID as an argument, too."""

    @property
    def _has_run_id(self) -> bool:
        return any("--run-id" in option.opts for option in self.params)

    def collect_usage_pieces(self, context: Any) -> list[str]:
        pieces = super().collect_usage_pieces(context)
        return [*pieces, "[RUN_ID]"] if self._has_run_id else pieces

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; the only one that belongs to no option is the ID of the run."""
        return super().parse_args(ctx, self._with_run_id(ctx, args) if self._has_run_id else args)

    def _with_run_id(self, ctx: Any, args: list[str]) -> list[str]:
        parser = self.make_parser(ctx)
        try:
            given, extra, _ = parser.parse_args(list(args))
        except _UsageError:
            return args  # it is raised again where all arguments are parsed
        if len(extra) > 1:
            runs = " ".join(extra)
            raise _UsageError(
                f"expected one run, not {runs}; compare runs with: analyzer compare {runs}", ctx
            )
        if not extra or given.get("run_id") is not None:
            return args
        for at, argument in enumerate(args):
            others = [*args[:at], *args[at + 1 :]]
            if argument == extra[0] and parser.parse_args(list(others))[:2] == (given, []):
                return ["--run-id", argument, *others]
        return args


class AnalyzerGroup(_PlainValues, TyperGroup):
    """All commands of the analyzer."""


_ORDER = (
    "runs",
    "report",
    "import",
    "export",
    "recommend",
    "compare",
    "gate",
    "variability",
    "tenants",
    "best-start",
    "usage",
    "requests",
    "waste",
    "watch",
    "mcp",
)
"""Order of the commands in the help. All others follow by name."""


def command_line() -> typer.Typer:
    """Return the command line with all commands, whose modules it loads."""
    commands = commands_in_order(analyzer_commands(), _ORDER)
    return _command_line({command: _function(command) for command in commands})


def _command_line_of(arguments: Sequence[str]) -> typer.Typer:
    """Return the command line with the command that is called; without one, the list of all."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    for command in analyzer_commands():
        if command.name in words[:1]:
            return _command_line({command: _function(command)})
    return _command_line(dict.fromkeys(commands_in_order(analyzer_commands(), _ORDER), _not_loaded))


def _command_line(functions: Mapping[ListedCommand, Callable[..., None]]) -> typer.Typer:
    app = typer.Typer(
        cls=AnalyzerGroup,
        help="Report energy, energy per unit of work and emissions of runs.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_accept_options_before_command)
    for command, function in functions.items():
        app.command(command.name, cls=AnalyzerCommand, short_help=command.help)(function)
    return app


def _function(command: ListedCommand) -> Callable[..., None]:
    function: Callable[..., None] = getattr(import_module(command.module), command.function)
    return function


def _not_loaded() -> None:
    """Take the place of a command in the help."""


def _print_version(requested: bool) -> None:
    if requested:
        print(version_line("analyzer"))
        raise typer.Exit


def _accept_options_before_command(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Accept options before the command."""


def main(program: str = "analyzer") -> None:
    """Run a command. Exit code 0: success, 1: bad or missing data, 2: usage error, 130:
    interrupted.
    """
    _prepare_stdout()
    from wattline_analyzer.core.sources.base import FetchError

    try:
        code = _command_line_of(sys.argv[1:])(prog_name=program, standalone_mode=False) or 0
        sys.stdout.flush()
    except _UsageError as error:
        print_usage_error(program, error, print_message)
        code = 2
    except FetchError as error:
        print_message(str(error))
        code = 1
    except ModuleNotFoundError as error:
        if error.name not in _OPTIONAL_PACKAGES:
            raise
        print_message(missing_package(error.name, "analyzer"))
        code = 1
    except BrokenPipeError:  # the reader of stdout has closed it
        _discard_stdout()
        code = 1
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        _discard_stdout()
        print_message(
            f"cannot write the output: {error.strerror}; free disk space, or write it elsewhere"
        )
        code = 1
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code)


def _prepare_stdout() -> None:
    """Use UTF-8 where the locale is ASCII, as Python does for C (PEP 540); write `?` for other
    missing characters.
    """
    if sys.stdout is None:  # closed by the shell: >&-
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # open until the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        is_ascii = codecs.lookup(sys.stdout.encoding).name == "ascii"
        sys.stdout.reconfigure(encoding="utf-8" if is_ascii else None, errors="replace")


def _discard_stdout() -> None:
    """Redirect stdout to the null device, so that the flush at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

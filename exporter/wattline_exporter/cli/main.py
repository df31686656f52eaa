"""Command line of the exporter: its commands, options and exit codes."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, cast

import typer
from typer.core import TyperCommand

from wattline.command_line import (
    PlainHelp,
    as_called,
    called_program,
    escaped_lines,
    missing_package,
    print_usage_error,
    version_line,
    with_option_groups,
)
from wattline_exporter.cli.sensor_options import Sensors, with_sensor_options
from wattline_exporter.cli.signals import exit_on_sigint, raise_on_sigint
from wattline_exporter.config.settings import LogFormat, LogLevel, Settings
from wattline_exporter.config.values import OperationError, UsageError
from wattline_exporter.sensors.carbon.options import (
    CarbonOptions,
    ProviderOption,
    TokenFileOption,
    UrlOption,
)

cli = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Energy, carbon and runs of this node, for Prometheus.",
)

# newer versions of typer bundle click, so its classes are reached through typer
_ClickUsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])
_EXTRAS = ("aiohttp", "prometheus_client", "psutil", "pynvml")


def _print_version(requested: bool) -> None:
    if requested:
        print(version_line("exporter"))
        raise typer.Exit


class ExporterCommand(PlainHelp, TyperCommand):
    """Command of the exporter."""


class CheckCommand(ExporterCommand):
    """Command that accepts the options of `serve`, and lists those with an effect."""

    unlisted = ("exit_when_idle",)


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
]


@cli.callback()
def _commands(_version: Version = False) -> None:
    """Options before a command."""


@cli.command(
    cls=ExporterCommand, short_help="Run the exporter: sample sensors, record runs, serve /metrics."
)
@with_sensor_options
@with_option_groups
def serve(
    settings: Settings,
    sensors: Sensors,
    carbon: CarbonOptions,
    log_level: Annotated[
        LogLevel,
        typer.Option("--log.level", metavar="|".join(LogLevel), help="Minimum level of logs."),
    ] = LogLevel.info,
    log_format: Annotated[
        LogFormat, typer.Option("--log.format", metavar="|".join(LogFormat), help="Format of logs.")
    ] = LogFormat.logfmt,
) -> None:
    """Run the exporter: sample sensors, record runs, serve /metrics and the run API."""
    settings.check_combinations()
    exit_on_sigint()  # until the daemon installs its own handler
    from wattline_exporter.cli.daemon import run_daemon

    asyncio.run(run_daemon(settings, sensors, carbon, log_level, log_format))


@cli.command(cls=CheckCommand, short_help="Read each source once, and print its state.")
@with_sensor_options
@with_option_groups
def check(
    settings: Settings,
    sensors: Sensors,
    carbon: CarbonOptions,
    idle_seconds: Annotated[
        float,
        typer.Option(
            "--idle-seconds",
            min=0.0,
            max=60.0,
            metavar="SECONDS",
            help="Duration of the idle power measurement without polling, and again with polling; "
            "0 skips it.",
        ),
    ] = 4.0,
    _log_level: Annotated[LogLevel, typer.Option("--log.level", hidden=True)] = LogLevel.info,
    _log_format: Annotated[LogFormat, typer.Option("--log.format", hidden=True)] = LogFormat.logfmt,
) -> None:
    """Read each source once, and print whether it works, or the cause and the remedy.

    It takes the options of serve. The exit code is 1 if no energy can be measured, or the exporter
    cannot start.
    """
    from wattline_exporter.cli.check import run_checks as run_check

    settings.check_combinations()
    raise_on_sigint()
    lines = asyncio.run(run_check(settings, sensors, carbon, idle_seconds))
    for line in lines:
        print(line.text)
    if not any(line.measures for line in lines) or any(line.fails for line in lines):
        raise typer.Exit(1)


@cli.command(cls=ExporterCommand)
def regions(
    provider: ProviderOption = "static",
    url: UrlOption = None,
    token_file: TokenFileOption = None,
) -> None:
    """List the values of --carbon.region, one per line."""
    from wattline_exporter.sensors.carbon.choice import list_regions

    raise_on_sigint()
    options = CarbonOptions(provider=provider, url=url, token_file=token_file)
    for line in asyncio.run(list_regions(options)):
        print(line)


def main(program: str = "exporter") -> None:
    """Run a command. The exit code is 1 or 78 for a failure and 2 for wrong usage, each with one
    line on stderr.
    """
    try:
        sys.exit(_run(program))
    except ModuleNotFoundError as error:
        if error.name in _EXTRAS:
            _print_error(missing_package(error.name, "exporter"))
            sys.exit(1)
        raise


def _run(program: str) -> int:
    try:
        return cli(prog_name=program, standalone_mode=False) or 0
    except _ClickUsageError as error:
        print_usage_error(program, error, _print_error)
        return 2
    except UsageError as error:
        _print_error(str(error))
        return 2
    except OperationError as error:
        _print_error(str(error))
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130


def _print_error(text: str) -> None:
    line = f"{called_program('exporter')}: {as_called(escaped_lines(text))}"
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

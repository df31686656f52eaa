"""The command line: options to a list of sources to a running daemon."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, cast

import typer

from exporter.cli.options import CarbonProvider, CarbonTokenFile, CarbonUrl, IdleSeconds, takes_settings
from exporter.cli.signals import clean_up_when_interrupted, end_quietly_when_interrupted
from exporter.contract.command_line import usage_message, version_line
from exporter.contract.installation import install
from exporter.settings import LogFormat, LogLevel, OperationError, Settings, UsageError, default_state_path

cli = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Energy, carbon and runs of this node, for Prometheus.",
)

# typer brings a click of its own in newer versions, so click's classes are reached through typer.
_ClickUsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])
_EXTRAS = ("aiohttp", "prometheus_client", "psutil", "pynvml")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version_line("exporter"))
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


@cli.callback()
def _commands(_version: Version = False) -> None:
    """Options that stand before a command."""


@cli.command()
@takes_settings
def serve(
    settings: Settings,
    log_level: Annotated[LogLevel, typer.Option("--log.level")] = LogLevel.info,
    log_format: Annotated[LogFormat, typer.Option("--log.format")] = LogFormat.logfmt,
) -> None:
    """Run the daemon: sample, keep the ledger of runs, serve /metrics and the run API."""
    end_quietly_when_interrupted()  # until the daemon has a handler of its own
    from exporter.wiring import serve as run_daemon

    asyncio.run(run_daemon(settings, log_level, log_format))


@cli.command()
@takes_settings
def check(
    settings: Settings,
    idle_seconds: IdleSeconds = 4.0,
    _log_level: Annotated[LogLevel, typer.Option("--log.level", hidden=True)] = LogLevel.info,
    _log_format: Annotated[LogFormat, typer.Option("--log.format", hidden=True)] = LogFormat.logfmt,
) -> None:
    """Read each source once: a line says that it works, or why not and what to type.

    It takes the options of serve. Exit code 1 where no energy can be measured.
    """
    from exporter.cli.check import check as run_check

    clean_up_when_interrupted()
    lines = asyncio.run(run_check(settings, idle_seconds))
    for line in lines:
        print(line.text)
    if not any(line.measures for line in lines):
        raise typer.Exit(1)


@cli.command()
def regions(
    carbon_provider: CarbonProvider = "static",
    carbon_url: CarbonUrl = None,
    carbon_token_file: CarbonTokenFile = None,
) -> None:
    """The regions that --carbon.region takes, a line each."""
    from exporter.cli.regions import list_provider_regions

    clean_up_when_interrupted()
    settings = Settings(
        state_path=default_state_path(),
        carbon_provider=carbon_provider,
        carbon_url=carbon_url,
        carbon_token_file=carbon_token_file,
    )
    for line in asyncio.run(list_provider_regions(settings)):
        print(line)


def main() -> None:
    """Exit code 0 good, 1 a fault, 2 usage; one line on stderr, never a traceback for what a user can mend."""
    try:
        sys.exit(_run())
    except ModuleNotFoundError as error:
        if error.name in _EXTRAS:
            print(f"exporter: {error.name} is not installed; {install('exporter')}", file=sys.stderr)
            sys.exit(1)
        raise


def _run() -> int:
    try:
        return cli(prog_name="exporter", standalone_mode=False) or 0
    except _ClickUsageError as error:
        _say(usage_message("exporter", error, arguments=len(sys.argv) > 1))
        return 2
    except UsageError as error:
        _say(f"exporter: {error}")
        return 2
    except OperationError as error:
        _say(f"exporter: {error}")
        return 1
    except (typer.Abort, KeyboardInterrupt):
        return 130


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

"""Options that several commands share, and the times that options hold."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattline_analyzer.core.printing import OutputFormat, print_message
from wattline_analyzer.core.times import (
    LocalTimeError,
    SystemZone,
    names_zone,
    parse_duration,
    parse_moment,
)

if TYPE_CHECKING:
    from wattline_analyzer.core.sources.base import Access, SampleSource

DEFAULT_SINCE = "30d"
NO_RUN_OR_RANGE = (
    "no run is named; give its ID, which analyzer runs lists, or --start and --end of a time range"
)
FormatOption = Annotated[
    OutputFormat,
    typer.Option(
        "--format", metavar="|".join(OutputFormat), help="Format of the output on stdout."
    ),
]
SinceOption = Annotated[
    str, typer.Option(metavar="TIME", help="Time to search for runs, up to now: 90m, 12h, 30d.")
]
WaitOption = Annotated[bool, typer.Option(help="Wait for a missing scrape.", show_default=False)]
UnitOption = Annotated[
    str | None,
    typer.Option(metavar="UNIT", help="Unit of work, e.g. steps (default: the primary unit)."),
]
CarbonOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=5_000,
        metavar="G/KWH",
        help="Constant carbon intensity in gCO2eq/kWh for the emissions.",
    ),
]


def duration_option(text: str, option: str = "--since", unit: str = "") -> float:
    """Return the seconds of an option's duration; `unit` is used if the text has none. Raises
    typer.BadParameter.
    """
    try:
        return parse_duration(text, unit)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def moment_option(text: str, option: str, now_s: float) -> float:
    """Return the Unix seconds of `now`, `-2h`, a date or a Unix time. Raises typer.BadParameter.

    A date without a zone is local time, which a message on stderr says. A local time that occurs
    twice or never is refused.
    """
    text = text.strip()
    if text == "now":
        return now_s
    if text.startswith("-"):
        return now_s - duration_option(text[1:], option)
    try:
        moment_s = parse_moment(text, SystemZone())
    except LocalTimeError as error:
        raise typer.BadParameter(f"{option}: {error}") from error
    except ValueError as error:
        raise typer.BadParameter(
            f"{option}: {error}; write 2026-11-20T10:15:00, with a zone as in "
            "2026-11-20T10:15:00Z, Unix seconds, -2h "
            "or now"
        ) from error
    if not names_zone(text):
        print_message(
            f"{option} names no time zone: using local time "
            f"({time.strftime('%z', time.localtime(moment_s))})"
        )
    return moment_s


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Address and credentials of a source as the user typed them; nothing is opened yet."""

    source: Annotated[
        str | None,
        typer.Option(
            envvar="WATTLINE_SOURCE",
            metavar="URL|PATH",
            help="Source of samples: http://prometheus:9090, VictoriaMetrics with its path, an "
            "exporter, or a history "
            "file or folder.",
        ),
    ] = None
    basic_auth: Annotated[
        str | None,
        typer.Option(
            envvar="WATTLINE_BASIC_AUTH",
            metavar="USER:PASSWORD-FILE",
            help="Credentials for basic authentication.",
        ),
    ] = None
    bearer_token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="WATTLINE_BEARER_TOKEN_FILE",
            metavar="FILE",
            help="File that holds a bearer token.",
        ),
    ] = None
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            metavar="'NAME: VALUE'",
            help="Extra HTTP header, repeatable; also lines of WATTLINE_HEADERS.",
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        typer.Option(
            envvar="WATTLINE_CA_FILE",
            metavar="FILE",
            help="PEM file of the server certificate's authority.",
        ),
    ] = None

    def open(self) -> closing[SampleSource]:
        """Open the source, to be closed. Raises FetchError, and typer.BadParameter for an invalid
        option.
        """
        return closing(self.open_source())

    def open_source(self) -> SampleSource:
        """Open the source. Raises as `open` does."""
        from wattline_analyzer.core.sources.base import ProgressBar
        from wattline_analyzer.core.sources.open import choose_source

        return choose_source(
            self.source, self.access(), print_message, progress=ProgressBar(sys.stderr)
        )

    def access(self) -> Access:
        """Return the credentials. Raises as `open` does."""
        from wattline_analyzer.core.sources.base import read_access

        lines = [
            line for line in os.environ.get("WATTLINE_HEADERS", "").splitlines() if line.strip()
        ]
        try:
            return read_access(
                self.basic_auth, self.bearer_token_file, self.header or lines, self.ca_file
            )
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

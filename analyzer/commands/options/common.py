"""Options that several commands share, and the times that options hold."""

from __future__ import annotations

import time
from datetime import datetime, timezone, tzinfo
from typing import Annotated

import typer

from analyzer.commands.messages import print_message
from analyzer.model.time_text import names_zone, parse_duration, parse_moment
from analyzer.output.format import OutputFormat

DEFAULT_SINCE = "30d"

FormatOption = Annotated[OutputFormat, typer.Option("--format", help="Format of the output on stdout.")]
SinceOption = Annotated[str, typer.Option(help="Time to search for runs, up to now: 90m, 12h, 30d.")]
CarbonOption = Annotated[
    float | None, typer.Option(min=0, metavar="G/KWH", help="Constant carbon intensity in gCO2eq/kWh: adds emissions.")
]


def duration_option(text: str, option: str = "--since") -> float:
    """Return the seconds of an option's duration. Raises typer.BadParameter."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def moment_option(text: str, option: str, now_s: float) -> float:
    """Return the Unix seconds of `now`, `-2h`, a date or a Unix time. Raises typer.BadParameter.

    A date without a zone is local time, which a message on stderr says.
    """
    text = text.strip()
    if text == "now":
        return now_s
    if text.startswith("-"):
        return now_s - duration_option(text[1:], option)
    try:
        found = parse_moment(text, local_zone())
    except ValueError as error:
        raise typer.BadParameter(
            f"{option}: {error}; write 2026-11-20T10:15:00, with a zone as in 2026-11-20T10:15:00Z, Unix seconds, -2h "
            "or now"
        ) from error
    if not names_zone(text):
        print_message(f"{option} names no time zone: using local time ({time.strftime('%z', time.localtime(found))})")
    return found


def local_zone() -> tzinfo:
    return datetime.now().astimezone().tzinfo or timezone.utc  # noqa: UP017  # mypy knows the class

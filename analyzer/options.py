"""What the analyzer's commands have in common: where to read from, what stdout gets, and how a command fails."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from analyzer.report.form import Format

if TYPE_CHECKING:
    from analyzer.sources.source import Source

DEFAULT_SINCE = "30d"
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


SourceOption = Annotated[
    str | None,
    typer.Option(
        envvar="WATTLINE_SOURCE",
        help="http://prometheus:9090, VictoriaMetrics with its path, an exporter, or a history file or its folder.",
    ),
]
FormatOption = Annotated[Format, typer.Option("--format", help="What stdout gets.")]
SinceOption = Annotated[str, typer.Option(help="How far back to look: 90m, 12h, 30d.")]
BasicAuthOption = Annotated[
    str | None, typer.Option(envvar="WATTLINE_BASIC_AUTH", metavar="USER:PASSWORD-FILE", help="Basic authentication.")
]
BearerOption = Annotated[
    Path | None, typer.Option(envvar="WATTLINE_BEARER_TOKEN_FILE", help="File that holds a bearer token.")
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header", metavar="'NAME: VALUE'", help="An extra header, repeatable; also lines of WATTLINE_HEADERS."
    ),
]
CaOption = Annotated[
    Path | None, typer.Option(envvar="WATTLINE_CA_FILE", help="PEM file of the authority that signed the server's key.")
]


def source_of(
    named: str | None, basic_auth: str | None, token_file: Path | None, headers: list[str] | None, ca_file: Path | None
) -> Source:
    from analyzer.sources.access import access  # noqa: PLC0415
    from analyzer.sources.choose import choose  # noqa: PLC0415

    lines = [line for line in os.environ.get("WATTLINE_HEADERS", "").splitlines() if line.strip()]
    try:
        letting_in = access(basic_auth, token_file, headers or lines, ca_file)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return choose(named, letting_in, say)


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not found or float(found[1]) == 0:
        raise typer.BadParameter(f"--since is a number with s, m, h or d, as in 30d, not {text!r}")
    return float(found[1]) * _SECONDS[found[2]]


def say(text: str) -> None:
    print(f"analyzer: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    say(text)
    raise SystemExit(1)

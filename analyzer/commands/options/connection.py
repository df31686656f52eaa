"""What the analyzer's commands have in common: where to read from, what stdout gets, and how a command fails."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NoReturn, ParamSpec

import typer

from analyzer.output.form import Format

if TYPE_CHECKING:
    from analyzer.sources.access import Access
    from analyzer.sources.base import Source

P = ParamSpec("P")
DEFAULT_SINCE = "30d"
_LONGEST_DAYS = 100_000
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

FormatOption = Annotated[Format, typer.Option("--format", help="What stdout gets.")]
SinceOption = Annotated[str, typer.Option(help="How far back to look: 90m, 12h, 30d.")]


@dataclass(frozen=True, slots=True)
class Connection:
    """Where to read from and what lets us in, as the user gave it; nothing is opened yet."""

    source: str | None = None
    basic_auth: str | None = None
    bearer_token_file: Path | None = None
    header: tuple[str, ...] = ()
    ca_file: Path | None = None

    def open(self) -> closing[Source]:
        """Raises SourceError; typer.BadParameter for an option that cannot be understood."""
        from analyzer.sources.choose import choose
        from analyzer.sources.progress import Bar

        return closing(choose(self.source, self.access(), say, progress=Bar(sys.stderr)))

    def access(self) -> Access:
        """Raises as `open` does."""
        from analyzer.sources.access import access

        lines = [line for line in os.environ.get("WATTLINE_HEADERS", "").splitlines() if line.strip()]
        try:
            return access(self.basic_auth, self.bearer_token_file, self.header or lines, self.ca_file)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error


def _options(
    source: Annotated[
        str | None,
        typer.Option(
            envvar="WATTLINE_SOURCE",
            help="http://prometheus:9090, VictoriaMetrics with its path, an exporter, or a history file or its folder.",
        ),
    ] = None,
    basic_auth: Annotated[
        str | None,
        typer.Option(envvar="WATTLINE_BASIC_AUTH", metavar="USER:PASSWORD-FILE", help="Basic authentication."),
    ] = None,
    bearer_token_file: Annotated[
        Path | None, typer.Option(envvar="WATTLINE_BEARER_TOKEN_FILE", help="File that holds a bearer token.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", metavar="'NAME: VALUE'", help="An extra header, repeatable; also lines of WATTLINE_HEADERS."
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(envvar="WATTLINE_CA_FILE", help="PEM file of the authority that signed the server's key."),
    ] = None,
) -> Connection:
    return Connection(source, basic_auth, bearer_token_file, tuple(header or ()), ca_file)


def reads(command: Callable[Concatenate[Connection, P], None]) -> Callable[..., None]:
    """A command with the options of a Connection in place of its first parameter, which they make."""
    theirs = inspect.signature(_options, eval_str=True).parameters
    mine = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @wraps(command)
    def with_options(**given: Any) -> None:
        command(_options(**{name: given.pop(name) for name in theirs}), **given)  # type: ignore[call-arg]  # typer gives names

    last_first = sorted([*mine, *theirs.values()], key=lambda parameter: parameter.default is not parameter.empty)
    with_options.__signature__ = inspect.Signature(last_first)  # type: ignore[attr-defined]  # functions take any attribute
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in last_first}
    return with_options


def seconds(text: str, option: str = "--since") -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not found or float(found[1]) == 0:
        raise typer.BadParameter(f"{option} is a number with s, m, h or d, as in 30d, and above 0, not {text!r}")
    asked_s = float(found[1]) * _SECONDS[found[2]]
    if asked_s > _LONGEST_DAYS * _SECONDS["d"]:
        raise typer.BadParameter(f"{option} is {_LONGEST_DAYS}d at most, not {text!r}")
    return asked_s


def write_into(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Files by their names, which are then told; folders that are not there are made."""
    try:
        for name, content in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        fail(f"cannot write to {folder}: {error.strerror}; give --out a folder that you may write to")
    say(f"wrote {', '.join(str(folder / name) for name in contents)}")


def say(text: str) -> None:
    print(f"analyzer: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    say(text)
    raise SystemExit(1)

"""Options of the connection to a source."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.messages import print_message

if TYPE_CHECKING:
    from analyzer.sources.base import Access, SampleSource


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Address and credentials of a source as the user typed them; nothing is opened yet."""

    source: Annotated[
        str | None,
        typer.Option(
            envvar="WATTLINE_SOURCE",
            help="Source of samples: http://prometheus:9090, VictoriaMetrics with its path, an exporter, or a history "
            "file or its folder.",
        ),
    ] = None
    basic_auth: Annotated[
        str | None,
        typer.Option(
            envvar="WATTLINE_BASIC_AUTH", metavar="USER:PASSWORD-FILE", help="Credentials for basic authentication."
        ),
    ] = None
    bearer_token_file: Annotated[
        Path | None, typer.Option(envvar="WATTLINE_BEARER_TOKEN_FILE", help="File that holds a bearer token.")
    ] = None
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", metavar="'NAME: VALUE'", help="Extra HTTP header, repeatable; also lines of WATTLINE_HEADERS."
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        typer.Option(envvar="WATTLINE_CA_FILE", help="PEM file of the authority that signed the server's certificate."),
    ] = None

    def open(self) -> closing[SampleSource]:
        """Open the source. Raises FetchError, and typer.BadParameter for an invalid option."""
        from analyzer.sources.choose import choose_source
        from analyzer.sources.progress import ProgressBar

        return closing(choose_source(self.source, self.access(), print_message, progress=ProgressBar(sys.stderr)))

    def access(self) -> Access:
        """Return the credentials. Raises as `open` does."""
        from analyzer.sources.base import read_access

        lines = [line for line in os.environ.get("WATTLINE_HEADERS", "").splitlines() if line.strip()]
        try:
            return read_access(self.basic_auth, self.bearer_token_file, self.header or lines, self.ca_file)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

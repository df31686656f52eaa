"""How a server lets us in: credentials, headers, certificate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from analyzer.sources.error import SourceError
from exporter.contract.secret_file import SecretFileError, read_secret


@dataclass(frozen=True, slots=True)
class Access:
    basic_auth: tuple[str, str] | None = None
    bearer_token: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: Path | None = None


def access(
    basic_auth: str | None, bearer_token_file: Path | None, headers: Iterable[str], ca_file: Path | None
) -> Access:
    """From the options as they are typed: secrets come from files, so that they stand in no process list.

    Raises SourceError for a file that cannot be read, ValueError for an option that cannot be understood.
    """
    user, _, password_file = (basic_auth or "").partition(":")
    if basic_auth and not (user and password_file):
        raise ValueError(f"--basic-auth is USER:PASSWORD-FILE, not {basic_auth!r}")
    if basic_auth and bearer_token_file:
        raise ValueError("--basic-auth and --bearer-token-file exclude each other")
    if ca_file and not ca_file.is_file():
        raise SourceError(f"there is no {ca_file}", "give --ca-file the certificate authority's PEM file")
    return Access(
        (user, _secret(Path(password_file))) if basic_auth else None,
        _secret(bearer_token_file) if bearer_token_file else None,
        dict(_header(text) for text in headers),
        ca_file,
    )


def _secret(path: Path) -> str:
    try:
        return read_secret(path.expanduser())
    except SecretFileError as error:
        raise SourceError(str(error), "store the password or token there, in one line") from error


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or any(c in text for c in "\r\n"):
        raise ValueError(f"--header is 'Name: value', not {text!r}")
    return name.strip(), value.strip()

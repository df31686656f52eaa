"""What a request says besides its samples: who is sending, and the headers of --push.header."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from exporter.contract.secret_file import MAX_SECRET_BYTES, SecretFileError, read_secret
from exporter.settings import Settings, UsageError
from exporter.web.reloaded import FileError, Reloaded

Headers = Callable[[], dict[str, str]]
"""Read again when a file of theirs changes."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""https://www.rfc-editor.org/rfc/rfc9110#name-tokens"""
_OURS = {
    *("authorization", "proxy-authorization"),
    *("host", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "user-agent"),
    "x-prometheus-remote-write-version",
}

log = logging.getLogger(__name__)


def authorization(settings: Settings, url: str) -> Callable[[], str | None]:
    """Raises UsageError."""
    basic, token_file = settings.push_basic_auth, settings.push_token_file
    if basic is None and token_file is None:
        return lambda: None
    if basic is not None and token_file is not None:
        raise UsageError("--push.basic-auth and --push.token-file are two ways to say who one is: leave out one")
    if basic is not None:
        user, colon, name = basic.partition(":")
        if not (user and colon and name):
            raise UsageError("--push.basic-auth: expected USER:PASSWORD-FILE")
        option, path, say = "--push.basic-auth", Path(name), _basic(user)
    else:
        assert token_file is not None
        option, path, say = "--push.token-file", token_file, _bearer
    return _of_file(path, option, say, url)


def more_headers(settings: Settings, url: str) -> Headers:
    """Those of --push.header. Raises UsageError, never with a value."""
    found: dict[str, Callable[[], str]] = {}
    for number, pair in enumerate(settings.push_headers, 1):
        name, equals, value = pair.partition("=")
        if not equals or not value or not _NAME.fullmatch(name):
            raise UsageError(
                f"--push.header: expected NAME=VALUE or NAME=@FILE, such as X-Scope-OrgID=team; number {number} "
                "is neither"
            )
        if name.lower() in _OURS or name.lower().startswith("content-"):
            raise UsageError(f"--push.header {name}: {_instead(name)}")
        if name.lower() in {other.lower() for other in found}:
            raise UsageError(f"--push.header {name} is given twice: leave out one")
        found[name] = _value(name, value, url)
    return lambda: {name: value() for name, value in found.items()}


def _instead(name: str) -> str:
    if name.lower() == "authorization":
        return "give --push.basic-auth or --push.token-file instead"
    return "the exporter sets it itself: leave it out"


def _value(name: str, value: str, url: str) -> Callable[[], str]:
    if value.startswith("@") and value != "@":
        return _of_file(Path(value[1:]), f"--push.header {name}", str, url)
    if not (value.isprintable() and value.isascii()) or value != value.strip() or len(value) > MAX_SECRET_BYTES:
        raise UsageError(f"--push.header {name}: its value has to be printable ASCII, in one line")
    return lambda: value


def _of_file(path: Path, option: str, say: Callable[[str], str], url: str) -> Callable[[], str]:
    try:
        file = Reloaded(lambda: say(_read(path, option)), lambda _: [path])
    except FileError as error:
        raise UsageError(str(error)) from error
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        log.warning("%s is sent to %s in the clear; use https:// where the server has it", option, parts.hostname)
    return file.now


def _basic(user: str) -> Callable[[str], str]:
    return lambda password: "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _bearer(token: str) -> str:
    return f"Bearer {token}"


def _read(path: Path, option: str) -> str:
    """Return the secret in the file. Raises FileError."""
    try:
        return read_secret(path)
    except SecretFileError as error:
        remedy = "let the exporter's user read it" if error.is_denied else "store the secret there, in one line"
        raise FileError(f"{option}: {error}; {remedy}") from error

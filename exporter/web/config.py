"""`--web.config.file`: TLS, headers and basic auth, in the format of Prometheus's exporter-toolkit.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from exporter.web.reloaded import FileError, Reloaded
from exporter.web.tls import NewestContext, TlsConfig, make_context

MAX_BYTES = 1024 * 1024
_BCRYPT = re.compile(r"^\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}$")
_COSTS = range(4, 17)
"""A check at cost 16 takes 4 s of a core; each step more doubles it."""
HEADERS = (
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
)


def _or_empty(value: object) -> object:
    """A key without a value is the same as no key."""
    return value or {}


class _Http(BaseModel):
    model_config = ConfigDict(extra="forbid")

    http2: bool | None = None
    headers: Annotated[dict[str, str], BeforeValidator(_or_empty)] = {}


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tls_server_config: Annotated[TlsConfig | None, BeforeValidator(lambda value: value or None)] = None
    http_server_config: Annotated[_Http, BeforeValidator(_or_empty)] = Field(default_factory=_Http)
    basic_auth_users: Annotated[dict[str, str], BeforeValidator(_or_empty)] = {}
    rate_limit: object = None


@dataclass(frozen=True, slots=True)
class WebConfig:
    path: Path | None = None
    tls: TlsConfig | None = None
    context: ssl.SSLContext | None = None
    headers: tuple[tuple[str, str], ...] = ()
    users: tuple[tuple[str, bytes], ...] = ()
    """Name and bcrypt hash."""
    remarks: tuple[str, ...] = ()
    """What the file asks for and does not get, a line each."""

    @property
    def guarded(self) -> bool:
        """Whether a client has to show who it is."""
        return bool(self.users) or (self.tls is not None and self.tls.verify == ssl.CERT_REQUIRED)

    @property
    def files(self) -> list[Path]:
        return [*([self.path] if self.path else []), *(self.tls.files if self.tls else [])]


def load(path: Path) -> WebConfig:
    """Raises FileError, one line that begins with the file's name."""
    try:
        return _load(path)
    except FileError as error:
        line = "".join(c if c.isprintable() else " " for c in str(error))  # a key may hold anything
        raise FileError(f"--web.config.file {path}: {line}") from error


def _load(path: Path) -> WebConfig:
    file = _parse(_text(path))
    tls = _absolute(file.tls_server_config, path.resolve().parent) if file.tls_server_config else None
    return WebConfig(
        path=path,
        tls=tls,
        context=make_context(tls) if tls else None,
        headers=tuple(_headers(file.http_server_config.headers)),
        users=tuple(_users(file.basic_auth_users)),
        remarks=tuple(_remarks(file)),
    )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror}; the exporter's user needs to read it") from error
    if len(content) > MAX_BYTES:
        raise FileError(f"it is larger than {MAX_BYTES} bytes; is it the right file?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError("it is no text in UTF-8; is it the right file?") from error


def _parse(text: str) -> _File:
    try:
        # BaseLoader makes text of every scalar, and the models say what it means: the constructors of the others fail
        # in many ways. Not libyaml's loader: it crashes the process on deep nesting.
        given = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506  # it makes nothing but text, lists and mappings
    except yaml.YAMLError as error:
        raise FileError(f"it is no YAML: {' '.join(str(error).split())[:200]}") from error
    except RecursionError as error:
        raise FileError("it is no YAML of a web configuration: it is nested too deeply") from error
    try:
        return _File.model_validate(given or {})
    except ValidationError as error:
        raise FileError(_first(error)) from error
    except RecursionError as error:  # an alias that holds itself
        raise FileError("it is nested too deeply for a web configuration") from error


def _first(error: ValidationError) -> str:
    every = error.errors(include_url=False, include_context=False, include_input=False)
    found = next((each for each in every if each["type"] == "extra_forbidden"), every[0])  # a typo before what it lacks
    where = ".".join(str(part)[:60] for part in found["loc"]) or "the file"
    if found["type"] == "extra_forbidden":
        return f"{where} is no key of a web configuration that the exporter knows; remove it or mend its name"
    return f"{where}: {found['msg']}"


def _absolute(tls: TlsConfig, folder: Path) -> TlsConfig:
    """Relative paths are relative to the file."""
    return tls.model_copy(
        update={
            "cert_file": folder / tls.cert_file,
            "key_file": folder / tls.key_file,
            "client_ca_file": folder / tls.client_ca_file if tls.client_ca_file else None,
        }
    )


def _headers(given: dict[str, str]) -> Iterator[tuple[str, str]]:
    known = {name.lower(): name for name in HEADERS}
    for name, value in given.items():
        if name.lower() not in known:
            raise FileError(f"http_server_config.headers: {name[:60]!r} is not one of {', '.join(HEADERS)}")
        if not value.isprintable() or not value.isascii():
            raise FileError(f"http_server_config.headers.{name}: a header has printable ASCII on one line")
        yield known[name.lower()], value


def _users(given: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    for name, hashed in given.items():
        found = _BCRYPT.match(hashed)
        if not found:  # which may be the password itself, so it is not shown
            raise FileError(f"basic_auth_users.{name[:60]}: no bcrypt hash; make one with: htpasswd -nBC 10 USER")
        if int(found[1]) not in _COSTS:
            raise FileError(f"basic_auth_users.{name[:60]}: bcrypt cost {found[1]} is not {_COSTS[0]} to {_COSTS[-1]}")
        yield name, hashed.encode()


def _remarks(file: _File) -> Iterator[str]:
    tls = file.tls_server_config
    if file.http_server_config.http2:
        yield "http_server_config.http2 is ignored: HTTP/1.1 is served"
    if file.rate_limit is not None:
        yield "rate_limit is ignored: connections, header times and passwords to check are bounded as they are"
    if tls and tls.curve_preferences:
        yield "tls_server_config.curve_preferences is ignored: OpenSSL's own are used"
    if tls and tls.client_auth_type == "RequestClientCert":
        yield "client_auth_type RequestClientCert verifies nothing, so it is served as NoClientCert"
    if tls and tls.client_auth_type in ("RequireAnyClientCert", "RequireClientCert"):
        yield f"client_auth_type {tls.client_auth_type} is served as RequireAndVerifyClientCert, which is stricter"


class LiveWebConfig:
    """The newest sound state of the file; an empty configuration where there is no file. Raises FileError."""

    def __init__(self, path: Path | None) -> None:
        self._file = Reloaded(lambda: load(path), _files) if path else None
        self._last_context = self.now().context

    def now(self) -> WebConfig:
        return self._file.now() if self._file else WebConfig()

    def ssl_context(self) -> ssl.SSLContext | None:
        """For asyncio: it follows the file. Whether there is TLS at all is settled at the start."""
        return NewestContext.of(self._newest) if self._last_context else None

    def _newest(self) -> ssl.SSLContext:
        self._last_context = self.now().context or self._last_context
        assert self._last_context
        return self._last_context


def _files(config: WebConfig) -> Iterable[Path]:
    return config.files

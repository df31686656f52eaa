"""Web configuration file: TLS, headers and basic auth, in the format of Prometheus's
exporter-toolkit.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from wattline_exporter.config.reloadable_file import ConfigFileError, ReloadableFile
from wattline_exporter.web.tls import ReloadingTlsContext, TlsServerConfig, make_tls_context

MAX_BYTES = 1024 * 1024
_BCRYPT = re.compile(r"^\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}$")
_COSTS = range(4, 17)
"""Accepted costs: a check takes 4 s of CPU time at cost 16, twice as much for each step."""
HEADERS = (
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
)


def _or_empty(value: object) -> object:
    """Return an empty mapping for a key without a value."""
    return value or {}


class _Http(BaseModel):
    model_config = ConfigDict(extra="forbid")

    http2: bool | None = None
    headers: Annotated[dict[str, str], BeforeValidator(_or_empty)] = {}


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tls_server_config: Annotated[
        TlsServerConfig | None, BeforeValidator(lambda value: value or None)
    ] = None
    http_server_config: Annotated[_Http, BeforeValidator(_or_empty)] = Field(default_factory=_Http)
    basic_auth_users: Annotated[dict[str, str], BeforeValidator(_or_empty)] = {}
    rate_limit: object = None


@dataclass(frozen=True, slots=True)
class WebConfig:
    path: Path | None = None
    tls: TlsServerConfig | None = None
    context: ssl.SSLContext | None = None
    headers: tuple[tuple[str, str], ...] = ()
    users: tuple[tuple[str, bytes], ...] = ()
    """Names and bcrypt hashes."""
    warnings: tuple[str, ...] = ()
    """One line per unsupported setting."""

    @property
    def requires_authentication(self) -> bool:
        """True if clients need a password or a certificate."""
        return bool(self.users) or (self.tls is not None and self.tls.verify == ssl.CERT_REQUIRED)

    @property
    def files(self) -> list[Path]:
        return [*([self.path] if self.path else []), *(self.tls.files if self.tls else [])]


def load_web_config(path: Path) -> WebConfig:
    """Return the content of the file. Raises ConfigFileError, one line that starts with the file's
    name.
    """
    try:
        return _load(path)
    except ConfigFileError as error:
        line = "".join(
            c if c.isprintable() else " " for c in str(error)
        )  # a key may contain any character
        raise ConfigFileError(f"--web.config.file {path}: {line}") from error


def _load(path: Path) -> WebConfig:
    file = _parse(_text(path))
    tls = (
        _absolute(file.tls_server_config, path.resolve().parent) if file.tls_server_config else None
    )
    return WebConfig(
        path=path,
        tls=tls,
        context=make_tls_context(tls) if tls else None,
        headers=tuple(_headers(file.http_server_config.headers)),
        users=tuple(_users(file.basic_auth_users)),
        warnings=tuple(_warnings(file)),
    )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigFileError(
            f"cannot read the file: {error.strerror}; let the exporter's user read it"
        ) from error
    if len(content) > MAX_BYTES:
        raise ConfigFileError(f"the file is larger than {MAX_BYTES} bytes; check the path")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigFileError("the content is not UTF-8 text; check the path") from error


def _parse(text: str) -> _File:
    import yaml  # 0.9 MB of memory, only where there is such a file

    try:
        # BaseLoader returns each scalar as text, which the models convert; other loaders fail in
        # many ways, and libyaml's crashes the process on deep nesting.
        content = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506  # it creates text, lists and mappings only
    except yaml.YAMLError as error:
        raise ConfigFileError(f"invalid YAML: {' '.join(str(error).split())[:200]}") from error
    except RecursionError as error:
        raise ConfigFileError("invalid YAML: nested too deeply") from error
    try:
        return _File.model_validate(content or {})
    except ValidationError as error:
        raise ConfigFileError(_first(error)) from error
    except RecursionError as error:  # an alias that contains itself
        raise ConfigFileError("the content is nested too deeply") from error


def _first(error: ValidationError) -> str:
    every = error.errors(include_url=False, include_context=False, include_input=False)
    entry = next(
        (each for each in every if each["type"] == "extra_forbidden"), every[0]
    )  # a misspelled key before a missing one
    where = ".".join(str(part)[:60] for part in entry["loc"]) or "the file"
    if entry["type"] == "extra_forbidden":
        return f"{where}: unknown key; remove it or correct its name"
    return f"{where}: {entry['msg']}"


def _absolute(tls: TlsServerConfig, folder: Path) -> TlsServerConfig:
    """Resolve paths relative to the folder of the file."""
    return tls.model_copy(
        update={
            "cert_file": folder / tls.cert_file,
            "key_file": folder / tls.key_file,
            "client_ca_file": folder / tls.client_ca_file if tls.client_ca_file else None,
        }
    )


def _headers(values: dict[str, str]) -> Iterator[tuple[str, str]]:
    names = {name.lower(): name for name in HEADERS}
    for name, value in values.items():
        if name.lower() not in names:
            raise ConfigFileError(
                f"http_server_config.headers: {name[:60]!r} is not one of {', '.join(HEADERS)}"
            )
        if not value.isprintable() or not value.isascii():
            raise ConfigFileError(
                f"http_server_config.headers.{name}: expected printable ASCII in one line"
            )
        yield names[name.lower()], value


def _users(values: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    for name, hashed in values.items():
        match = _BCRYPT.match(hashed)
        if not match:  # not shown, since it may be the password
            raise ConfigFileError(
                f"basic_auth_users.{name[:60]}: not a bcrypt hash; use htpasswd -nBC 10 USER"
            )
        if int(match[1]) not in _COSTS:
            raise ConfigFileError(
                f"basic_auth_users.{name[:60]}: bcrypt cost {match[1]} is not {_COSTS[0]} to "
                f"{_COSTS[-1]}"
            )
        yield name, hashed.encode()


def _warnings(file: _File) -> Iterator[str]:
    tls = file.tls_server_config
    if file.http_server_config.http2:
        yield "http_server_config.http2 is ignored: only HTTP/1.1 is supported"
    if file.rate_limit is not None:
        yield (
            "rate_limit is ignored: connections, header times and password checks have fixed limits"
        )
    if tls and tls.curve_preferences:
        yield "tls_server_config.curve_preferences is ignored: OpenSSL's defaults are used"
    if tls and tls.client_auth_type == "RequestClientCert":
        yield (
            "client_auth_type RequestClientCert is treated as NoClientCert, since it verifies "
            "nothing"
        )
    if tls and tls.client_auth_type in ("RequireAnyClientCert", "RequireClientCert"):
        yield (
            f"client_auth_type {tls.client_auth_type} is treated as RequireAndVerifyClientCert, "
            "which is stricter"
        )


class LiveWebConfig:
    """Latest valid content of the file, empty without a file. Raises ConfigFileError."""

    def __init__(self, path: Path | None) -> None:
        self._file = ReloadableFile(lambda: load_web_config(path), _files) if path else None
        self._last_context = self.now().context

    def now(self) -> WebConfig:
        return self._file.now() if self._file else WebConfig()

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return a context that follows changes of the file; enabling or disabling TLS needs a
        restart.
        """
        return ReloadingTlsContext.of(self._newest) if self._last_context else None

    def _newest(self) -> ssl.SSLContext:
        self._last_context = self.now().context or self._last_context
        assert self._last_context
        return self._last_context


def _files(config: WebConfig) -> Iterable[Path]:
    return config.files

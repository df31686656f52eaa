"""Push settings: URL, protocol, labels, interval, credentials and headers."""

from __future__ import annotations

import base64
import logging
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from wattline.contract.metrics import METRICS
from wattline.contract.secret_file import MAX_SECRET_BYTES, SecretFileError, read_secret
from wattline_exporter.config.reloadable_file import ConfigFileError, ReloadableFile
from wattline_exporter.config.settings import Settings
from wattline_exporter.config.values import UsageError, check_url, parse_seconds
from wattline_exporter.push.otlp_metrics import otlp_format
from wattline_exporter.push.remote_write import REMOTE_WRITE, TEXT, PushFormat

HeaderSupplier = Callable[[], dict[str, str]]
"""Function that returns the current headers; files with values are read again when they change."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""https://www.rfc-editor.org/rfc/rfc9110#name-tokens"""
_RESERVED = {
    *("authorization", "proxy-authorization"),
    *(
        "host",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
        "user-agent",
    ),
    "x-prometheus-remote-write-version",
}

log = logging.getLogger(__name__)


def authorization_supplier(settings: Settings, url: str) -> Callable[[], str | None]:
    """Return a function that returns the current Authorization header. Raises UsageError."""
    basic, token_file = settings.push_basic_auth, settings.push_token_file
    if basic is None and token_file is None:
        return lambda: None
    if basic is not None and token_file is not None:
        raise UsageError("--push.basic-auth and --push.token-file exclude each other; remove one")
    if basic is not None:
        user, colon, name = basic.partition(":")
        if not (user and colon and name):
            raise UsageError("--push.basic-auth: expected USER:PASSWORD-FILE")
        option, path, header = "--push.basic-auth", Path(name), _basic(user)
    else:
        assert token_file is not None
        option, path, header = "--push.token-file", token_file, _bearer
    return _from_file(path, option, header, url)


def header_supplier(settings: Settings, url: str) -> HeaderSupplier:
    """Return a function that returns the headers of --push.header. Raises UsageError, without any
    value.
    """
    suppliers: dict[str, Callable[[], str]] = {}
    for number, pair in enumerate(settings.push_headers, 1):
        name, equals, value = pair.partition("=")
        if not equals or not value or not _HEADER_NAME.fullmatch(name):
            raise UsageError(
                "--push.header: expected NAME=VALUE or NAME=@FILE, such as X-Scope-OrgID=team, in "
                f"number {number}"
            )
        if name.lower() in _RESERVED or name.lower().startswith("content-"):
            raise UsageError(f"--push.header {name}: {_reserved_remedy(name)}")
        if name.lower() in {other.lower() for other in suppliers}:
            raise UsageError(f"--push.header {name} is given twice; remove one")
        suppliers[name] = _value(name, value, url)
    return lambda: {name: value() for name, value in suppliers.items()}


def _reserved_remedy(name: str) -> str:
    if name.lower() == "authorization":
        return "use --push.basic-auth or --push.token-file instead"
    return "it is set by the exporter; remove the option"


def _value(name: str, value: str, url: str) -> Callable[[], str]:
    if value.startswith("@") and value != "@":
        return _from_file(Path(value[1:]), f"--push.header {name}", str, url)
    if (
        not (value.isprintable() and value.isascii())
        or value != value.strip()
        or len(value) > MAX_SECRET_BYTES
    ):
        raise UsageError(
            f"--push.header {name}: expected printable ASCII in one line, not surrounded by space"
        )
    return lambda: value


def _from_file(
    path: Path, option: str, header: Callable[[str], str], url: str
) -> Callable[[], str]:
    try:
        file = ReloadableFile(lambda: header(_read(path, option)), lambda _: [path])
    except ConfigFileError as error:
        raise UsageError(str(error)) from error
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        log.warning(
            "%s is sent to %s without encryption; use https:// if the server supports it",
            option,
            parts.hostname,
        )
    return file.now


def _basic(user: str) -> Callable[[str], str]:
    return lambda password: "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _bearer(token: str) -> str:
    return f"Bearer {token}"


def _read(path: Path, option: str) -> str:
    """Return the secret in the file. Raises ConfigFileError."""
    try:
        return read_secret(path)
    except SecretFileError as error:
        remedy = (
            "let the exporter's user read it"
            if error.is_denied
            else "store the secret there, in one line"
        )
        raise ConfigFileError(f"{option}: {error}; {remedy}") from error


EVERY_S = 15.0
_FORMS = {
    "/api/v1/import/prometheus": TEXT,
    "/api/v1/write": REMOTE_WRITE,
    "/api/v1/push": REMOTE_WRITE,
    "/api/v1/receive": REMOTE_WRITE,
}
_OTLP = "/v1/metrics"


@dataclass(frozen=True, slots=True)
class PushTarget:
    """Server to push to; `labels` are added to each series, `headers` to each request."""

    url: str
    form: PushFormat
    labels: dict[str, str]
    every_s: float
    authorization: Callable[[], str | None]
    tls: ssl.SSLContext | None
    headers: HeaderSupplier


def push_target(settings: Settings, host: str | None = None) -> PushTarget | None:
    """Return the target, None without --push.url. Raises UsageError."""
    if settings.push_url is None:
        _refuse_without_url(settings)
        return None
    if not settings.history:
        raise UsageError(
            "--push.url sends the history and cannot be combined with --no-history; remove one"
        )
    url = str(check_url(settings.push_url, "--push.url")).rstrip("/")
    labels = {
        "instance": host or socket.gethostname(),
        "job": "wattline",
        **_labels(settings.push_labels),
    }
    forms = {**_FORMS, _OTLP: otlp_format(host or socket.gethostname(), labels)}
    form = next((form for path, form in forms.items() if urlsplit(url).path.endswith(path)), None)
    if form is None:
        raise UsageError(
            f"--push.url {url}: unknown path; it must end in /api/v1/import/prometheus "
            "(VictoriaMetrics), "
            "/api/v1/write (Prometheus), /api/v1/push (Mimir), /api/v1/receive (Thanos) or "
            "/v1/metrics (OTLP)"
        )
    return PushTarget(
        url,
        form,
        labels,
        EVERY_S
        if settings.push_every is None
        else parse_seconds(settings.push_every, "--push.every", "1s", "1h"),
        authorization_supplier(settings, url),
        _tls(settings, url),
        header_supplier(settings, url),
    )


def _refuse_without_url(settings: Settings) -> None:
    options = {
        "--push.basic-auth": settings.push_basic_auth,
        "--push.token-file": settings.push_token_file,
        "--push.ca-file": settings.push_ca_file,
        "--push.header": settings.push_headers or None,
        "--push.label": settings.push_labels or None,
        "--push.every": settings.push_every,
    }
    for option, value in options.items():
        if value is not None:
            raise UsageError(f"{option} needs --push.url URL; add it, or remove this option")


def _labels(options: Sequence[str]) -> dict[str, str]:
    reserved = {name for metric in METRICS for name in (*metric.labels, *metric.optional)}
    labels: dict[str, str] = {}
    for pair in options:
        name, equals, value = pair.partition("=")
        if (
            not equals
            or not value
            or not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name)
            or name.startswith("__")
        ):
            raise UsageError(
                f"--push.label: expected name=value, such as cluster=north, not {pair!r}"
            )
        if name in reserved or name.startswith("label_"):
            raise UsageError(
                f"--push.label {name}: exported series already have this label; choose another name"
            )
        if name in labels:
            raise UsageError(f"--push.label {name} is given twice; remove one")
        labels[name] = value
    return labels


def _tls(settings: Settings, url: str) -> ssl.SSLContext | None:
    """Return a context that trusts the system's authorities, or only those of --push.ca-file."""
    path: Path | None = settings.push_ca_file
    if not url.startswith("https:"):
        if path is not None:
            raise UsageError(
                "--push.ca-file needs https:// in --push.url; change the URL, or remove the option"
            )
        return None
    try:
        return ssl.create_default_context(cafile=None if path is None else str(path))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"--push.ca-file: cannot read certificates from {path}: {error}; use a PEM file"
        ) from error

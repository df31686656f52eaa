"""Where to push: --push.url and what goes with it, checked."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from exporter.contract.metrics import METRICS
from exporter.push.encoding import REMOTE_WRITE, TEXT, Form
from exporter.push.headers import Headers, authorization, more_headers
from exporter.settings import Settings, UsageError
from exporter.sources.carbon.config import check_url

EVERY_S = 15.0
SHORTEST_S = 1.0
LONGEST_S = 3_600.0
_FORMS = {
    "/api/v1/import/prometheus": TEXT,
    "/api/v1/write": REMOTE_WRITE,
    "/api/v1/push": REMOTE_WRITE,
    "/api/v1/receive": REMOTE_WRITE,
}
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}


@dataclass(frozen=True, slots=True)
class Target:
    """`authorization` is what to say of oneself, and `headers` are those of --push.header."""

    url: str
    form: Form
    labels: dict[str, str]
    every_s: float
    authorization: Callable[[], str | None]
    tls: ssl.SSLContext | None
    headers: Headers


def push_target(settings: Settings, host: str | None = None) -> Target | None:
    """None where nothing is pushed. Raises UsageError."""
    if settings.push_url is None:
        _refuse_without_url(settings)
        return None
    if not settings.history:
        raise UsageError("--push.url sends what the history keeps, and does nothing with --no-history: leave out one")
    url = str(check_url(settings.push_url, "--push.url")).rstrip("/")
    form = next((form for path, form in _FORMS.items() if urlsplit(url).path.endswith(path)), None)
    if form is None:
        raise UsageError(
            f"--push.url {url}: its path tells how to send; it ends in /api/v1/import/prometheus for VictoriaMetrics, "
            "in /api/v1/write for Prometheus, /api/v1/push for Mimir, /api/v1/receive for Thanos"
        )
    labels = {"instance": host or socket.gethostname(), "job": "wattline", **_labels(settings.push_labels)}
    return Target(
        url,
        form,
        labels,
        _every_s(settings.push_every),
        authorization(settings, url),
        _tls(settings, url),
        more_headers(settings, url),
    )


def _refuse_without_url(settings: Settings) -> None:
    given = {
        "--push.basic-auth": settings.push_basic_auth,
        "--push.token-file": settings.push_token_file,
        "--push.ca-file": settings.push_ca_file,
        "--push.header": settings.push_headers or None,
        "--push.label": settings.push_labels or None,
        "--push.every": settings.push_every,
    }
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"{option} does nothing without --push.url URL: add that, or leave it out")


def _labels(given: tuple[str, ...]) -> dict[str, str]:
    taken = {name for metric in METRICS for name in (*metric.labels, *metric.optional)}
    found: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not value or not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or name.startswith("__"):
            raise UsageError(f"--push.label: expected name=value, such as cluster=north, not {pair!r}")
        if name in taken or name.startswith("label_"):
            raise UsageError(f"--push.label {name}: series have a label of that name already; choose another")
        if name in found:
            raise UsageError(f"--push.label {name} is given twice: leave out one")
        found[name] = value
    return found


def _every_s(text: str | None) -> float:
    if text is None:
        return EVERY_S
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text.strip())
    every_s = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not SHORTEST_S <= every_s <= LONGEST_S:
        raise UsageError(f"--push.every: expected a time from 1s to 1h, such as 15s, not {text!r}")
    return every_s


def _tls(settings: Settings, url: str) -> ssl.SSLContext | None:
    """What certificates are verified by: the system's authorities, or those of --push.ca-file alone."""
    path: Path | None = settings.push_ca_file
    if not url.startswith("https:"):
        if path is not None:
            raise UsageError("--push.ca-file does nothing with an http:// address: use https://, or leave it out")
        return None
    try:
        return ssl.create_default_context(cafile=None if path is None else str(path))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--push.ca-file: {path} holds no certificates that can be read: {error}") from error

"""The run API over HTTP, with the standard library alone, since it runs inside users' training processes too."""

from __future__ import annotations

import base64
import http
import http.client
import json
import os
import socket
import ssl
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporter.contract.secret_file import SecretFileError, read_secret

DEFAULT_ADDRESS = "http://127.0.0.1:9847"
EXPORTER = "WATTLINE_EXPORTER"
TOKEN_FILE = "WATTLINE_TOKEN_FILE"  # noqa: S105  # a name
"""A file with the bearer token that the exporter asks for (its --web.api-token-file)."""
RUN_ID = "WATTLINE_RUN_ID"
RESULTS = "WATTLINE_RESULTS"
"""A file to which clients in the job append a JSON object of results a line; the runner sends them at the end."""
SIMULATION = "WATTLINE_SIMULATION"
LEASE_S = 300.0
_TRUST = "trust the CA that signed it with SSL_CERT_FILE=ca.pem"
_OTHER_NAME = "ask for the exporter by a name that the certificate has"
# OpenSSL's X509_V_ERR_…: no issuer that is known (2, 18 to 21), another host (62), another address (64).
_REMEDY_OF_CERTIFICATE = {**dict.fromkeys((2, 18, 19, 20, 21), _TRUST), 62: _OTHER_NAME, 64: _OTHER_NAME}
_ATTEMPTS = 2  # a kept-alive proxy or a restart may drop one connection; every call of the run API may be repeated


class ExporterError(Exception):
    """One line: the cause and the next step."""


class AddressError(ExporterError):
    pass


class TokenError(ExporterError):
    pass


class UnreachableError(ExporterError):
    pass


class BarredError(ExporterError):
    """Something answers, but not to this user as things are; the text has the whole remedy."""


class RefusedError(ExporterError):
    """The exporter's answer is a problem."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True, slots=True)
class Api:
    """An exporter by its address; raises ExporterError.

    `http[s]://[user:password@]host[:port][/prefix]`, or `unix:///run/wattline/api.sock` for its Unix socket.
    """

    address: str
    timeout_s: float = 10.0
    token_file: str | None = field(default_factory=lambda: os.environ.get(TOKEN_FILE))

    @property
    def public_address(self) -> str:
        """Without the password, to be shown."""
        url = _parse(self.address)
        if url.scheme == "unix":
            return self.address  # `geturl` would leave out the two slashes that it needs
        return url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()

    def get(self, path: str) -> dict[str, Any]:
        return self._json("GET", f"/api/v1{path}", None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._json("POST", f"/api/v1{path}", json.dumps(body, allow_nan=False).encode())

    def metrics(self) -> str:
        status, content = self._exchange("GET", "/metrics", None)
        if status != http.HTTPStatus.OK:
            raise RefusedError(status, f"{self.public_address} answers GET /metrics with {status}")
        return content.decode(errors="replace")

    def readiness(self) -> int:
        """The status of /-/ready: 200 once the exporter serves, 503 while it starts."""
        return self._exchange("GET", "/-/ready", None)[0]

    def _json(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        status, content = self._exchange(method, path, body)
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if 200 <= status < 300 and isinstance(answer, dict):
            return answer
        if isinstance(answer, dict) and "status" in answer:
            detail = " ".join(str(answer.get("detail") or answer.get("title")).split())
            if status == http.HTTPStatus.UNAUTHORIZED and self.token_file:
                detail = f"the token in {self.token_file} ({TOKEN_FILE}) is not taken: {detail}"
            raise RefusedError(status, detail)
        raise RefusedError(
            status,
            f"{self.public_address} answers {method} {path} with {status} and no reason: it is no Wattline exporter; "
            f"give the exporter's address with --exporter or {EXPORTER}",
        )

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        url = _parse(self.address)
        for attempt in range(1, _ATTEMPTS + 1):
            connection = _connection(url, self.timeout_s)
            try:
                connection.request(method, _prefix(url) + path, body, _headers(url, self.token_file))
                response = connection.getresponse()
                return response.status, response.read()
            except (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected) as error:
                if attempt == _ATTEMPTS:
                    raise self._unreachable(error) from error
            except (OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from error
            finally:
                connection.close()
        raise AssertionError

    def _unreachable(self, error: Exception) -> BarredError | UnreachableError:
        reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        if isinstance(error, PermissionError):
            return BarredError(
                f"{self.public_address} may not be opened: {reason}; be a member of the socket's group (ls -l shows it)"
            )
        if isinstance(error, ssl.SSLCertVerificationError):
            return BarredError(
                f"the certificate of {self.public_address} is not accepted: {error.verify_message}; "
                f"{_REMEDY_OF_CERTIFICATE.get(error.verify_code, 'it has to be written anew on that side')}"
            )
        return UnreachableError(f"no exporter answers at {self.public_address}: {reason}")


def _parse(address: str) -> urllib.parse.SplitResult:
    try:
        url = urllib.parse.urlsplit(address if "://" in address else f"http://{address}")
        _ = url.port  # raises where it is no number
    except ValueError as error:
        raise AddressError(
            f"{address!r} is no exporter's address ({error}); give one like {DEFAULT_ADDRESS}"
        ) from error
    is_socket = url.scheme == "unix" and not url.netloc and url.path.startswith("/")
    if not is_socket and (url.scheme not in {"http", "https"} or not url.hostname):
        raise AddressError(f"{address!r} is no exporter's address; give one like {DEFAULT_ADDRESS}")
    return url


def _connection(url: urllib.parse.SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    # http.client asks no proxy: the exporter is on this node, and http_proxy is often set on a cluster.
    if url.scheme == "unix":
        return _UnixConnection(urllib.parse.unquote(url.path), timeout_s)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    return kind(url.hostname or "", url.port, timeout=timeout_s)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _prefix(url: urllib.parse.SplitResult) -> str:
    return "" if url.scheme == "unix" else url.path.rstrip("/")


def _headers(url: urllib.parse.SplitResult, token_file: str | None) -> dict[str, str]:
    """Basic auth and a token share one header; the exporter takes the token in place of the password."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if token_file:
        headers["Authorization"] = f"Bearer {_token(token_file)}"
    elif url.username is not None:
        credentials = f"{urllib.parse.unquote(url.username)}:{urllib.parse.unquote(url.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(credentials.encode()).decode()
    return headers


def _token(file: str) -> str:
    """Return the token; it is read for each request, since it may be replaced at any time."""
    remedy = f"set {TOKEN_FILE} to a file with the exporter's token"
    try:
        token = read_secret(Path(file))
    except SecretFileError as error:
        raise TokenError(f"{error}; {remedy}") from error
    if not token.isascii():
        raise TokenError(f"cannot use the token in {file}: it is not ASCII; {remedy}")
    return token

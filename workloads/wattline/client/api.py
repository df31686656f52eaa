"""HTTP client of the run API.

It imports only the standard library, since it also runs inside users' training processes.
"""

from __future__ import annotations

import base64
import dataclasses
import http
import http.client
import json
import os
import socket
import ssl
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

DEFAULT_ADDRESS = "http://127.0.0.1:9847"
EXPORTER = "WATTLINE_EXPORTER"
TOKEN_FILE = "WATTLINE_TOKEN_FILE"  # noqa: S105  # the name of a variable
"""File with the exporter's bearer token (its --web.api-token-file)."""
RUN_ID = "WATTLINE_RUN_ID"
RESULTS = "WATTLINE_RESULTS"
"""File to which clients in the job append one JSON object of results per line; the runner sends
them at the end.
"""
SIMULATION = "WATTLINE_SIMULATION"
LEASE_S = 300.0
_TRUST = "trust the CA that signed it with SSL_CERT_FILE=ca.pem"
_OTHER_NAME = "use a host name of the exporter that is in the certificate"
# OpenSSL's X509_V_ERR_…: unknown issuer (2, 18 to 21), host name mismatch (62), IP address mismatch
# (64).
_REMEDY_OF_CERTIFICATE = {
    **dict.fromkeys((2, 18, 19, 20, 21), _TRUST),
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}
# OpenSSL's reasons for a record that does not begin as TLS does; the second one is of version 3.2.
_PLAIN_ANSWERS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
_MAX_TOKEN_BYTES = 10_000
ANSWER_WITHIN_S = 2.0
"""Longest wait of a job for an answer, except at the start and the end of a run."""
_OUTAGE_S = 10.0
RETRIED = (408, 429, 500, 502, 503, 504)
"""Statuses of requests that may succeed later."""
_ATTEMPTS = (
    2  # a proxy or a restart may drop one connection; every call of the run API may be repeated
)


class ExporterError(Exception):
    """Error with a one-line message: the cause and the remedy."""


class AddressError(ExporterError):
    pass


class TokenError(ExporterError):
    pass


class UnreachableError(ExporterError):
    pass


class AccessDeniedError(ExporterError):
    """Exporter that is reachable, but denies access to this user."""


class RejectedRequestError(ExporterError):
    """Request that the exporter rejected with a problem document."""

    def __init__(self, status: int, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.retry_after_s = retry_after_s
        """Seconds of the header Retry-After, None without it."""


@dataclass(frozen=True, slots=True)
class Api:
    """Run API of the exporter at `address`; every method raises ExporterError.

    The address is `http[s]://[user:password@]host[:port][/prefix]`, or
    `unix:///run/wattline/api.sock` for a Unix socket.
    """

    address: str
    timeout_s: float = 10.0
    token_file: str | None = field(default_factory=lambda: os.environ.get(TOKEN_FILE))
    origin: str = ""
    """Option or variable that has the address, for messages."""

    @classmethod
    def configured(
        cls,
        environ: Mapping[str, str],
        given: str | None = None,
        *,
        option: str = "exporter",
        timeout_s: float | None = None,
    ) -> Self:
        """Return the API at the address that the user gave by `option`, else at that of
        WATTLINE_EXPORTER, else at the default one.
        """
        named = {option: given, EXPORTER: environ.get(EXPORTER)}
        origin, address = next(
            ((name, value) for name, value in named.items() if value), ("", DEFAULT_ADDRESS)
        )
        if timeout_s is None:
            return cls(address, origin=origin)
        return cls(address, timeout_s, origin=origin)

    @property
    def public_address(self) -> str:
        """Address without user name and password, for messages."""
        url = self._url()
        if url.scheme == "unix":
            return self.address  # `geturl` drops the two slashes of unix://
        return url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()

    @property
    def analyzer_source(self) -> str | None:
        """Value of the analyzer's `--source` for this exporter; None if its default finds the
        exporter.
        """
        is_default = self.address == DEFAULT_ADDRESS or self.address.startswith("unix:")
        return None if is_default else self.public_address

    def _url(self) -> urllib.parse.SplitResult:
        address = self.address
        try:
            url = urllib.parse.urlsplit(address if "://" in address else f"http://{address}")
            _ = url.port  # raises ValueError if it is not a number
        except ValueError as error:
            raise self._address_error(str(error)) from error
        is_socket = url.scheme == "unix" and not url.netloc and url.path.startswith("/")
        if not is_socket and (url.scheme not in {"http", "https"} or not url.hostname):
            raise self._address_error("")
        return url

    def _address_error(self, cause: str) -> AddressError:
        """Return the error of an address of another form."""
        cause = f" ({cause})" if cause else ""
        return AddressError(
            f"{self.address!r}{self._of_origin} is not an exporter address{cause}; use the form "
            f"{DEFAULT_ADDRESS}"
        )

    @property
    def _of_origin(self) -> str:
        return f" of {self.origin}" if self.origin else ""

    def _scheme_error(self, speaks: str, scheme: str) -> AddressError:
        other = self._url()._replace(scheme=scheme)
        public = other._replace(netloc=other.netloc.rpartition("@")[2]).geturl()
        return AddressError(
            f"cannot use {self.public_address}{self._of_origin}: the server there {speaks}; use "
            f"{public}"
        )

    def get(self, path: str) -> dict[str, Any]:
        return dict(self._json("GET", f"/api/v1{path}", None))

    def get_list(self, path: str) -> list[dict[str, Any]]:
        """Return an answer that is a list."""
        return list(self._json("GET", f"/api/v1{path}", None, list))

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return dict(
            self._json("POST", f"/api/v1{path}", json.dumps(body, allow_nan=False).encode())
        )

    def metrics(self) -> str:
        status, content, _ = self._exchange("GET", "/metrics", None)
        if status != http.HTTPStatus.OK:
            raise RejectedRequestError(
                status,
                f"cannot read the metrics of {self.public_address}: GET /metrics returned HTTP "
                f"{status}",
            )
        return content.decode(errors="replace")

    def readiness(self) -> int:
        """Return the status of /-/ready: 200 when the exporter serves, 503 while it starts."""
        return self._exchange("GET", "/-/ready", None)[0]

    def _json(self, method: str, path: str, body: bytes | None, kind: type[Any] = dict) -> Any:
        status, content, retry_after_s = self._exchange(method, path, body)
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if 200 <= status < 300 and isinstance(answer, kind):
            return answer
        if isinstance(answer, dict) and "status" in answer:
            detail = " ".join(str(answer.get("detail") or answer.get("title")).split())
            if status == http.HTTPStatus.UNAUTHORIZED and self.token_file:
                detail = (
                    f"the exporter rejected the token in {self.token_file} ({TOKEN_FILE}): {detail}"
                )
            raise RejectedRequestError(status, detail, retry_after_s)
        raise RejectedRequestError(
            status,
            f"{self.public_address} is not a Wattline exporter: {method} {path} returned HTTP "
            f"{status}; "
            f"set the exporter's address with --exporter or {EXPORTER}",
            retry_after_s,
        )

    def _exchange(
        self, method: str, path: str, body: bytes | None
    ) -> tuple[int, bytes, float | None]:
        url = self._url()
        for attempt in range(1, _ATTEMPTS + 1):
            connection = _connection(url, self.timeout_s)
            try:
                connection.request(
                    method, _prefix(url) + path, body, _headers(url, self.token_file)
                )
                response = connection.getresponse()
                content = response.read()
                if url.scheme == "http" and expects_tls(response.status, content):
                    raise self._scheme_error("expects TLS", "https")
                return response.status, content, _retry_after_s(response)
            except (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected) as error:
                if attempt == _ATTEMPTS:
                    raise self._unreachable(error) from error
            except (OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from error
            finally:
                connection.close()
        raise AssertionError

    def _unreachable(self, error: Exception) -> ExporterError:
        if isinstance(error, PermissionError):
            reason = error.strerror or "Permission denied"
            return AccessDeniedError(
                f"cannot open {self.public_address}: {reason}; join the socket's group (see ls -l)"
            )
        if isinstance(error, ssl.SSLCertVerificationError):
            return AccessDeniedError(
                f"cannot verify the certificate of {self.public_address}: {error.verify_message}; "
                f"{_REMEDY_OF_CERTIFICATE.get(error.verify_code, 'renew it on that host')}"
            )
        if isinstance(error, ssl.SSLError) and speaks_plain_http(error):
            return self._scheme_error("has no TLS", "http")
        reason = _reason(error, is_plain=self._url().scheme == "http")
        return UnreachableError(f"cannot reach an exporter at {self.public_address}: {reason}")


def _reason(error: Exception, *, is_plain: bool) -> str:
    """Return why there is no answer; `is_plain` for an address without TLS."""
    if is_plain and isinstance(error, http.client.RemoteDisconnected):
        return "it closed the connection without an answer, as servers with TLS do on http://"
    if is_plain and isinstance(error, http.client.BadStatusLine):
        return "its answer is not HTTP, like that of servers with TLS on http://"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def speaks_plain_http(error: ssl.SSLError) -> bool:
    """Return True for the error of a TLS handshake with a server that answers without TLS."""
    # Python's own errors have no reason, only those of OpenSSL have
    return getattr(error, "reason", None) in _PLAIN_ANSWERS


def expects_tls(status: int, content: bytes) -> bool:
    """Return True for the response of servers such as nginx, and those in Go, to a request without
    TLS: `Client sent an HTTP request to an HTTPS server`.
    """
    return status == http.HTTPStatus.BAD_REQUEST and b"HTTPS " in content


def is_temporary(error: ExporterError | None) -> bool:
    """Return True if the same request may succeed later."""
    return isinstance(error, UnreachableError) or (
        isinstance(error, RejectedRequestError) and error.status in RETRIED
    )


# End of the present outage (monotonic seconds) by address; an exporter that answers has none.
_outages: dict[str, float] = {}


@dataclass(frozen=True)
class JobApi(Api):
    """Run API of a job, which does not wait again and again for an exporter that hangs.

    After a call without an answer in time, the calls of this process to the same address fail at
    once for ten seconds.
    """

    timeout_s: float = ANSWER_WITHIN_S
    is_persistent: bool = False
    """True for calls that are made during an outage, too."""

    @property
    def hangs(self) -> bool:
        return time.monotonic() < _outages.get(self.address, 0.0)

    @property
    def hang_error(self) -> ExporterError:
        return self._unreachable(TimeoutError("timed out"))

    def note_hang(self) -> None:
        _outages[self.address] = time.monotonic() + _OUTAGE_S

    def persistent(self, timeout_s: float) -> JobApi:
        """Return the API for a call that is also made during an outage, but then waits no longer
        than other calls.
        """
        timeout_s = min(timeout_s, self.timeout_s) if self.hangs else timeout_s
        return dataclasses.replace(self, timeout_s=timeout_s, is_persistent=True)

    def _exchange(
        self, method: str, path: str, body: bytes | None
    ) -> tuple[int, bytes, float | None]:
        if self.hangs and not self.is_persistent:
            raise self.hang_error
        try:
            answer = super()._exchange(method, path, body)
        except UnreachableError as error:
            if isinstance(error.__cause__, TimeoutError):
                self.note_hang()
            raise
        _outages.pop(self.address, None)
        return answer


def _retry_after_s(response: http.client.HTTPResponse) -> float | None:
    """Return the seconds of Retry-After; None without it, or with a date."""
    value = response.getheader("Retry-After", "")
    return float(value) if value.isdecimal() else None


def _connection(url: urllib.parse.SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    # http.client ignores http_proxy, which is often set on a cluster; the exporter is on this node.
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
    """Return the request headers; a token replaces the user name and password, since both use
    Authorization.
    """
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if token_file:
        headers["Authorization"] = f"Bearer {_token(token_file)}"
    elif url.username is not None:
        credentials = (
            f"{urllib.parse.unquote(url.username)}:{urllib.parse.unquote(url.password or '')}"
        )
        headers["Authorization"] = "Basic " + base64.b64encode(credentials.encode()).decode()
    return headers


def _token(file: str) -> str:
    """Return the token. It is read for each request, since the file may be replaced at any time."""
    remedy = f"set {TOKEN_FILE} to a file with the exporter's token"
    try:
        with Path(file).open("rb") as opened:
            token = opened.read(_MAX_TOKEN_BYTES + 1).decode("ascii").strip()
    except OSError as error:
        raise TokenError(f"cannot read {file}: {error.strerror or error}; {remedy}") from error
    except UnicodeDecodeError as error:
        raise TokenError(f"cannot use the token in {file}: it is not ASCII; {remedy}") from error
    if not token or not token.isprintable() or len(token) > _MAX_TOKEN_BYTES:
        cause = "expected one line of printable text" if token else "the file is empty"
        raise TokenError(f"cannot read {file}: {cause}; {remedy}")
    return token

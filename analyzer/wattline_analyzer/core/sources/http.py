"""HTTP sessions with servers of samples, and the errors of their requests."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http.client import RemoteDisconnected
from typing import TypeVar
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from wattline.client.api import expects_tls, speaks_plain_http
from wattline_analyzer.core.sources.base import Access, FetchError

CONNECTIONS = 8
"""Maximum number of requests to a server at the same time."""
_Result = TypeVar("_Result")
_Error = TypeVar("_Error", bound=BaseException)
PATHS = "for a VictoriaMetrics cluster …/select/0/prometheus, for Mimir …/prometheus"


class _Bearer(AuthBase):
    """Authentication by a bearer token, which has precedence over ~/.netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, r: requests.PreparedRequest) -> requests.PreparedRequest:
        r.headers["Authorization"] = f"Bearer {self._token}"
        return r


def http_session(access: Access) -> requests.Session:
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS, pool_block=True))
    session.headers.update(access.headers)
    if access.basic_auth:
        session.auth = access.basic_auth
    if access.bearer_token:
        session.auth = _Bearer(access.bearer_token)
    if access.ca_file:
        session.verify = str(access.ca_file)
    return session


def start_request(free: threading.Semaphore, request: Callable[[], _Result]) -> Future[_Result]:
    """Send a request in another thread, once `free` has a place; the thread does not keep the
    process alive.
    """
    future: Future[_Result] = Future()

    def answer() -> None:
        with free:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(request())
            except Exception as error:  # noqa: BLE001  # raised again by the thread that reads the result
                future.set_exception(error)

    threading.Thread(target=answer, daemon=True).start()
    return future


def server_name(address: str) -> str:
    """Return the address without credentials."""
    parts = urlsplit(address)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path.rstrip('/')}"


@contextmanager
def translate_errors(name: str, timeout_s: float) -> Iterator[None]:
    """Raise FetchError if the request inside fails without a response."""
    try:
        yield
    except requests.exceptions.SSLError as error:
        raise _tls_error(name, error) from error
    except requests.Timeout as error:
        raise FetchError(
            f"no response from {name} within {timeout_s:.0f} s",
            "check its load, and firewalls on the way",
        ) from error
    except requests.ConnectionError as error:
        if name.startswith("http://") and _cause(error, RemoteDisconnected):
            raise FetchError(
                f"no response from {name}: it closed the connection, as servers with TLS do on "
                "http://",
                "use https:// in --source if it has TLS, else check that it is running",
            ) from error
        raise FetchError(
            f"cannot connect to {name}", "check that it is running, and the address in --source"
        ) from error
    except (requests.RequestException, ValueError) as error:
        raise FetchError(
            f"cannot read from {name}: {error}", "check the address in --source"
        ) from error


def _tls_error(name: str, error: requests.exceptions.SSLError) -> FetchError:
    """Return the error of a TLS handshake that failed."""
    cause = _cause(error, ssl.SSLError)
    if cause is None or isinstance(cause, ssl.SSLCertVerificationError):
        return FetchError(
            f"cannot connect to {name}: its TLS certificate is not trusted",
            "give --ca-file the authority that signed it",
        )
    if speaks_plain_http(cause):
        return FetchError(
            f"cannot connect to {name}: the server there has no TLS", "use http:// in --source"
        )
    return FetchError(
        f"cannot connect to {name}: the TLS handshake failed: {cause.strerror or cause}",
        "check the TLS settings of that server",
    )


def _cause(error: BaseException, kind: type[_Error]) -> _Error | None:
    """Return the error of this kind that requests and urllib3 have wrapped, None without one."""
    pending = [error]
    while pending:
        each = pending.pop()
        if isinstance(each, kind):
            return each
        wrapped = (*each.args, getattr(each, "reason", None), each.__cause__)
        pending += [one for one in wrapped if isinstance(one, BaseException)]
    return None


def access_denied(name: str, response: requests.Response) -> FetchError:
    """Return the error of a response with 401 or 403."""
    cause = f"{name} denied access (HTTP {response.status_code})"
    if "no org id" in response.text.lower():
        return FetchError(f"{cause}: it requires a tenant", "give --header 'X-Scope-OrgID: TENANT'")
    return FetchError(
        cause, "give --basic-auth USER:PASSWORD-FILE, --bearer-token-file or --header"
    )


def not_json(name: str, response: requests.Response) -> FetchError:
    """Return the error of a response that is not Prometheus's JSON."""
    if response.status_code == 429 or response.status_code >= 500:
        return FetchError(
            f"{name} returned HTTP {response.status_code} {response.reason or ''}".rstrip(),
            "it is overloaded or failing; try again later, and see its log",
        )
    if name.startswith("http://") and expects_tls(response.status_code, response.content):
        return FetchError(f"{name} expects TLS", "use https:// in --source")
    kind = response.headers.get("Content-Type", "nothing").partition(";")[0]
    return FetchError(
        f"{name} returned HTTP {response.status_code} with {kind} instead of Prometheus's JSON",
        f"check the path of --source: {PATHS}",
    )

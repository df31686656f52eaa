"""Access control of HTTP requests: Host header, certificate, password and token.

The Host header is checked against DNS rebinding, https://en.wikipedia.org/wiki/DNS_rebinding.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Iterable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from wattline_exporter.web.authentication import (
    ApiToken,
    PasswordChecker,
    PasswordQueueFullError,
    is_bearer,
    parse_basic_credentials,
)
from wattline_exporter.web.documents import problem_response
from wattline_exporter.web.listener import BoundedConnection
from wattline_exporter.web.tls import alternative_names
from wattline_exporter.web.web_config import LiveWebConfig, WebConfig

_LOOPBACK = ("localhost", "localhost.localdomain", "ip6-localhost")
_HOST = re.compile(r"^(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:@/?#\s]+))(?::\d{1,5})?$")


def is_loopback(host: str) -> bool:
    if host.lower() in _LOOPBACK:
        return True
    address = parse_address(host)
    return address is not None and address.is_loopback


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def parse_host(header: str) -> str | None:
    """Return the name or address in a Host header without the port; None if the header is
    invalid.
    """
    match = _HOST.match(header)
    return (match[1] or match[2]).lower().rstrip(".") if match else None


class HostNames:
    """Accepted Host headers: loopback, the listen address, the host's names and those of
    `--web.allowed-host`.
    """

    def __init__(self, listens_on: str, allowed: Iterable[str] = ()) -> None:
        names = (listens_on, socket.gethostname(), *allowed)
        self._names = {*_LOOPBACK, *(name.lower().rstrip(".") for name in names if name)}
        # In a thread: without a network the resolver may take a minute.
        threading.Thread(target=self._add_full_name, name="hostname", daemon=True).start()

    def _add_full_name(self) -> None:
        self._names.add(socket.getfqdn().lower().rstrip("."))

    def accept(self, header: str, local_address: str) -> bool:
        host = parse_host(header)
        if host is None:
            return False
        if host in self._names:
            return True
        address = parse_address(host)
        return address is not None and (
            address.is_loopback or address == parse_address(local_address)
        )


RUNS = "/api/v1/runs"
TRACES = "/v1/traces"
_CHALLENGE = "WWW-Authenticate"
_REALM = 'realm="wattline", charset="UTF-8"'
_AUTHORIZE = (
    "send the token of the exporter's --web.api-token-file (workloads: WATTLINE_TOKEN_FILE=FILE)"
)
_SOCKET_REMEDY = "use the Unix socket: WATTLINE_EXPORTER=unix://{}"
_WRONG_TOKEN = f"invalid bearer token; {_AUTHORIZE}"
_NO_AUTHENTICATION = (
    "run API disabled over TCP: the exporter listens on a non-loopback address without "
    "authentication; set "
    "--web.api-socket PATH, --web.api-token-file FILE, or basic_auth_users in --web.config.file"
)


class AccessPolicy:
    """Rules for requests; `listens_on` is the host of the TCP listener, `api_socket` the Unix
    socket's path, if any.
    """

    def __init__(
        self,
        *,
        listens_on: str,
        hosts: HostNames,
        config: LiveWebConfig,
        token: ApiToken | None,
        api_socket: str | None,
    ) -> None:
        self.config = config
        self._hosts = hosts
        self._token = token
        self._api_socket = api_socket
        self._loopback = is_loopback(listens_on)
        self._passwords = PasswordChecker()

    def warnings(self) -> list[str]:
        """Return messages to be logged at the start."""
        lines = [f"--web.config.file: {warning}" for warning in self.config.now().warnings]
        reason = self._disabled_reason(self.config.now())
        if reason and not self._api_socket:
            lines.append(reason)
        return lines

    def close(self) -> None:
        self._passwords.close()

    async def refusal(self, request: web.Request) -> web.Response | None:
        """Return the error response, None for an accepted request."""
        if request.transport is None or is_unix(request.transport):
            return None
        config = self.config.now()
        authorization = request.headers.get("Authorization", "")
        has_token = self._token is not None and self._token.accepts(authorization)
        refused = self._check_host(request) or _check_certificate(request, config)
        if refused is None and config.users and not has_token:
            refused = await self._check_password(config, authorization)
        if refused is None and request.method not in ("GET", "HEAD") and _is_run_api(request.path):
            refused = self._check_run_api(config, authorization, has_token=has_token)
        return refused

    def _check_host(self, request: web.Request) -> web.Response | None:
        headers = request.headers.getall("Host", [])
        if len(headers) != 1:
            return problem_response(400, f"expected one Host header, found {len(headers)}")
        local = (request.get_extra_info("sockname") or ("",))[0]
        if self._hosts.accept(headers[0], local):
            return None
        return problem_response(
            421,
            f"unknown Host header {headers[0][:100]!r}; use the exporter's address, or start it "
            "with "
            "--web.allowed-host NAME",
        )

    async def _check_password(self, config: WebConfig, authorization: str) -> web.Response | None:
        credentials = parse_basic_credentials(authorization)
        try:
            if credentials and await self._passwords.accepts(dict(config.users), *credentials):
                return None
        except PasswordQueueFullError:
            return problem_response(
                503, "too many pending password checks; try again in a second", {"Retry-After": "1"}
            )
        detail = (
            "wrong user or password" if credentials else "user and password required (basic auth)"
        )
        if is_bearer(authorization):
            detail = (
                f"{_WRONG_TOKEN}, or user and password (basic auth)"
                if self._token
                else "bearer tokens are not accepted; send user and password (basic auth)"
            )
        return problem_response(
            401,
            f"{detail}; users are in the exporter's --web.config.file",
            {_CHALLENGE: f"Basic {_REALM}"},
        )

    def _check_run_api(
        self, config: WebConfig, authorization: str, *, has_token: bool
    ) -> web.Response | None:
        """Return the error response to a change of runs over TCP, None if it is accepted."""
        reason = self._disabled_reason(config)
        if reason:
            return problem_response(403, reason)
        if self._token is not None and not has_token:
            detail = (
                _WRONG_TOKEN if is_bearer(authorization) else f"bearer token required; {_AUTHORIZE}"
            )
            return problem_response(401, detail, {_CHALLENGE: f"Bearer {_REALM}"})
        return None

    def _disabled_reason(self, config: WebConfig) -> str:
        """Return the reason why the run API is disabled over TCP; empty if it is enabled."""
        if self._token is not None:
            return ""
        if self._api_socket:
            return f"run API disabled over TCP; {_SOCKET_REMEDY.format(self._api_socket)}"
        return "" if self._loopback or config.requires_authentication else _NO_AUTHENTICATION


def _check_certificate(request: web.Request, config: WebConfig) -> web.Response | None:
    allowed = config.tls.client_allowed_sans if config.tls else None
    if allowed is None:
        return None
    names = alternative_names(request.get_extra_info("peercert"))
    if not names.isdisjoint(allowed):
        return None
    return problem_response(
        403,
        f"client certificate for {', '.join(sorted(names))[:200] or 'no name'} not accepted; add a "
        "name to "
        "client_allowed_sans in the exporter's --web.config.file",
    )


def _is_run_api(path: str) -> bool:
    return path in (RUNS, TRACES) or path.startswith(f"{RUNS}/")


def is_unix(transport: object) -> bool:
    sock = getattr(transport, "get_extra_info", lambda _: None)("socket")
    return sock is not None and sock.family == socket.AF_UNIX


def access_middleware(guard: AccessPolicy) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = connection_of(request)
        if connection:
            connection.start_request()
        try:
            response = await guard.refusal(request) or await handler(request)
        finally:
            if connection:
                connection.end_request()
        for name, value in guard.config.now().headers:
            response.headers[name] = value
        return response

    return guarded


def connection_of(request: web.Request) -> BoundedConnection | None:
    """Return the request's bounded connection, None under a server of the tests."""
    transport = request.transport
    protocol = transport.get_protocol() if transport is not None else None
    return protocol if isinstance(protocol, BoundedConnection) else None

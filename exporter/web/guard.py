"""Who may do what, before any route is reached: by the socket, the Host header, certificate, password and token."""

from __future__ import annotations

import socket

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from exporter.web.auth import BusyError, Passwords, Token, basic_credentials, is_bearer
from exporter.web.config import LiveWebConfig, WebConfig
from exporter.web.hosts import Hosts, is_loopback
from exporter.web.listener import BoundedConnection
from exporter.web.problem import problem
from exporter.web.tls import names_of

RUNS = "/api/v1/runs"
_CHALLENGE = "WWW-Authenticate"
_REALM = 'realm="wattline", charset="UTF-8"'
_ASK_TOKEN = "send that of the exporter's --web.api-token-file (workloads: WATTLINE_TOKEN_FILE=FILE)"  # noqa: S105  # a sentence
_ASK_SOCKET = "tag runs through the Unix socket: WATTLINE_EXPORTER=unix://{}"
_WRONG_TOKEN = f"the bearer token is not the exporter's; {_ASK_TOKEN}"
_ASK_ANYTHING = (
    "this exporter listens beyond loopback and cannot tell who asks, so it takes no runs over TCP; start it with "
    "--web.api-socket PATH or --web.api-token-file FILE, or with basic auth in --web.config.file"
)


class Guard:
    """`listens_on` is the host of the TCP listener, `api_socket` the path of the Unix socket where there is one."""

    def __init__(
        self, *, listens_on: str, hosts: Hosts, config: LiveWebConfig, token: Token | None, api_socket: str | None
    ) -> None:
        self.config = config
        self._hosts = hosts
        self._token = token
        self._api_socket = api_socket
        self._loopback = is_loopback(listens_on)
        self._passwords = Passwords()

    def warnings(self) -> list[str]:
        """To be said at the start."""
        found = [f"--web.config.file: {remark}" for remark in self.config.now().remarks]
        reason = self._closed(self.config.now())
        if reason and not self._api_socket:
            found.append(reason)
        return found

    def close(self) -> None:
        self._passwords.close()

    async def refusal(self, request: web.Request) -> web.Response | None:
        """None where the request may go on."""
        if request.transport is None or is_unix(request.transport):
            return None
        config = self.config.now()
        authorization = request.headers.get("Authorization", "")
        has_token = self._token is not None and self._token.accepts(authorization)
        refused = self._host(request) or _certificate(request, config)
        if refused is None and config.users and not has_token:
            refused = await self._password(config, authorization)
        if refused is None and request.method not in ("GET", "HEAD") and _is_of_runs(request.path):
            refused = self._tagging(config, authorization, has_token=has_token)
        return refused

    def _host(self, request: web.Request) -> web.Response | None:
        given = request.headers.getall("Host", [])
        if len(given) != 1:
            return problem(400, f"send one Host header, not {len(given)}")
        local = (request.get_extra_info("sockname") or ("",))[0]
        if self._hosts.accept(given[0], local):
            return None
        return problem(
            421,
            f"{given[0][:100]!r} is no name of this exporter; ask for it by its address, or start it with "
            "--web.allowed-host NAME",
        )

    async def _password(self, config: WebConfig, authorization: str) -> web.Response | None:
        credentials = basic_credentials(authorization)
        try:
            if credentials and await self._passwords.accepts(dict(config.users), *credentials):
                return None
        except BusyError:
            return problem(503, "too many passwords are being checked; try again in a second", {"Retry-After": "1"})
        detail = "user and password are wrong" if credentials else "send user and password (basic auth)"
        if is_bearer(authorization):
            detail = (
                f"{_WRONG_TOKEN}, or user and password (basic auth)"
                if self._token
                else "this exporter takes no bearer token; send user and password (basic auth)"
            )
        return problem(401, f"{detail}; they are in the exporter's --web.config.file", {_CHALLENGE: f"Basic {_REALM}"})

    def _tagging(self, config: WebConfig, authorization: str, *, has_token: bool) -> web.Response | None:
        """Whether what changes a run may come over TCP."""
        reason = self._closed(config)
        if reason:
            return problem(403, reason)
        if self._token is not None and not has_token:
            detail = _WRONG_TOKEN if is_bearer(authorization) else f"no bearer token came; {_ASK_TOKEN}"
            return problem(401, detail, {_CHALLENGE: f"Bearer {_REALM}"})
        return None

    def _closed(self, config: WebConfig) -> str:
        """Why nobody may change runs over TCP; empty where some may."""
        if self._token is not None:
            return ""
        if self._api_socket:
            return f"this exporter takes no runs over TCP; {_ASK_SOCKET.format(self._api_socket)}"
        return "" if self._loopback or config.guarded else _ASK_ANYTHING


def _certificate(request: web.Request, config: WebConfig) -> web.Response | None:
    allowed = config.tls.client_allowed_sans if config.tls else None
    if allowed is None:
        return None
    shown = names_of(request.get_extra_info("peercert"))
    if not shown.isdisjoint(allowed):
        return None
    return problem(
        403,
        f"the certificate is for {', '.join(sorted(shown))[:200] or 'no name'}, none of which is in "
        "client_allowed_sans of the exporter's --web.config.file",
    )


def _is_of_runs(path: str) -> bool:
    return path == RUNS or path.startswith(f"{RUNS}/")


def is_unix(transport: object) -> bool:
    found = getattr(transport, "get_extra_info", lambda _: None)("socket")
    return found is not None and found.family == socket.AF_UNIX


def middleware(guard: Guard) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = connection_of(request)
        if connection:
            connection.begin()
        try:
            response = await guard.refusal(request) or await handler(request)
        finally:
            if connection:
                connection.end()
        for name, value in guard.config.now().headers:
            response.headers[name] = value
        return response

    return guarded


def connection_of(request: web.Request) -> BoundedConnection | None:
    """The bounded connection by which the request came; None under another server than ours."""
    transport = request.transport
    protocol = transport.get_protocol() if transport is not None else None
    return protocol if isinstance(protocol, BoundedConnection) else None

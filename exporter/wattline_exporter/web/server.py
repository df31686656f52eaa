"""HTTP server of the daemon: configuration, listening sockets and shutdown."""

from __future__ import annotations

import asyncio
import errno
import grp
import logging
import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from wattline_exporter.config.reloadable_file import ConfigFileError
from wattline_exporter.config.settings import DEFAULT_SOCKET_MODE, Settings
from wattline_exporter.config.values import OperationError, UsageError
from wattline_exporter.web.access import AccessPolicy, HostNames
from wattline_exporter.web.authentication import ApiToken
from wattline_exporter.web.listener import BoundedListener, ConnectionLimits, HttpConnection
from wattline_exporter.web.web_config import LiveWebConfig

MAX_UNIX_PATH = 107
"""Size of the kernel's sockaddr_un without the final NUL."""
BACKLOG = 128


async def listen_tcp(settings: Settings) -> list[socket.socket]:
    """Return one socket per address of the host. Raises UsageError and OperationError."""
    host, port = settings.address()
    sockets: list[socket.socket] = []
    failed: OSError | None = None
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise OperationError(_cannot_listen(settings.listen_address, port, error)) from error
    for family, _, _, _, address in dict.fromkeys(addresses):
        try:
            sockets.append(_bind(family, address))
        except OSError as error:
            failed = error
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # a host without IPv6
                break
    if sockets and (failed is None or failed.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)):
        return sockets
    for each in sockets:
        each.close()
    assert failed
    raise OperationError(_cannot_listen(settings.listen_address, port, failed)) from failed


def _bind(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _cannot_listen(address: str, port: int, error: OSError) -> str:
    stop = (
        f"stop the process that listens there (ss -ltnp 'sport = :{port}'), or "
        if error.errno == errno.EADDRINUSE
        else ""
    )
    return (
        f"cannot listen on {address}: {error.strerror or error}; {stop}choose another "
        "--web.listen-address"
    )


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: Path
    mode: int
    group: int | None

    @property
    def url(self) -> str:
        return f"unix://{self.path}"


def unix_address(settings: Settings) -> UnixAddress | None:
    """Return the configured Unix socket, if any. Raises UsageError."""
    if settings.api_socket is None:
        return None
    path = Path(os.path.abspath(settings.api_socket))  # noqa: PTH100  # links are kept
    if len(os.fsencode(path)) > MAX_UNIX_PATH:
        raise UsageError(
            f"--web.api-socket: {path} has {len(os.fsencode(path))} bytes, the limit is "
            f"{MAX_UNIX_PATH}; "
            "use a shorter path, such as /run/wattline/api.sock"
        )
    text = DEFAULT_SOCKET_MODE if settings.api_socket_mode is None else settings.api_socket_mode
    if not text or set(text) - set("01234567") or int(text, 8) > 0o777:
        raise UsageError(
            f"--web.api-socket-mode: expected an octal file mode such as 0660, not {text!r}"
        )
    return UnixAddress(path, int(text, 8), _group(settings.api_socket_group))


def _group(name: str | None) -> int | None:
    if name is None:
        return None
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise UsageError(
            f"--web.api-socket-group: unknown group {name!r}; see: getent group"
        ) from error


def listen_unix(address: UnixAddress) -> socket.socket:
    """Return the socket, listening once its group and mode are set. Raises OperationError."""
    _remove_stale_socket(address.path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        sock.bind(str(address.path))
        if address.group is not None:
            os.chown(address.path, -1, address.group)
        address.path.chmod(address.mode)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise OperationError(_cannot_create(address, error)) from error
    finally:
        os.umask(before)
    return sock


def _cannot_create(address: UnixAddress, error: OSError) -> str:
    remedy = {
        errno.ENOENT: f"create the folder {address.path.parent} (systemd: RuntimeDirectory=)",
        errno.EPERM: "the exporter's user must be a member of --web.api-socket-group",
    }.get(error.errno or 0, "use another path, in a folder that the exporter's user may write to")
    return f"--web.api-socket {address.path}: {error.strerror}; {remedy}"


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket of an exporter that has ended. Raises OperationError if one still
    listens.
    """
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return
    if not is_socket:
        raise OperationError(
            f"--web.api-socket {path}: a file exists that is not a socket; move it away"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(1.0)
            probe.connect(str(path))
        except ConnectionRefusedError:
            with suppress(OSError):
                path.unlink()
            return
        except OSError as error:
            raise OperationError(
                f"--web.api-socket {path}: {error}; remove it, or use another path"
            ) from error
    raise OperationError(
        f"--web.api-socket {path}: a running exporter listens there; stop it, or use another path"
    )


SHUTDOWN_TIMEOUT_S = 5.0
MAX_LINE_BYTES = 8190
MAX_HEADER_BYTES = 8190
MAX_HEADERS = 64
LINGER_S = 2.0

log = logging.getLogger(__name__)
_http_log = logging.getLogger("exporter.http")


class WebServer:
    """Server of the configured addresses. The constructor raises UsageError for invalid
    settings.
    """

    def __init__(self, settings: Settings, limits: ConnectionLimits | None = None) -> None:
        host, _ = settings.address()
        self._settings = settings
        self._limits = limits or ConnectionLimits()
        self._unix = unix_address(settings)
        try:
            self.config = LiveWebConfig(settings.web_config)
            token = ApiToken(settings.api_token_file) if settings.api_token_file else None
        except ConfigFileError as error:
            raise UsageError(str(error)) from error
        self.access = AccessPolicy(
            listens_on=host,
            hosts=HostNames(host, settings.allowed_hosts),
            config=self.config,
            token=token,
            api_socket=str(self._unix.path) if self._unix else None,
        )
        self._runner: web.AppRunner | None = None
        self._listeners: list[BoundedListener] = []
        self._socket_inode: tuple[Path, int] | None = None

    async def start(self, application: web.Application) -> str:
        """Start listening and return the URL. Raises OperationError."""
        tcp = await listen_tcp(self._settings)
        self._listeners = [self._listener(each, tls=True) for each in tcp]
        if self._unix:
            self._listeners.append(self._listener(listen_unix(self._unix), tls=False))
            self._socket_inode = (self._unix.path, self._unix.path.lstat().st_ino)
            log.info("run API on %s, mode %04o", self._unix.url, self._unix.mode)
        self._runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S
        )
        await self._runner.setup()
        _http_log.filters[:] = [_is_server_error]
        for listener in self._listeners:
            listener.start()
        for warning in self.access.warnings():
            log.warning("%s", warning)
        return self._url(tcp[0])

    def _listener(self, listening: socket.socket, *, tls: bool) -> BoundedListener:
        return BoundedListener(
            listening,
            self._protocol,
            tls=self.config.ssl_context() if tls else None,
            limits=self._limits,
        )

    def _protocol(self) -> asyncio.Protocol:
        assert self._runner
        assert self._runner.server
        return HttpConnection(
            self._runner.server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # as aiohttp's own runner has it: none
            logger=_http_log,
            keepalive_timeout=self._limits.idle_s,
            lingering_time=LINGER_S,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
            auto_decompress=False,
        )

    def _url(self, listening: socket.socket) -> str:
        host = self._settings.address()[0]
        port = listening.getsockname()[1]
        scheme = "https" if self.config.now().tls else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def close(self) -> None:
        for listener in self._listeners:
            await listener.close()
        if self._socket_inode:
            _unlink(*self._socket_inode)
        if self._runner:
            await self._runner.cleanup()
        for listener in self._listeners:
            await listener.abort()
        self.access.close()


def _unlink(path: Path, inode: int) -> None:
    """Remove the socket unless another exporter has replaced it."""
    with suppress(OSError):
        if os.lstat(path).st_ino == inode:
            path.unlink()


def _is_server_error(record: logging.LogRecord) -> bool:
    """Return False for invalid requests and disconnections of clients, which could fill the log."""
    return not (
        record.exc_info and isinstance(record.exc_info[1], HttpProcessingError | ConnectionError)
    )

"""HTTP server of the daemon: configuration, listeners and shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from exporter.config.reloadable_file import ConfigFileError
from exporter.config.settings import Settings, UsageError
from exporter.web.access import AccessPolicy, HostNames
from exporter.web.authentication import ApiToken
from exporter.web.listener import BoundedListener, ConnectionLimits, HttpConnection
from exporter.web.sockets import listen_tcp, listen_unix, unix_address
from exporter.web.web_config import LiveWebConfig

SHUTDOWN_TIMEOUT_S = 5.0
MAX_LINE_BYTES = 8190
MAX_HEADER_BYTES = 8190
MAX_HEADERS = 64
LINGER_S = 2.0

log = logging.getLogger(__name__)
_http_log = logging.getLogger("exporter.http")


class WebServer:
    """Server of the configured addresses. The constructor raises UsageError for invalid settings."""

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
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
        await self._runner.setup()
        _http_log.filters[:] = [_is_server_error]
        for listener in self._listeners:
            listener.start()
        for warning in self.access.warnings():
            log.warning("%s", warning)
        return self._url(tcp[0])

    def _listener(self, listening: socket.socket, *, tls: bool) -> BoundedListener:
        return BoundedListener(
            listening, self._protocol, tls=self.config.ssl_context() if tls else None, limits=self._limits
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
        host, port = self._settings.address()[0], listening.getsockname()[1]
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
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError | ConnectionError))

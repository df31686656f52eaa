"""The HTTP side of a daemon: configuration checked before the start, listeners, and their end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from exporter.settings import Settings, UsageError
from exporter.web.auth import Token
from exporter.web.config import LiveWebConfig
from exporter.web.connection import Connection
from exporter.web.guard import Guard
from exporter.web.hosts import Hosts
from exporter.web.listener import Bounds, Listener
from exporter.web.reloaded import FileError
from exporter.web.sockets import listen_tcp, listen_unix, unix_address

CLOSE_WITHIN_S = 5.0
MAX_LINE_BYTES = 8190
MAX_HEADER_BYTES = 8190
MAX_HEADERS = 64
LINGER_S = 2.0

log = logging.getLogger(__name__)
_http_log = logging.getLogger("exporter.http")


class WebServer:
    """Raises UsageError for settings that cannot be, before anything listens."""

    def __init__(self, settings: Settings, bounds: Bounds | None = None) -> None:
        host, _ = settings.address()
        self._settings = settings
        self._bounds = bounds or Bounds()
        self._unix = unix_address(settings)
        try:
            self.config = LiveWebConfig(settings.web_config)
            token = Token(settings.api_token_file) if settings.api_token_file else None
        except FileError as error:
            raise UsageError(str(error)) from error
        self.guard = Guard(
            listens_on=host,
            hosts=Hosts(host, settings.allowed_hosts),
            config=self.config,
            token=token,
            api_socket=str(self._unix.path) if self._unix else None,
        )
        self._runner: web.AppRunner | None = None
        self._listeners: list[Listener] = []
        self._made: tuple[Path, int] | None = None

    async def start(self, application: web.Application) -> str:
        """The address that it serves on. Raises OperationError."""
        tcp = await listen_tcp(self._settings)
        self._listeners = [self._listener(each, tls=True) for each in tcp]
        if self._unix:
            self._listeners.append(self._listener(listen_unix(self._unix), tls=False))
            self._made = (self._unix.path, self._unix.path.lstat().st_ino)
            log.info("run API on %s, mode %04o", self._unix.url, self._unix.mode)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=CLOSE_WITHIN_S)
        await self._runner.setup()
        _http_log.filters[:] = [_is_ours]
        for listener in self._listeners:
            listener.start()
        for warning in self.guard.warnings():
            log.warning("%s", warning)
        return self._url(tcp[0])

    def _listener(self, listening: socket.socket, *, tls: bool) -> Listener:
        return Listener(listening, self._protocol, tls=self.config.ssl_context() if tls else None, bounds=self._bounds)

    def _protocol(self) -> asyncio.Protocol:
        assert self._runner
        assert self._runner.server
        return Connection(
            self._runner.server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # as aiohttp's own runner has it: none
            logger=_http_log,
            keepalive_timeout=self._bounds.idle_s,
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
        if self._made:
            _unlink(*self._made)
        if self._runner:
            await self._runner.cleanup()
        for listener in self._listeners:
            await listener.cut_off()
        self.guard.close()


def _unlink(path: Path, inode: int) -> None:
    """Of our own socket only: another exporter may have put one there meanwhile."""
    with suppress(OSError):
        if os.lstat(path).st_ino == inode:
            path.unlink()


def _is_ours(record: logging.LogRecord) -> bool:
    """What a client sends that is no HTTP is answered with 400, and some go away; in the log it would fill the disk."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError | ConnectionError))

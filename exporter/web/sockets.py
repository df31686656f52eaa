"""Listening sockets: TCP, and a Unix socket with file permissions."""

from __future__ import annotations

import asyncio
import errno
import grp
import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from exporter.config.settings import DEFAULT_SOCKET_MODE, OperationError, Settings, UsageError

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
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _cannot_listen(address: str, port: int, error: OSError) -> str:
    stop = (
        f"stop the process that listens there (ss -ltnp 'sport = :{port}'), or "
        if error.errno == errno.EADDRINUSE
        else ""
    )
    return f"cannot listen on {address}: {error.strerror or error}; {stop}choose another --web.listen-address"


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
            f"--web.api-socket: {path} has {len(os.fsencode(path))} bytes, the limit is {MAX_UNIX_PATH}; "
            "use a shorter path, such as /run/wattline/api.sock"
        )
    text = DEFAULT_SOCKET_MODE if settings.api_socket_mode is None else settings.api_socket_mode
    if not text or set(text) - set("01234567") or int(text, 8) > 0o777:
        raise UsageError(f"--web.api-socket-mode: expected an octal file mode such as 0660, not {text!r}")
    return UnixAddress(path, int(text, 8), _group(settings.api_socket_group))


def _group(name: str | None) -> int | None:
    if name is None:
        return None
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise UsageError(f"--web.api-socket-group: unknown group {name!r}; see: getent group") from error


def listen_unix(address: UnixAddress) -> socket.socket:
    """Return the socket, listening once its group and mode are set. Raises OperationError."""
    _remove_stale_socket(address.path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        made.bind(str(address.path))
        if address.group is not None:
            os.chown(address.path, -1, address.group)
        address.path.chmod(address.mode)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise OperationError(_cannot_create(address, error)) from error
    finally:
        os.umask(before)
    return made


def _cannot_create(address: UnixAddress, error: OSError) -> str:
    remedy = {
        errno.ENOENT: f"create the folder {address.path.parent} (systemd: RuntimeDirectory=)",
        errno.EPERM: "the exporter's user must be a member of --web.api-socket-group",
    }.get(error.errno or 0, "use another path, in a folder that the exporter's user may write to")
    return f"--web.api-socket {address.path}: {error.strerror}; {remedy}"


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket of an exporter that has ended. Raises OperationError if one still listens."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return
    if not is_socket:
        raise OperationError(f"--web.api-socket {path}: a file exists that is not a socket; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(1.0)
            probe.connect(str(path))
        except ConnectionRefusedError:
            with suppress(OSError):
                path.unlink()
            return
        except OSError as error:
            raise OperationError(f"--web.api-socket {path}: {error}; remove it, or use another path") from error
    raise OperationError(f"--web.api-socket {path}: a running exporter listens there; stop it, or use another path")

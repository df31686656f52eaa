"""The sockets that the exporter listens on: TCP, and a Unix socket whose file permissions say who may come."""

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

from exporter.settings import DEFAULT_SOCKET_MODE, OperationError, Settings, UsageError

MAX_UNIX_PATH = 107
"""The kernel's sockaddr_un, less the NUL at its end."""
BACKLOG = 128


async def listen_tcp(settings: Settings) -> list[socket.socket]:
    """One for each address of the host. Raises UsageError and OperationError."""
    host, port = settings.address()
    made: list[socket.socket] = []
    failed: OSError | None = None
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise OperationError(_cannot_listen(settings.listen_address, port, error)) from error
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            made.append(_bound(family, address))
        except OSError as error:
            failed = error
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # a machine without IPv6
                break
    if made and (failed is None or failed.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)):
        return made
    for each in made:
        each.close()
    assert failed
    raise OperationError(_cannot_listen(settings.listen_address, port, failed)) from failed


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
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
    stop = f"stop what listens there (ss -ltnp 'sport = :{port}'), or " if error.errno == errno.EADDRINUSE else ""
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
    """Raises UsageError."""
    if settings.api_socket is None:
        return None
    path = Path(os.path.abspath(settings.api_socket))  # noqa: PTH100  # links stay as the user names them
    if len(os.fsencode(path)) > MAX_UNIX_PATH:
        raise UsageError(
            f"--web.api-socket: a path has at most {MAX_UNIX_PATH} bytes, {path} has {len(os.fsencode(path))}; "
            "choose a shorter one, such as /run/wattline/api.sock"
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
        raise UsageError(f"--web.api-socket-group: there is no group {name!r}; getent group lists them") from error


def listen_unix(address: UnixAddress) -> socket.socket:
    """It takes connections only once owner and mode are as wished. Raises OperationError."""
    _clear(address.path)
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
        raise OperationError(_cannot_make(address, error)) from error
    finally:
        os.umask(before)
    return made


def _cannot_make(address: UnixAddress, error: OSError) -> str:
    remedy = {
        errno.ENOENT: f"make the folder {address.path.parent} (systemd: RuntimeDirectory=)",
        errno.EPERM: "the exporter's user must be a member of --web.api-socket-group",
    }.get(error.errno or 0, "choose another path, in a folder that the exporter's user may write")
    return f"--web.api-socket {address.path}: {error.strerror}; {remedy}"


def _clear(path: Path) -> None:
    """Takes away the socket that a dead exporter left. Raises OperationError for one that is alive."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return
    if not is_socket:
        raise OperationError(f"--web.api-socket {path}: there is a file that is no socket; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(1.0)
            probe.connect(str(path))
        except ConnectionRefusedError:
            with suppress(OSError):
                path.unlink()
            return
        except OSError as error:
            raise OperationError(f"--web.api-socket {path}: {error}; remove it, or choose another path") from error
    raise OperationError(f"--web.api-socket {path}: a running exporter serves there; stop it or choose another path")

"""What `exporter check` says of the web configuration; nothing is listened on for it."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from exporter.settings import Settings, UsageError
from exporter.web.auth import Token
from exporter.web.config import load
from exporter.web.hosts import is_loopback
from exporter.web.reloaded import FileError
from exporter.web.sockets import unix_address

PRIVILEGED = 1024


def web_state(settings: Settings) -> str:
    """Whether it would serve, to whom, and which capability it takes."""
    try:
        host, port = settings.address()
        unix = unix_address(settings)
        config = load(settings.web_config) if settings.web_config else None
        if settings.api_token_file:
            Token(settings.api_token_file)
    except (FileError, UsageError) as error:
        return f"fails: {error}"
    if unix and not os.access(unix.path.parent, os.W_OK):
        return f"fails: --web.api-socket: no folder {unix.path.parent} that this user may write; make it"
    scheme = "https" if config and config.tls else "http"
    asks = [
        *(["basic auth"] if config and config.users else []),
        *(["client certificates"] if config and config.tls and config.tls.verify == ssl.CERT_REQUIRED else []),
    ]
    capability = (
        f"CAP_NET_BIND_SERVICE is needed for port {port}" if 0 < port < _first_free() else "no capability is needed"
    )
    return (
        f"works: {scheme} on {settings.listen_address}, {' and '.join(asks) or 'open to who reaches it'}; "
        f"runs: {_tagging(settings, guarded=bool(config and config.guarded), loopback=is_loopback(host))}; {capability}"
    )


def _tagging(settings: Settings, *, guarded: bool, loopback: bool) -> str:
    ways = [f"unix://{settings.api_socket}"] if settings.api_socket else []
    if settings.api_token_file:
        ways.append("TCP with the token")
    if ways:
        return " and ".join(ways)
    if guarded or loopback:
        return "TCP"
    return "refused over TCP beyond loopback (--web.api-socket, --web.api-token-file or basic auth let them in)"


def _first_free() -> int:
    """The first port that any user may listen on."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    except (OSError, ValueError):
        return PRIVILEGED

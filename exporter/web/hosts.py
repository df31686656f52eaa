"""Which names a request may be for: a page in a browser must not reach the exporter under a name of its own.

https://en.wikipedia.org/wiki/DNS_rebinding
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Iterable

_LOOPBACK = ("localhost", "localhost.localdomain", "ip6-localhost")
_HOST = re.compile(r"^(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:@/?#\s]+))(?::\d{1,5})?$")


def is_loopback(host: str) -> bool:
    if host.lower() in _LOOPBACK:
        return True
    address = as_address(host)
    return address is not None and address.is_loopback


def as_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def host_of(header: str) -> str | None:
    """The name or address in a Host header, without the port; None where it is no host."""
    found = _HOST.match(header)
    return (found[1] or found[2]).lower().rstrip(".") if found else None


class Hosts:
    """Loopback, the listen address, this machine's names and those that are named by `--web.allowed-host`."""

    def __init__(self, listens_on: str, allowed: Iterable[str] = ()) -> None:
        own = (listens_on, socket.gethostname(), *allowed)
        self._names = {*_LOOPBACK, *(name.lower().rstrip(".") for name in own if name)}
        # The resolver may take a minute where there is no network, and an exporter starts without one.
        threading.Thread(target=self._add_full_name, name="own name", daemon=True).start()

    def _add_full_name(self) -> None:
        self._names.add(socket.getfqdn().lower().rstrip("."))

    def accept(self, header: str, local_address: str) -> bool:
        host = host_of(header)
        if host is None:
            return False
        if host in self._names:
            return True
        address = as_address(host)
        return address is not None and (address.is_loopback or address == as_address(local_address))

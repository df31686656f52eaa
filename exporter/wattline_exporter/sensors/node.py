"""Identity of the node."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from wattline.contract.metrics import NODE_INFO
from wattline_exporter.sensors.readings import Reading

MACHINE_ID = Path("/etc/machine-id")


class NodeInfo:
    """Name and machine ID of the node, read once. In Kubernetes, NODE_NAME has the name of the
    node.
    """

    def __init__(
        self,
        *,
        is_simulated: bool,
        environment: Mapping[str, str] = os.environ,
        host: str | None = None,
        machine_id: Path = MACHINE_ID,
    ) -> None:
        node = environment.get("NODE_NAME") or host or socket.gethostname()
        self._labels = node, _first_line(machine_id), "true" if is_simulated else "false"

    def readings(self) -> Iterator[Reading]:
        yield Reading(NODE_INFO, self._labels, 1.0)


def _first_line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").partition("\n")[0].strip()
    except OSError:  # as in most containers
        return ""

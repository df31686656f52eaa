"""Identity of owners and their runs, and of nodes whose address is not unique."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from wattline.contract.api import MAX_ID_LENGTH

OwnerKind = Literal["slurm", "kubernetes", "container", "service", "user"]
"""Kind of the owner of a discovered run; an earlier one takes precedence over a later one."""
OWNER_KINDS: tuple[OwnerKind, ...] = get_args(OwnerKind)


def owner_run_id(kind: str, name: str, number: str) -> str:
    """Return KIND-NAME-NUMBER, with the characters that a run id can have and the name cut to its
    length.
    """
    valid = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return f"{kind}-{valid[: MAX_ID_LENGTH - len(kind) - len(number) - 2]}-{number}"


_SHOWN_S = 300.0
"""Time for which a server shows the last value of an address that is gone."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """Samples of an exporter under one address, from `first_s` to `last_s` in Unix seconds.

    `marks` identify the node: the UUIDs of its GPUs, or another value that no other node has.
    """

    address: str
    marks: frozenset[Hashable]
    first_s: float
    last_s: float

    def follows(self, other: Sighting) -> bool:
        return self.first_s > other.last_s


def sightings_by_node(sightings: Iterable[Sighting]) -> list[list[Sighting]]:
    """Return the sightings of each node: those with a mark in common, also through a third one.

    The first one of a node counts. It is one of the latest: none follows it, and its samples go on
    to the end. Of several ones at the same time it is the one with most marks, then the first by
    address. The others are in the order of their last samples, the newest first.
    """
    nodes: list[list[Sighting]] = []
    for one in sightings:
        same = [node for node in nodes if any(one.marks & other.marks for other in node)]
        nodes = [node for node in nodes if node not in same]
        nodes.append([one, *(other for node in same for other in node)])
    ordered = [_ordered(node) for node in nodes]
    return sorted(ordered, key=lambda node: node[0].address)


def _ordered(node: list[Sighting]) -> list[Sighting]:
    newest_s = max(one.last_s for one in node)
    latest = [
        one
        for one in node
        if one.last_s >= newest_s - _SHOWN_S and not any(other.follows(one) for other in node)
    ]
    latest.sort(key=lambda one: (-len(one.marks), one.address))
    earlier = [one for one in node if one not in latest]
    earlier.sort(key=lambda one: (-one.last_s, one.address))
    return [*latest, *earlier]

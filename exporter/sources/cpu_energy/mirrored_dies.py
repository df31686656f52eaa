"""Which energy counters of a package's dies are one and the same register, told by the counters themselves."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from exporter.model import Device, Poll

_MOST_W = 1_000.0
"""More than any package draws."""
_UPDATE_S = 0.002
"""The counters move once a millisecond; two views of one register may be an update apart either way."""


def group_of(device: Device) -> tuple[str, str]:
    """Kind and package: what the dies of a package have in common, `0` and `0-die-1`."""
    return device.kind, device.id.partition("-die-")[0]


class Dies:
    """Remembers which counters were seen apart, which they are for good, and which mirror another."""

    def __init__(self) -> None:
        self._apart: set[tuple[Device, Device]] = set()
        self._mirrors: dict[Device, Device] = {}

    def without_mirrors(self, polls: Iterable[Poll]) -> list[Poll]:
        """Each register once. Polls of one kind and package stand side by side, the lowest die first."""
        kept: list[Poll] = []
        for _, group in groupby(polls, key=lambda poll: group_of(poll.device)):
            seen: dict[Device, Poll] = {}
            for poll in group:
                original = self._original(poll, seen.values())
                if original is None:
                    seen[poll.device] = poll
                elif original not in seen:  # it cannot be read now, and this is the same register
                    seen[original] = poll._replace(device=original)
            kept += seen.values()
        return kept

    def _original(self, poll: Poll, lower: Iterable[Poll]) -> Device | None:
        """The device whose counter this poll shows as well, or None where it is a counter of its own."""
        for other in lower:
            pair = (other.device, poll.device)
            if pair in self._apart:
                continue
            if same_counter(other, poll):
                self._mirrors[poll.device] = other.device
                return other.device
            self._apart.add(pair)
        known = self._mirrors.get(poll.device)
        return None if (known, poll.device) in self._apart else known


def same_counter(one: Poll, other: Poll) -> bool:
    """Could both polls show one register? They are as close as a package's draw between the two reads allows."""
    assert one.counter_j is not None
    assert other.counter_j is not None
    distance_j = abs(one.counter_j - other.counter_j)
    if one.counter_range_j is not None:
        distance_j = min(distance_j, abs(one.counter_range_j - distance_j))  # one of them has just wrapped
    between_s = max(one.after_s, other.after_s) - min(one.before_s, other.before_s)
    return distance_j <= _MOST_W * (between_s + _UPDATE_S)

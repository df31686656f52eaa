"""Detection of dies that share one energy register, by the values of their counters.

Two dies whose counters are never further apart than a package's energy between the two reads share
a register, which is reported once. A pair seen apart once is distinct. Two distinct registers pass
for one only while they are within 2 J of each other in a range of 65 kJ or more; the second one's
energy in that time is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from wattline_exporter.sensors.readings import Device, Poll

_MAX_PACKAGE_W = 1_000.0
"""Upper bound of a package's power."""
_UPDATE_S = 0.002
"""Two update intervals of the counters, 1 ms each: reads of one register may differ by one update
either way.
"""


def package_of(device: Device) -> tuple[str, str]:
    """Return kind and package, which the dies of a package share (`0` and `0-die-1`)."""
    return device.kind, device.id.partition("-die-")[0]


class MirroredDies:
    """Pairs of counters known as distinct, and counters that mirror another."""

    def __init__(self) -> None:
        self._apart: set[tuple[Device, Device]] = set()
        self._mirrors: dict[Device, Device] = {}

    def remove_mirrors(self, polls: Iterable[Poll]) -> list[Poll]:
        """Return each register once. Polls of one kind and package must be adjacent, the lowest die
        first.
        """
        originals: list[Poll] = []
        for _, group in groupby(polls, key=lambda poll: package_of(poll.device)):
            kept_of_package: dict[Device, Poll] = {}
            for poll in group:
                original = self._original(poll, kept_of_package.values())
                if original is None:
                    kept_of_package[poll.device] = poll
                elif (
                    original not in kept_of_package
                ):  # it cannot be read now; this is the same register
                    kept_of_package[original] = poll._replace(device=original)
            originals += kept_of_package.values()
        return originals

    def _original(self, poll: Poll, lower: Iterable[Poll]) -> Device | None:
        """Return the device with the same register, None for a distinct one."""
        for other in lower:
            pair = (other.device, poll.device)
            if pair in self._apart:
                continue
            if same_counter(other, poll):
                self._mirrors[poll.device] = other.device
                return other.device
            self._apart.add(pair)
        mirror = self._mirrors.get(poll.device)
        return None if (mirror, poll.device) in self._apart else mirror


def same_counter(one: Poll, other: Poll) -> bool:
    """Return whether both polls may read one register: they differ by less than a package's energy
    between them.
    """
    assert one.counter_j is not None
    assert other.counter_j is not None
    distance_j = abs(one.counter_j - other.counter_j)
    if one.counter_range_j is not None:
        distance_j = min(
            distance_j, abs(one.counter_range_j - distance_j)
        )  # one of them may have wrapped
    between_s = max(one.after_s, other.after_s) - min(one.before_s, other.before_s)
    return distance_j <= _MAX_PACKAGE_W * (between_s + _UPDATE_S)

"""Runs that have a part of a GPU's energy, over time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


@dataclass(slots=True)
class Member:
    """Run that is open from `begin_s` to `end_s`, and has a part of a GPU from `from_s` on."""

    begin_s: float
    from_s: float
    end_s: float = math.inf
    is_final: bool = False
    """True once all requests of the ended run are final: others may still need the shares of that
    time.
    """

    def distance_s(self, t_s: float) -> float:
        """Return the time to an instant before or after the part of the run."""
        return max(self.from_s - t_s, t_s - self.end_s)


class Membership(NamedTuple):
    """Members with a part of a GPU: `members[k]` before `edges_s[k]`, and the last ones after all
    edges.
    """

    edges_s: list[float]
    members: list[frozenset[str]]

    @classmethod
    def of(cls, members: Mapping[str, Member]) -> Membership:
        """Return the members over time; while none is open, the one whose begin or end is nearest
        has a part.
        """
        bounds_s = {
            each for one in members.values() for each in (one.from_s, one.end_s) if each < math.inf
        }
        found = cls([], [])
        for begin_s, end_s in pairwise([-math.inf, *sorted(bounds_s), math.inf]):
            is_open = [
                name
                for name, each in members.items()
                if each.from_s <= begin_s and end_s <= each.end_s
            ]
            if is_open:
                found.members.append(frozenset(is_open))
            elif math.isinf(begin_s) or math.isinf(end_s):
                found.members.append(
                    _nearest(members, end_s - 1.0 if math.isinf(begin_s) else begin_s + 1.0)
                )
            else:
                middle_s = (begin_s + end_s) / 2
                quarter_s = (end_s - begin_s) / 4
                found.edges_s.append(middle_s)
                found.members.extend(
                    _nearest(members, middle_s + each) for each in (-quarter_s, quarter_s)
                )
            found.edges_s.append(end_s)
        found.edges_s.pop()
        return found


def _nearest(members: Mapping[str, Member], t_s: float) -> frozenset[str]:
    return frozenset([min(members, key=lambda name: members[name].distance_s(t_s))])

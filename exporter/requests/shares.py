"""Division of a GPU's energy among several runs that report requests on it, by the energy attributed to each run."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from exporter.energy.meter import DeviceMeter
from exporter.model import Device

if TYPE_CHECKING:  # numpy is imported with the first request
    from exporter.request_energy.pieces import FloatArray

KEPT_TICKS = 600
"""Ticks of a second whose attributed energies are known: longer than a slot waits for its requests."""
EARLY_S = 0.5
"""Longest age of the latest poll at a tick."""

Attributed = Callable[[Device, str], float]
"""Energy in joules that is attributed to a run on a device so far."""


@dataclass(slots=True)
class _Member:
    """Run that is open from `begin_s` to `end_s`, and has a part of a GPU from `from_s` on."""

    begin_s: float
    from_s: float
    end_s: float = math.inf
    is_final: bool = False
    """True once all requests of the ended run are final: others may still need the shares of that time."""

    def open_s(self, since_s: float, until_s: float) -> float:
        """Return the seconds of a time in which the run is open."""
        return max(0.0, min(until_s, self.end_s) - max(since_s, self.begin_s))

    def distance_s(self, t_s: float) -> float:
        """Return the time to an instant before or after the part of the run."""
        return max(self.from_s - t_s, t_s - self.end_s)


@dataclass(slots=True)
class _SharedGpu:
    """Runs that report requests on a GPU, and their attributed energies."""

    members: dict[str, _Member] = field(default_factory=dict)
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_TICKS))
    joules: deque[Mapping[str, float]] = field(default_factory=lambda: deque(maxlen=KEPT_TICKS))
    """Attributed energies at each of the times."""

    @property
    def changes_s(self) -> list[float]:
        """Instants at which the members with a part change."""
        edges_s = [each for one in self.members.values() for each in (one.from_s, one.end_s)]
        middles_s = [(one.end_s + other.from_s) / 2 for one in self.members.values() for other in self.members.values()]
        return [*edges_s, *middles_s]

    def share(self, run_id: str, t_s: float) -> float:
        """Return the part of a run in the power at an instant; the parts of all open members add up to 1."""
        members = self._members(t_s)
        if run_id not in members or len(members) == 1:
            return float(run_id in members)
        powers_w = self._powers(t_s, members)
        total_w = math.fsum(powers_w.values())
        return powers_w[run_id] / total_w if total_w > 0.0 else 1.0 / len(members)

    def idle_share(self, run_id: str, t_s: float) -> float:
        """Return the part of a run in the idle power, of which all open members have equal parts."""
        members = self._members(t_s)
        return 1.0 / len(members) if run_id in members else 0.0

    def _members(self, t_s: float) -> Collection[str]:
        """Return the members with a part at an instant; while none is open, the one whose begin or end is nearest."""
        found = [name for name, each in self.members.items() if each.from_s <= t_s < each.end_s]
        return found or [min(self.members, key=lambda name: self.members[name].distance_s(t_s))]

    def _powers(self, t_s: float, members: Collection[str]) -> dict[str, float]:
        """Return the powers of the open members by a tick during which all of them are open, the one nearest to t_s.

        Attributed energies are those up to the latest poll, so the tick begins EARLY_S after the last begin.
        """
        begin_s = max(self.members[each].begin_s for each in members) + EARLY_S
        end_s = min(self.members[each].end_s for each in members)
        times_s = list(self.times_s)
        first, last = bisect_left(times_s, begin_s) + 1, bisect_right(times_s, end_s) - 1
        if first > last:  # they are open together for a short time
            first, last = 1, len(times_s) - 1
        at = min(max(bisect_left(times_s, t_s), first), last)
        if at < 1:
            return dict.fromkeys(members, 0.0)
        before, after = self.joules[at - 1], self.joules[at]
        used_j = {each: max(0.0, after.get(each, 0.0) - before.get(each, 0.0)) for each in members}
        open_s = {each: self.members[each].open_s(times_s[at - 1], times_s[at]) for each in members}
        return {each: used_j[each] / open_s[each] if open_s[each] > 0.0 else 0.0 for each in members}


class GpuShares:
    """Energy of each run that reports requests, of GPUs that several of them may use. Times are CLOCK_BOOTTIME."""

    def __init__(self, attributed_j: Attributed) -> None:
        self._attributed_j = attributed_j
        self._gpus: dict[Device, _SharedGpu] = {}

    def idle_shares(self, run_id: str, device: Device, edges_s: FloatArray) -> FloatArray:
        """Return the mean part of a run in the idle power of a GPU between consecutive edges."""
        import numpy as np

        gpu = self._gpus.get(device)
        if gpu is None or len(gpu.members) == 1 or len(edges_s) < 2:
            return np.ones(max(0, len(edges_s) - 1))
        times_s = _with_changes(edges_s, gpu.changes_s)
        shares = [gpu.idle_share(run_id, t_s) for t_s in ((times_s[1:] + times_s[:-1]) / 2).tolist()]
        own_s = np.concatenate([[0.0], np.cumsum(shares * np.diff(times_s))])
        return np.diff(own_s[np.searchsorted(times_s, edges_s)]) / np.diff(edges_s)

    def join(self, run_id: str, device: Device, from_s: float, begin_s: float) -> bool:
        """Divide the energy of a GPU also with a run that began, from an instant on; return whether it is new."""
        members = self._gpus.setdefault(device, _SharedGpu()).members
        is_new = run_id not in members
        members.setdefault(run_id, _Member(begin_s, max(from_s, begin_s))).is_final = False
        return is_new

    def end(self, run_id: str, end_s: float) -> list[Device]:
        """End the part of a run; return the GPUs of which it had one."""
        ended = [device for device, gpu in self._gpus.items() if run_id in gpu.members]
        changed = [device for device in ended if self._gpus[device].members[run_id].end_s == math.inf]
        for device in changed:
            self._gpus[device].members[run_id].end_s = end_s
        return changed

    def starts_s(self) -> Iterator[tuple[str, Device, float]]:
        """Yield each run with each of its GPUs, and the instant from which it has a part of the GPU's energy."""
        for device, gpu in self._gpus.items():
            for run_id, member in gpu.members.items():
                if not member.is_final:
                    yield run_id, device, member.from_s

    def leave(self, run_id: str) -> None:
        """Forget a run whose requests are all final."""
        for gpu in self._gpus.values():
            if run_id in gpu.members:
                gpu.members[run_id].is_final = True
        self._forget()

    def _forget(self) -> None:
        """Forget final runs that ended before all ticks, and GPUs without other runs."""
        for device, gpu in list(self._gpus.items()):
            first_s = gpu.times_s[0] if len(gpu.times_s) == KEPT_TICKS else -math.inf
            for run_id, each in list(gpu.members.items()):
                if each.is_final and (each.end_s < first_s or each.end_s == math.inf):
                    del gpu.members[run_id]
            if all(each.is_final for each in gpu.members.values()):
                del self._gpus[device]

    def note_energies(self, now_s: float, others: Collection[str] = ()) -> None:
        """Note the attributed energies up to now, also of other runs, whose requests may be reported later."""
        self._forget()
        for device, gpu in self._gpus.items():
            gpu.times_s.append(now_s)
            gpu.joules.append({run_id: self._attributed_j(device, run_id) for run_id in {*gpu.members, *others}})

    def energy_at(
        self, run_id: str, device: Device, meter: DeviceMeter, edges_s: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return a run's energy of a GPU from the first edge up to each one, and the half-widths of the meter."""
        import numpy as np

        gpu = self._gpus.get(device)
        is_shared = gpu is not None and len(gpu.members) > 1
        times_s = _with_changes(edges_s, [*gpu.times_s, *gpu.changes_s]) if gpu and is_shared else edges_s
        marks = [meter.mark(t_s) for t_s in times_s.tolist()]
        joules, half_j = (
            np.array([mark.joules for mark in marks]),
            np.array([mark.half_width_j for mark in marks]),
        )
        if gpu is None or not is_shared:
            return joules - joules[0], half_j
        middles_s = ((times_s[1:] + times_s[:-1]) / 2).tolist()
        shares = np.array([gpu.share(run_id, t_s) for t_s in middles_s])
        own_j = np.concatenate([[0.0], np.cumsum(shares * np.diff(joules))])
        at = np.searchsorted(times_s, edges_s)
        return own_j[at], half_j[at]


def _with_changes(edges_s: FloatArray, instants_s: Sequence[float]) -> FloatArray:
    """Return the edges with the instants between them, in order."""
    import numpy as np

    changes_s = np.array(instants_s)
    between = (changes_s > edges_s[0]) & (changes_s < edges_s[-1])
    return np.unique(np.concatenate([edges_s, changes_s[between]]))

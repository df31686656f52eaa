"""Division of a GPU's energy among several runs that report requests on it, by the loads of their
processes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from wattline_exporter.attribution.device_loads import GpuLoadPeriod
from wattline_exporter.requests.members import Member, Membership
from wattline_exporter.sensors.readings import Device

if TYPE_CHECKING:  # numpy is imported with the first request
    from wattline_exporter.requests.division.arrays import FloatArray
    from wattline_exporter.requests.energy_trail import EnergyTrail

KEPT_S = 600.0
"""Time for which loads are known: longer than a slot waits for its requests."""
UNKNOWN_S = 4.5
"""Longest time for which loads may be unknown: processes are read and scanned once a second, and
the next reading of a period is needed. Slots wait longer than that.
"""

Periods = Callable[[Device, float], Iterable[GpuLoadPeriod]]
"""Loads of the runs on a GPU in the latest periods that end after an instant."""
IdlePowerOf = Callable[[Device], float | None]
"""Idle power of a GPU in watts, if it is known."""


class _Part(NamedTuple):
    """Part of a run in the power of a GPU at an instant: one of the idle power, and one of the
    power above it.
    """

    idle_w: float
    of_idle: float
    above: float

    def joules(self, energy_j: float, seconds: float) -> float:
        """Return the part in the energy of a time; the parts of all runs add up to it."""
        idle_j = self.idle_w * seconds
        return idle_j * self.of_idle + (energy_j - idle_j) * self.above


class _Period(NamedTuple):
    load: GpuLoadPeriod
    idle_w: float

    def distance_s(self, t_s: float) -> float:
        """Return the time to an instant before or after the period."""
        return max(self.load.begin_s - t_s, t_s - self.load.end_s)


class _SharedGpu:
    """Runs that report requests on a GPU, and the loads of all runs on it."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.periods: deque[_Period] = deque()
        """Parts of the periods before the last reading, in order of time."""
        self.readings: list[GpuLoadPeriod] = []
        """Latest two periods as they were read."""
        self._membership: Membership | None = None
        self._known: dict[int, list[_Period]] = {}
        """Periods that have the loads of all members, by the number of these in `_membership`."""
        self._totals: dict[tuple[int, float], float] = {}
        """Load of all members by their number and the end of the period."""

    @property
    def known_s(self) -> float:
        """End of the last period with known loads."""
        return self.periods[-1].load.end_s if self.periods else -math.inf

    def change(self) -> None:
        """Note that members or periods have changed."""
        self._membership = None
        self._known.clear()
        self._totals.clear()

    def note(self, read: GpuLoadPeriod, idle_w: float) -> None:
        """Note the loads of the next period, with which those of the last one are known."""
        parts = list(_parts(self.readings[0], self.readings[-1], read)) if self.readings else []
        self.periods.extend(_Period(each, idle_w) for each in parts)
        self.readings = [*self.readings[-1:], read]
        self.change()

    @property
    def membership(self) -> Membership:
        """Members over time."""
        if self._membership is None:
            self._membership = Membership.of(self.members)
        return self._membership

    def changes_s(self, since_s: float, until_s: float) -> list[float]:
        """Return the instants at which members with a part change, and those from a time at which
        the loads change.
        """
        ends_s = [each.load.end_s for each in self.periods if since_s < each.load.end_s < until_s]
        return [*self.membership.edges_s, *ends_s]

    def part(self, run_id: str, t_s: float) -> _Part:
        """Return the part of a run at an instant; the parts of all open members add up to 1."""
        number = bisect_right(self.membership.edges_s, t_s)
        members = self.membership.members[number]
        if run_id not in members:
            return _Part(0.0, 0.0, 0.0)
        equal = 1.0 / len(members)
        period = self._period(t_s, number) if len(members) > 1 else None
        if period is None:
            return _Part(0.0, equal, equal)
        key = number, period.load.end_s
        if key not in self._totals:
            self._totals[key] = math.fsum(period.load.loads[each] for each in members)
        total = self._totals[key]
        return _Part(
            period.idle_w, equal, period.load.loads[run_id] / total if total > 0.0 else equal
        )

    def idle_share(self, run_id: str, t_s: float) -> float:
        """Return the part of a run in the idle power, of which all open members have equal
        parts.
        """
        members = self.membership.members[bisect_right(self.membership.edges_s, t_s)]
        return 1.0 / len(members) if run_id in members else 0.0

    def _period(self, t_s: float, number: int) -> _Period | None:
        """Return the nearest period that has the loads of all members."""
        if number not in self._known:
            members = self.membership.members[number]
            self._known[number] = [
                each for each in self.periods if each.load.loads.keys() >= members
            ]
        known = self._known[number]
        at = bisect_left(known, t_s, key=lambda each: each.load.end_s)
        return min(
            known[max(0, at - 1) : at + 1], key=lambda each: each.distance_s(t_s), default=None
        )


class GpuShares:
    """Energy of each run that reports requests, of GPUs that several of them may use. Times are
    CLOCK_BOOTTIME.
    """

    def __init__(self, periods: Periods, idle_w: IdlePowerOf) -> None:
        self._periods = periods
        self._idle_w = idle_w
        self._gpus: dict[Device, _SharedGpu] = {}

    def idle_shares(self, run_id: str, device: Device, edges_s: FloatArray) -> FloatArray:
        """Return the mean part of a run in the idle power of a GPU between consecutive edges."""
        import numpy as np

        gpu = self._gpus.get(device)
        if gpu is None or len(gpu.members) == 1 or len(edges_s) < 2:
            return np.ones(max(0, len(edges_s) - 1))
        times_s = _with_changes(edges_s, gpu.changes_s(math.inf, math.inf))
        shares = [
            gpu.idle_share(run_id, t_s) for t_s in ((times_s[1:] + times_s[:-1]) / 2).tolist()
        ]
        own_s = np.concatenate([[0.0], np.cumsum(shares * np.diff(times_s))])
        return np.diff(own_s[np.searchsorted(times_s, edges_s)]) / np.diff(edges_s)

    def join(self, run_id: str, device: Device, from_s: float, begin_s: float) -> bool:
        """Divide the energy of a GPU also with a run that began, from an instant on; return whether
        it is new.
        """
        gpu = self._gpus.setdefault(device, _SharedGpu())
        is_new = run_id not in gpu.members
        if is_new:
            gpu.members[run_id] = Member(begin_s, max(from_s, begin_s))
            gpu.change()
        gpu.members[run_id].is_final = False
        return is_new

    def end(self, run_id: str, end_s: float) -> list[Device]:
        """End the part of a run; return the GPUs of which it had one."""
        ended = [device for device, gpu in self._gpus.items() if run_id in gpu.members]
        changed = [
            device for device in ended if self._gpus[device].members[run_id].end_s == math.inf
        ]
        for device in changed:
            self._gpus[device].members[run_id].end_s = end_s
            self._gpus[device].change()
        return changed

    def starts_s(self) -> Iterator[tuple[str, Device, float]]:
        """Yield each run with each of its GPUs, and the instant from which it has a part of the
        GPU's energy.
        """
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

    def _forget(self, now_s: float = -math.inf) -> None:
        """Forget old loads, final runs that ended before them, and GPUs without other runs."""
        first_s = now_s - KEPT_S
        for device, gpu in list(self._gpus.items()):
            while gpu.periods and gpu.periods[0].load.end_s < first_s:
                gpu.periods.popleft()
                gpu.change()
            for run_id, each in list(gpu.members.items()):
                if each.is_final and (each.end_s < first_s or each.end_s == math.inf):
                    del gpu.members[run_id]
                    gpu.change()
            if all(each.is_final for each in gpu.members.values()):
                del self._gpus[device]

    def note_loads(self, now_s: float) -> None:
        """Note the loads up to now, also of runs that report no requests yet."""
        self._forget(now_s)
        for device, gpu in self._gpus.items():
            noted_s = gpu.readings[-1].end_s if gpu.readings else -math.inf
            idle_w = self._idle_w(device) or 0.0
            for read in self._periods(device, noted_s):
                gpu.note(read, idle_w)

    def known_s(self, devices: Iterable[Device], now_s: float) -> float:
        """Return the time up to which the loads of all shared GPUs are known, or UNKNOWN_S ago if
        they stay unknown.
        """
        gpus = [
            gpu for device in devices if (gpu := self._gpus.get(device)) and len(gpu.members) > 1
        ]
        return min([now_s, *(max(gpu.known_s, now_s - UNKNOWN_S) for gpu in gpus)])

    def energy_at(
        self, run_id: str, device: Device, trail: EnergyTrail, edges_s: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return a run's energy of a GPU from the first edge up to each one, and the half-widths of
        the meter.
        """
        import numpy as np

        gpu = self._gpus.get(device)
        is_shared = gpu is not None and len(gpu.members) > 1
        times_s = edges_s
        if gpu and is_shared:
            times_s = _with_changes(edges_s, gpu.changes_s(edges_s[0], edges_s[-1]))
        joules, half_j = trail.energy_at(times_s)
        if gpu is None or not is_shared:
            return joules - joules[0], half_j
        middles_s = ((times_s[1:] + times_s[:-1]) / 2).tolist()
        parts = zip(middles_s, np.diff(joules).tolist(), np.diff(times_s).tolist(), strict=True)
        own = [gpu.part(run_id, t_s).joules(energy_j, seconds) for t_s, energy_j, seconds in parts]
        own_j = np.concatenate([[0.0], np.cumsum(own)])
        at = np.searchsorted(times_s, edges_s)
        return own_j[at], half_j[at]


def _parts(
    before: GpuLoadPeriod, read: GpuLoadPeriod, after: GpuLoadPeriod
) -> Iterator[GpuLoadPeriod]:
    """Divide a period at the changes of its loads.

    A mean load between the loads of the periods before and after it is the mean of both, with one
    change.
    """
    changes: dict[str, tuple[float, float, float]] = {}
    for run_id, load in read.loads.items():
        first = before.loads.get(run_id, load)
        last = after.loads.get(run_id, load)
        if min(first, last) < load < max(first, last):
            ratio = (last - load) / (last - first)
            changes[run_id] = read.begin_s + ratio * (read.end_s - read.begin_s), first, last
    edges_s = sorted({read.begin_s, read.end_s, *(change_s for change_s, _, _ in changes.values())})
    for begin_s, end_s in pairwise(edges_s):
        now = {
            run_id: first if end_s <= change_s else last
            for run_id, (change_s, first, last) in changes.items()
        }
        yield GpuLoadPeriod(begin_s, end_s, {**read.loads, **now})


def _with_changes(edges_s: FloatArray, instants_s: Sequence[float]) -> FloatArray:
    """Return the edges with the instants between them, in order."""
    import numpy as np

    changes_s = np.array(instants_s)
    between = (changes_s > edges_s[0]) & (changes_s < edges_s[-1])
    return np.unique(np.concatenate([edges_s, changes_s[between]]))

"""Division of a GPU's energy among several runs that report requests on it, by the energy attributed to each run."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from exporter.energy.meter import DeviceMeter
from exporter.model import Device

if TYPE_CHECKING:  # numpy is imported with the first request
    from exporter.request_energy.pieces import FloatArray

KEPT_TICKS = 600
"""Ticks of a second whose attributed energies are known: longer than a slot waits for its requests."""

Attributed = Callable[[Device, str], float]
"""Energy in joules that is attributed to a run on a device so far."""


@dataclass(slots=True)
class _SharedGpu:
    """Runs that report requests on a GPU with the instants from which they do, and their attributed energies."""

    members: dict[str, float] = field(default_factory=dict)
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_TICKS))
    joules: deque[Mapping[str, float]] = field(default_factory=lambda: deque(maxlen=KEPT_TICKS))
    """Attributed energies at each of the times."""

    def share(self, run_id: str, t_s: float) -> float:
        """Return the part of a run in the power at an instant; the parts of all members add up to 1."""
        weights = self._weights(t_s)
        return weights[run_id] / math.fsum(weights.values()) if run_id in weights else 0.0

    def idle_share(self, run_id: str, t_s: float) -> float:
        """Return the part of a run in the idle power, of which all runs that use the GPU have equal parts."""
        weights = self._weights(t_s)
        return 1.0 / len(weights) if run_id in weights else 0.0

    def _weights(self, t_s: float) -> dict[str, float]:
        """Return the energies of the members that use the GPU at an instant, equal ones where they are unknown."""
        members = [each for each, from_s in self.members.items() if from_s <= t_s]
        at = min(max(bisect_left(self.times_s, t_s), 1), len(self.times_s) - 1)  # energies before the ticks are unknown
        if len(members) > 1 and at >= 1:
            before, after = self.joules[at - 1], self.joules[at]
            used_j = {each: after.get(each, 0.0) - before.get(each, 0.0) for each in members}
            using = {each: joules for each, joules in used_j.items() if joules > 0.0}
            if using:
                return using
        return dict.fromkeys(members, 1.0)


class GpuShares:
    """Energy of each run that reports requests, of GPUs that several of them may use. Times are CLOCK_BOOTTIME."""

    def __init__(self, attributed_j: Attributed) -> None:
        self._attributed_j = attributed_j
        self._gpus: dict[Device, _SharedGpu] = {}

    def idle_shares(self, run_id: str, device: Device, times_s: FloatArray) -> FloatArray:
        """Return the part of a run in the idle power of a GPU at some instants."""
        import numpy as np

        gpu = self._gpus.get(device)
        if gpu is None or len(gpu.members) == 1:
            return np.ones(len(times_s))
        return np.array([gpu.idle_share(run_id, t_s) for t_s in times_s.tolist()])

    def join(self, run_id: str, device: Device, from_s: float) -> bool:
        """Divide the energy of a GPU also with a run, from an instant on; return whether it is new."""
        members = self._gpus.setdefault(device, _SharedGpu()).members
        is_new = run_id not in members
        members.setdefault(run_id, from_s)
        return is_new

    def starts_s(self) -> Iterator[tuple[str, Device, float]]:
        """Yield each run with each of its GPUs, and the instant from which it has a part of the GPU's energy."""
        for device, gpu in self._gpus.items():
            for run_id, from_s in gpu.members.items():
                yield run_id, device, from_s

    def leave(self, run_id: str) -> None:
        """Forget a run whose requests are all final."""
        for device, gpu in list(self._gpus.items()):
            gpu.members.pop(run_id, None)
            if not gpu.members:
                del self._gpus[device]

    def note_energies(self, now_s: float, others: Collection[str] = ()) -> None:
        """Note the attributed energies up to now, also of other runs, whose requests may be reported later."""
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
        times_s = edges_s if gpu is None or not is_shared else _with_changes(edges_s, gpu)
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


def _with_changes(edges_s: FloatArray, gpu: _SharedGpu) -> FloatArray:
    """Return the edges with the instants at which shares change between them, in order."""
    import numpy as np

    changes_s = np.array([*gpu.times_s, *gpu.members.values()])
    between = (changes_s > edges_s[0]) & (changes_s < edges_s[-1])
    return np.unique(np.concatenate([edges_s, changes_s[between]]))

"""Whose the energy of a shared device is: every microjoule of it to one run, or to none (`run_id` "").

Two policies, which differ in the idle power alone, and each of which adds up to the device's energy exactly:

- `idle_apart`: what the device draws above its idle power goes to those who loaded it, by their load; the idle power
  goes to none.
- `idle_shared`: the idle power too; a GPU's in equal parts to those who hold it, since each keeps it from the others; a
  CPU's by load, since it is anybody's.

Where no load is known, the energy above idle goes to the holders in equal parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from exporter.contract.metrics import IDLE_POWER, RUN_ATTRIBUTED_ENERGY
from exporter.model import Device, Reading

Policy = Literal["idle_apart", "idle_shared"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
NO_RUN = ""
IDLE_S = 10
"""The idle power is the least mean over so many seconds that was seen while nothing ran."""
MAX_LOAD_CHANGES = 64
"""Of a device that draws nothing, so many changes of hands are kept."""
_UJ = 1_000_000


class AttributedKey(NamedTuple):
    device: Device
    policy: Policy
    run_id: str


class AttributionChanges(NamedTuple):
    microjoules: dict[AttributedKey, int]
    forgotten: set[str]
    """Runs that are no longer kept."""


@dataclass(frozen=True, slots=True)
class DeviceLoads:
    """Who held a device, and how much each of them loaded it, in any one unit. NO_RUN is what belongs to no run."""

    loads: Mapping[str, float] = field(default_factory=dict)

    @property
    def holders(self) -> list[str]:
        return list(self.loads)


def split_energy(
    energy_uj: int, idle_uj: int, tenancy: DeviceLoads, policy: Policy, *, idle_by_load: bool
) -> dict[str, int]:
    """Microjoules by run; they add up to `energy_uj` to the last one."""
    idle_uj = min(idle_uj, energy_uj)
    holders = tenancy.holders or [NO_RUN]
    equal = dict.fromkeys(holders, 1.0)
    loaded = {run_id: load for run_id, load in tenancy.loads.items() if load > 0}
    above = _divided(energy_uj - idle_uj, loaded or equal)
    idle = {NO_RUN: idle_uj}
    if policy == "idle_shared":
        idle = _divided(idle_uj, (loaded or equal) if idle_by_load else equal)
    return {run_id: above.get(run_id, 0) + idle.get(run_id, 0) for run_id in above.keys() | idle.keys()}


def _divided(amount: int, weights: Mapping[str, float]) -> dict[str, int]:
    """By weight, in whole numbers; what rounding leaves goes to the last."""
    total = sum(weights.values())
    shares = {name: int(amount * (weight / total)) for name, weight in weights.items()}
    shares[next(reversed(shares))] += amount - sum(shares.values())
    return shares


class _Idle:
    """The least power of a device that was seen without load, from its energy once a second."""

    def __init__(self, watts: float | None) -> None:
        self.watts = watts
        self._seen: deque[tuple[float, float]] = deque(maxlen=IDLE_S + 1)

    def forget(self) -> None:
        self._seen.clear()

    def look(self, t_s: float, energy_j: float) -> None:
        since_s = t_s - self._seen[-1][0] if self._seen else 1.0
        if since_s < 0.5:
            return
        if since_s > 2.5:
            self._seen.clear()  # a gap, which says nothing of idleness
        self._seen.append((t_s, energy_j))
        if len(self._seen) <= IDLE_S:
            return
        (from_s, from_j), (to_s, to_j) = self._seen[0], self._seen[-1]
        watts = (to_j - from_j) / (to_s - from_s)
        self.watts = watts if self.watts is None else min(self.watts, watts)


class Attribution:
    """The parts so far, by device, policy and run. `energy_j` is how much of each device's energy has been divided.

    Where nothing is known of the parts of a device, what it drew before belongs to no run.
    """

    def __init__(
        self,
        microjoules: Mapping[AttributedKey, int] | None = None,
        energy_j: Mapping[Device, float] | None = None,
        idle_w: Mapping[Device, float] | None = None,
        saved_s: float | None = None,
    ) -> None:
        self.microjoules = dict(microjoules or {})
        self._done_uj = {device: int(joules * _UJ) for device, joules in (energy_j or {}).items()}
        known = {key.device for key in self.microjoules}
        for device in self._done_uj.keys() - known:
            self.microjoules |= {AttributedKey(device, p, NO_RUN): self._done_uj[device] for p in POLICIES}
        self._idle = {device: _Idle(watts) for device, watts in (idle_w or {}).items()}
        self._divided_s = {} if saved_s is None else dict.fromkeys(self._done_uj, saved_s)
        self._changed: set[AttributedKey] = set()
        self._forgotten: set[str] = set()
        self._tenancies: dict[Device, list[tuple[float, DeviceLoads]]] = {}
        """Who holds it from when on, in order."""

    @property
    def idle_w(self) -> dict[Device, float]:
        return {device: idle.watts for device, idle in self._idle.items() if idle.watts is not None}

    def hold(self, device: Device, tenancy: DeviceLoads, from_s: float) -> None:
        """From `from_s` on these hold the device; of what is divided already nothing changes hands."""
        changes = self._tenancies.setdefault(device, [])
        changes[:] = [change for change in changes if change[0] < from_s][-MAX_LOAD_CHANGES:]
        if not changes or changes[-1][1] != tenancy:
            changes.append((from_s, tenancy))

    def load(self, device: Device) -> None:
        """The device is at work: what it draws now is not its idle power."""
        if device in self._idle:
            self._idle[device].forget()

    def divide(self, device: Device, energy_j: float, at_s: float) -> None:
        """Books among its holders what a device has drawn up to `at_s`: in all, since the state folder was fresh.

        It drew that evenly since it was last divided, as far as is known here.
        """
        energy_uj = int(energy_j * _UJ)
        step_uj = energy_uj - self._done_uj.get(device, 0)
        if step_uj <= 0:
            return
        idle = self._idle.setdefault(device, _Idle(None))
        idle.look(at_s, energy_j)
        since_s = self._divided_s.get(device, at_s)
        self._divided_s[device] = at_s
        self._done_uj[device] = energy_uj
        rest_uj = step_uj
        for from_s, until_s, tenancy in self._held(device, since_s, at_s):
            share = (until_s - from_s) / (at_s - since_s) if at_s > since_s else 0.0
            part_uj = rest_uj if until_s == at_s else min(rest_uj, int(step_uj * share))
            rest_uj -= part_uj
            self._book(device, part_uj, int((idle.watts or 0.0) * (until_s - from_s) * _UJ), tenancy)

    def _held(self, device: Device, since_s: float, at_s: float) -> list[tuple[float, float, DeviceLoads]]:
        """Who held the device when, from `since_s` to `at_s` without a gap; what is over is forgotten."""
        changes = self._tenancies.setdefault(device, [])
        begun = [change for change in changes if change[0] <= since_s][-1:] or [(since_s, DeviceLoads())]
        begun += [change for change in changes if since_s < change[0] < at_s]
        changes[:] = [begun[-1], *(change for change in changes if change[0] >= at_s)]
        ends_s = [*(from_s for from_s, _ in begun[1:]), at_s]
        return [(max(from_s, since_s), end_s, tenancy) for (from_s, tenancy), end_s in zip(begun, ends_s, strict=True)]

    def _book(self, device: Device, energy_uj: int, idle_uj: int, tenancy: DeviceLoads) -> None:
        for policy in POLICIES:
            for run_id, amount in split_energy(
                energy_uj, idle_uj, tenancy, policy, idle_by_load=device.kind != "gpu"
            ).items():
                key = AttributedKey(device, policy, run_id)
                self.microjoules[key] = self.microjoules.get(key, 0) + amount
                self._changed.add(key)

    def keep(self, run_ids: Collection[str]) -> None:
        """Forgets all runs but these, which are shown. What was theirs stays divided."""
        gone = {key.run_id for key in self.microjoules} - {NO_RUN, *run_ids}
        if gone:
            self._forgotten |= gone
            self.microjoules = {key: amount for key, amount in self.microjoules.items() if key.run_id not in gone}

    def take_changes(self) -> AttributionChanges:
        """Since the last call."""
        changes = AttributionChanges(
            {k: self.microjoules[k] for k in self._changed & self.microjoules.keys()}, self._forgotten
        )
        self._changed, self._forgotten = set(), set()
        return changes

    def give_back(self, changes: AttributionChanges) -> None:
        """They could not be saved."""
        self._changed |= changes.microjoules.keys()
        self._forgotten |= changes.forgotten

    def readings(self, shown: Collection[Device]) -> Iterator[Reading]:
        """Of the devices whose energy is shown."""
        for (device, policy, run_id), amount in self.microjoules.items():
            if device.component and device in shown:
                yield Reading(RUN_ATTRIBUTED_ENERGY, (run_id, device.component, device.id, policy), amount / _UJ)
        for device, watts in self.idle_w.items():
            if device.component and device in shown:
                yield Reading(IDLE_POWER, (device.component, device.id), watts)

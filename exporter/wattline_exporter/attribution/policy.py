"""Policies that attribute a shared device's energy to runs.

Unattributed energy has `run_id` "". The policies differ only in the idle power. With each policy,
the shares in whole microjoules add up exactly to the device's energy:

- `idle_apart`: energy above the idle power is attributed by load; idle power is unattributed.
- `idle_shared`: idle power is attributed, too. A GPU's is divided equally among the runs that
  hold it, since each of them reserves it. A CPU's is divided by load.

Where no load is known, the energy above idle is divided equally among the holders.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Literal, NamedTuple, get_args

from wattline.contract.api import OTHER_RUNS
from wattline.contract.metrics import IDLE_POWER, OWNER_ENERGY, RUN_ATTRIBUTED_ENERGY
from wattline.contract.work import SHARE_POLICY
from wattline_exporter.attribution.device_loads import NO_RUN, DeviceLoads, divide_by_weight
from wattline_exporter.attribution.idle_level import IdleLevel
from wattline_exporter.attribution.owner_counters import OwnerAmount, OwnerCounters
from wattline_exporter.sensors.readings import Device, Reading, ReadingKey

Policy = Literal["idle_apart", "idle_shared"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
MAX_LOAD_CHANGES = 64
"""Limit of the changes of holders that are kept while a device uses no energy."""
UJ_PER_J = 1_000_000
"""Microjoules per joule: parts of an energy are integers, so that they add up."""


class AttributedKey(NamedTuple):
    device: Device
    policy: Policy
    run_id: str


class AttributionChanges(NamedTuple):
    microjoules: dict[AttributedKey, int]
    forgotten: set[str]
    """Runs that are removed."""
    owners: Mapping[ReadingKey, OwnerAmount] = {}


def split_energy(
    energy_uj: int, idle_uj: int, loads: DeviceLoads, policy: Policy, *, idle_by_load: bool
) -> dict[str, int]:
    """Return the microjoules of each run, which add up to exactly `energy_uj`."""
    idle_uj = min(idle_uj, energy_uj)
    holders = loads.holders or [NO_RUN]
    equal = dict.fromkeys(holders, 1.0)
    loaded = {run_id: load for run_id, load in loads.loads.items() if load > 0}
    above = divide_by_weight(energy_uj - idle_uj, loaded or equal)
    idle = {NO_RUN: idle_uj}
    if policy == "idle_shared":
        idle = divide_by_weight(idle_uj, (loaded or equal) if idle_by_load else equal)
    return {
        run_id: above.get(run_id, 0) + idle.get(run_id, 0) for run_id in above.keys() | idle.keys()
    }


class Attribution:
    """Attributed energy by device, policy and run.

    `energy_j` is the energy of each device up to which `microjoules` has its shares. If it has
    none, that energy is unattributed.
    """

    def __init__(
        self,
        microjoules: Mapping[AttributedKey, int] | None = None,
        energy_j: Mapping[Device, float] | None = None,
        idle_w: Mapping[Device, float] | None = None,
        saved_s: float | None = None,
        *,
        owners: OwnerCounters | None = None,
    ) -> None:
        self.owners = owners or OwnerCounters()
        """Counters by owner; its holders are the runs."""
        self.microjoules = dict(microjoules or {})
        self._done_uj = {
            device: int(joules * UJ_PER_J) for device, joules in (energy_j or {}).items()
        }
        known = {key.device for key in self.microjoules}
        for device in self._done_uj.keys() - known:
            self.microjoules |= {
                AttributedKey(device, p, NO_RUN): self._done_uj[device] for p in POLICIES
            }
        self._add_unowned()
        self._idle = {device: IdleLevel(watts) for device, watts in (idle_w or {}).items()}
        self._divided_s = {} if saved_s is None else dict.fromkeys(self._done_uj, saved_s)
        self._changed: set[AttributedKey] = set()
        self._forgotten: set[str] = set()
        self._holders: dict[Device, list[tuple[float, DeviceLoads]]] = {}
        """Holders of each device, with the instant from which they hold it, in order of time."""

    def _add_unowned(self) -> None:
        """Add energy that an earlier version counted for no owner to unattributed energy."""
        totals: dict[tuple[str, ...], int] = {}
        for device, energy_uj in self._done_uj.items():
            for policy in POLICIES if device.component else ():
                key = str(device.component), policy
                totals[key] = totals.get(key, 0) + energy_uj
        self.owners.add_unowned(OWNER_ENERGY, totals)

    @property
    def idle_w(self) -> dict[Device, float]:
        return {device: idle.watts for device, idle in self._idle.items() if idle.watts is not None}

    def least_w(self, device: Device) -> float:
        """Return the power below which a device does not fall, 0 while that is unknown."""
        return self._idle[device].least_w if device in self._idle else 0.0

    def hold(self, device: Device, loads: DeviceLoads, from_s: float) -> None:
        """Set the holders from `from_s` on; energy that is attributed already does not change."""
        changes = self._holders.setdefault(device, [])
        changes[:] = [change for change in changes if change[0] < from_s][-MAX_LOAD_CHANGES:]
        if not changes or changes[-1][1] != loads:
            changes.append((from_s, loads))

    def note_busy(self, device: Device) -> None:
        """Discard the window of the device's idle power: the device is busy now."""
        if device in self._idle:
            self._idle[device].discard_window()

    def divide(
        self,
        device: Device,
        energy_j: float,
        at_s: float,
        emissions: Mapping[tuple[str, str], float] | None = None,
    ) -> None:
        """Attribute a device's energy up to `at_s`, and its emissions in g CO2eq by basis and
        quality.

        `energy_j` and `emissions` are its totals since the state folder was created. The power
        since the last call is assumed to be constant.
        """
        energy_uj = int(energy_j * UJ_PER_J)
        step_uj = energy_uj - self._done_uj.get(device, 0)
        since_s = self._divided_s.setdefault(device, at_s)
        if step_uj <= 0:
            return
        idle = self._idle.setdefault(device, IdleLevel(None))
        idle.update(at_s, energy_j)
        self._divided_s[device] = at_s
        self._done_uj[device] = energy_uj
        rest_uj = step_uj
        shares: dict[str, int] = {}
        """Shares by SHARE_POLICY."""
        for from_s, until_s, loads in self._holding_periods(device, since_s, at_s):
            share = (until_s - from_s) / (at_s - since_s) if at_s > since_s else 0.0
            part_uj = rest_uj if until_s == at_s else min(rest_uj, int(step_uj * share))
            rest_uj -= part_uj
            self._add_shares(
                device, part_uj, idle.take_uj(part_uj, until_s - from_s), loads, shares
            )
            if device.kind == "gpu":
                self.owners.add_gpu_time(until_s - from_s, loads.holders or [NO_RUN], at_s)
        for (basis, quality), grams in (emissions or {}).items() if device.component else ():
            self.owners.add_emissions(
                (str(device.component), device.id, basis, quality), grams, shares, at_s
            )

    def _holding_periods(
        self, device: Device, since_s: float, at_s: float
    ) -> list[tuple[float, float, DeviceLoads]]:
        """Return the holders from `since_s` to `at_s` without a gap, and remove older ones."""
        changes = self._holders.setdefault(device, [])
        current = [change for change in changes if change[0] <= since_s][-1:] or [
            (since_s, DeviceLoads())
        ]
        current += [change for change in changes if since_s < change[0] < at_s]
        changes[:] = [current[-1], *(change for change in changes if change[0] >= at_s)]
        ends_s = [*(from_s for from_s, _ in current[1:]), at_s]
        return [
            (max(from_s, since_s), end_s, loads)
            for (from_s, loads), end_s in zip(current, ends_s, strict=True)
        ]

    def _add_shares(
        self,
        device: Device,
        energy_uj: int,
        idle_uj: int,
        loads: DeviceLoads,
        shares: dict[str, int],
    ) -> None:
        """Add the shares of both policies to the totals, and those of SHARE_POLICY to `shares`."""
        for policy in POLICIES:
            parts = split_energy(
                energy_uj, idle_uj, loads, policy, idle_by_load=device.kind != "gpu"
            )
            for run_id, amount in parts.items():
                key = AttributedKey(
                    device, policy, OTHER_RUNS if run_id.startswith(OTHER_RUNS) else run_id
                )
                self.microjoules[key] = self.microjoules.get(key, 0) + amount
                self._changed.add(key)
                if policy == SHARE_POLICY:
                    shares[run_id] = shares.get(run_id, 0) + amount
            if device.component:
                self.owners.add_energy(device.component, policy, parts, self._divided_s[device])

    def keep(self, run_ids: Collection[str]) -> None:
        """Remove the shares of all other runs. Their energy is not attributed again."""
        gone = {key.run_id for key in self.microjoules} - {NO_RUN, OTHER_RUNS, *run_ids}
        self.owners.retain({*run_ids, *self.undivided_runs()})
        if gone:
            gone -= self.undivided_runs()
            self._forgotten |= gone
            self.microjoules = {
                key: amount for key, amount in self.microjoules.items() if key.run_id not in gone
            }

    def undivided_runs(self) -> set[str]:
        """Return the runs that held a device since its last poll: they still get shares, which must
        not start at 0.
        """
        return {
            run_id
            for changes in self._holders.values()
            for _, loads in changes
            for run_id in loads.loads
        }

    def take_changes(self) -> AttributionChanges:
        """Return the changes since the last call."""
        changes = AttributionChanges(
            {k: self.microjoules[k] for k in self._changed & self.microjoules.keys()},
            self._forgotten,
            self.owners.take_changes(),
        )
        self._changed = set()
        self._forgotten = set()
        return changes

    def put_back(self, changes: AttributionChanges) -> None:
        """Add changes that could not be saved to the next ones."""
        self._changed |= changes.microjoules.keys()
        self._forgotten |= changes.forgotten
        self.owners.put_back(changes.owners)

    def share_j(self, device: Device, policy: Policy, run_id: str) -> float | None:
        amount = self.microjoules.get(AttributedKey(device, policy, run_id))
        return None if amount is None else amount / UJ_PER_J

    def readings(
        self, readable: Collection[Device], without: Collection[str] = ()
    ) -> Iterator[Reading]:
        """Yield the attributed energies of the `readable` devices, except those of the runs
        `without`, and their idle powers.
        """
        for key, amount in self.microjoules.items():
            device = key.device
            if key.run_id not in without and device.component and device in readable:
                yield _reading(key, amount)
        for device, watts in self.idle_w.items():
            if device.component and device in readable:
                yield Reading(IDLE_POWER, (device.component, device.id), watts)

    def readings_of_run(self, run_id: str) -> Iterator[Reading]:
        """Yield the energies attributed to a run."""
        for key, amount in self.microjoules.items():
            if key.run_id == run_id and key.device.component:
                yield _reading(key, amount)


def _reading(key: AttributedKey, amount_uj: int) -> Reading:
    labels = key.run_id, str(key.device.component), key.device.id, key.policy
    return Reading(RUN_ATTRIBUTED_ENERGY, labels, amount_uj / UJ_PER_J)

"""Policies that attribute a shared device's energy to runs.

Unattributed energy has `run_id` "". The policies differ only in the idle power. With each policy, the shares in whole
microjoules add up exactly to the device's energy:

- `idle_apart`: energy above the idle power is attributed by load; idle power is unattributed.
- `idle_shared`: idle power is attributed, too. A GPU's is divided equally among the runs that
  hold it, since each of them reserves it. A CPU's is divided by load.

Where no load is known, the energy above idle is divided equally among the holders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from exporter.contract.metrics import IDLE_POWER, RUN_ATTRIBUTED_ENERGY
from exporter.model import Device, GpuProcess, Reading

Policy = Literal["idle_apart", "idle_shared"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
NO_RUN = ""
IDLE_S = 10
"""Window of the idle power, in seconds. The idle power is the lowest mean over such a window without load."""
MAX_LOAD_CHANGES = 64
"""Limit of the changes of holders that are kept while a device uses no energy."""
_UJ = 1_000_000


class AttributedKey(NamedTuple):
    device: Device
    policy: Policy
    run_id: str


class AttributionChanges(NamedTuple):
    microjoules: dict[AttributedKey, int]
    forgotten: set[str]
    """Runs that are removed."""


@dataclass(frozen=True, slots=True)
class DeviceLoads:
    """Runs that hold a device, and their loads in any one unit. The key NO_RUN is the load of other processes."""

    loads: Mapping[str, float] = field(default_factory=dict)

    @property
    def holders(self) -> list[str]:
        return list(self.loads)


def split_energy(
    energy_uj: int, idle_uj: int, loads: DeviceLoads, policy: Policy, *, idle_by_load: bool
) -> dict[str, int]:
    """Return the microjoules of each run, which add up to exactly `energy_uj`."""
    idle_uj = min(idle_uj, energy_uj)
    holders = loads.holders or [NO_RUN]
    equal = dict.fromkeys(holders, 1.0)
    loaded = {run_id: load for run_id, load in loads.loads.items() if load > 0}
    above = _divide_by_weight(energy_uj - idle_uj, loaded or equal)
    idle = {NO_RUN: idle_uj}
    if policy == "idle_shared":
        idle = _divide_by_weight(idle_uj, (loaded or equal) if idle_by_load else equal)
    return {run_id: above.get(run_id, 0) + idle.get(run_id, 0) for run_id in above.keys() | idle.keys()}


def _divide_by_weight(amount: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Divide by weight into whole numbers; the last one gets the rounding difference."""
    total = sum(weights.values())
    shares = {name: int(amount * (weight / total)) for name, weight in weights.items()}
    shares[next(reversed(shares))] += amount - sum(shares.values())
    return shares


class _IdlePower:
    """Lowest mean power of a device without load, from its energy about once a second."""

    def __init__(self, watts: float | None) -> None:
        self.watts = watts
        self._window: deque[tuple[float, float]] = deque(maxlen=IDLE_S + 1)

    def discard_window(self) -> None:
        self._window.clear()

    def update(self, t_s: float, energy_j: float) -> None:
        since_s = t_s - self._window[-1][0] if self._window else 1.0
        if since_s < 0.5:
            return
        if since_s > 2.5:
            self._window.clear()  # a gap gives no information about the idle power
        self._window.append((t_s, energy_j))
        if len(self._window) <= IDLE_S:
            return
        (from_s, from_j), (to_s, to_j) = self._window[0], self._window[-1]
        watts = (to_j - from_j) / (to_s - from_s)
        self.watts = watts if self.watts is None else min(self.watts, watts)


class Attribution:
    """Attributed energy by device, policy and run.

    `energy_j` is the energy of each device up to which `microjoules` has its shares. If it has none, that energy is
    unattributed.
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
        self._idle = {device: _IdlePower(watts) for device, watts in (idle_w or {}).items()}
        self._divided_s = {} if saved_s is None else dict.fromkeys(self._done_uj, saved_s)
        self._changed: set[AttributedKey] = set()
        self._forgotten: set[str] = set()
        self._holders: dict[Device, list[tuple[float, DeviceLoads]]] = {}
        """Holders of each device, with the instant from which they hold it, in order of time."""

    @property
    def idle_w(self) -> dict[Device, float]:
        return {device: idle.watts for device, idle in self._idle.items() if idle.watts is not None}

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

    def divide(self, device: Device, energy_j: float, at_s: float) -> None:
        """Attribute a device's energy up to `at_s`; `energy_j` is its total since the state folder was created.

        The power since the last call is assumed to be constant.
        """
        energy_uj = int(energy_j * _UJ)
        step_uj = energy_uj - self._done_uj.get(device, 0)
        if step_uj <= 0:
            return
        idle = self._idle.setdefault(device, _IdlePower(None))
        idle.update(at_s, energy_j)
        since_s = self._divided_s.get(device, at_s)
        self._divided_s[device] = at_s
        self._done_uj[device] = energy_uj
        rest_uj = step_uj
        for from_s, until_s, loads in self._holding_periods(device, since_s, at_s):
            share = (until_s - from_s) / (at_s - since_s) if at_s > since_s else 0.0
            part_uj = rest_uj if until_s == at_s else min(rest_uj, int(step_uj * share))
            rest_uj -= part_uj
            self._add_shares(device, part_uj, int((idle.watts or 0.0) * (until_s - from_s) * _UJ), loads)

    def _holding_periods(self, device: Device, since_s: float, at_s: float) -> list[tuple[float, float, DeviceLoads]]:
        """Return the holders from `since_s` to `at_s` without a gap, and remove older ones."""
        changes = self._holders.setdefault(device, [])
        current = [change for change in changes if change[0] <= since_s][-1:] or [(since_s, DeviceLoads())]
        current += [change for change in changes if since_s < change[0] < at_s]
        changes[:] = [current[-1], *(change for change in changes if change[0] >= at_s)]
        ends_s = [*(from_s for from_s, _ in current[1:]), at_s]
        return [(max(from_s, since_s), end_s, loads) for (from_s, loads), end_s in zip(current, ends_s, strict=True)]

    def _add_shares(self, device: Device, energy_uj: int, idle_uj: int, loads: DeviceLoads) -> None:
        for policy in POLICIES:
            for run_id, amount in split_energy(
                energy_uj, idle_uj, loads, policy, idle_by_load=device.kind != "gpu"
            ).items():
                key = AttributedKey(device, policy, run_id)
                self.microjoules[key] = self.microjoules.get(key, 0) + amount
                self._changed.add(key)

    def keep(self, run_ids: Collection[str]) -> None:
        """Remove the shares of all other runs. Their energy is not attributed again."""
        gone = {key.run_id for key in self.microjoules} - {NO_RUN, *run_ids}
        if gone:
            gone -= self._undivided_holders()
            self._forgotten |= gone
            self.microjoules = {key: amount for key, amount in self.microjoules.items() if key.run_id not in gone}

    def _undivided_holders(self) -> set[str]:
        """Return the runs that held a device since its last poll: they still get shares, which must not start at 0."""
        return {run_id for changes in self._holders.values() for _, loads in changes for run_id in loads.loads}

    def take_changes(self) -> AttributionChanges:
        """Return the changes since the last call."""
        changes = AttributionChanges(
            {k: self.microjoules[k] for k in self._changed & self.microjoules.keys()}, self._forgotten
        )
        self._changed, self._forgotten = set(), set()
        return changes

    def put_back(self, changes: AttributionChanges) -> None:
        """Add changes that could not be saved to the next ones."""
        self._changed |= changes.microjoules.keys()
        self._forgotten |= changes.forgotten

    def share_j(self, device: Device, policy: Policy, run_id: str) -> float | None:
        amount = self.microjoules.get(AttributedKey(device, policy, run_id))
        return None if amount is None else amount / _UJ

    def readings(self, readable: Collection[Device]) -> Iterator[Reading]:
        """Yield the attributed energies and idle powers of the `readable` devices."""
        for (device, policy, run_id), amount in self.microjoules.items():
            if device.component and device in readable:
                yield Reading(RUN_ATTRIBUTED_ENERGY, (run_id, device.component, device.id, policy), amount / _UJ)
        for device, watts in self.idle_w.items():
            if device.component and device in readable:
                yield Reading(IDLE_POWER, (device.component, device.id), watts)


def gpu_loads(
    holders: Sequence[str], processes: Iterable[GpuProcess], pids: Mapping[str, Collection[int]]
) -> DeviceLoads:
    """Return the loads on a GPU that the runs `holders` hold, by kernel time, else by memory, else by process count.

    `pids` has the processes of each run that named processes or a cgroup. The runs that named none share the load of
    all processes that belong to no other run. All `holders` hold the GPU, even without load.
    """
    loads: dict[str, float] = dict.fromkeys(holders, 0.0)
    running = list(processes)
    for process, weight in zip(running, _weights(running), strict=True):
        owner = next((run_id for run_id in holders if process.pid in pids.get(run_id, ())), NO_RUN)
        loads[owner] = loads.get(owner, 0.0) + weight
    return DeviceLoads(_assign_rest(loads, holders, pids))


def cpu_loads(
    holders: Sequence[str], cpu_s: Mapping[str, float], busy_s: float, pids: Mapping[str, object]
) -> DeviceLoads:
    """Return the loads on a CPU package or its memory, by the runs' CPU time since the last scan.

    `busy_s` is the CPU time of the whole node. Processes are not bound to packages, so all have the same loads.
    """
    loads = {run_id: max(0.0, cpu_s.get(run_id, 0.0)) for run_id in holders}
    loads[NO_RUN] = max(0.0, busy_s - sum(loads.values()))
    return DeviceLoads(_assign_rest(loads, holders, pids))


def _weights(processes: list[GpuProcess]) -> list[float]:
    if any(process.utilization is not None for process in processes):
        return [process.utilization or 0.0 for process in processes]
    if any(process.memory_bytes is not None for process in processes):
        return [float(process.memory_bytes or 0) for process in processes]
    return [1.0] * len(processes)


def _assign_rest(loads: dict[str, float], holders: Sequence[str], pids: Mapping[str, object]) -> dict[str, float]:
    """Divide the load of no run equally among the runs that named no processes, if there are any."""
    claimants = [run_id for run_id in holders if run_id not in pids]
    if not claimants:
        return loads
    rest = loads.pop(NO_RUN, 0.0)
    return {run_id: load + (rest / len(claimants) if run_id in claimants else 0.0) for run_id, load in loads.items()}

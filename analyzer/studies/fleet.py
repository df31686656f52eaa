"""Energy of a fleet by group of runs, and its unattributed part, from sums of a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from exporter.contract.work import is_amount

NO_LABEL = "(none)"
NO_RUN = "(no run)"
NO_GPU = "(no GPU)"
COMPONENTS = ("gpu", "cpu", "dram")
REPORTED_EXCESS = 0.01
"""Ratio of parts to counters from which a difference is reported; scrape times explain about 0.001."""
_KWH_J = 3.6e6

Keys = tuple[str, ...]
Sums = Mapping[tuple[Keys, Keys], float]
"""Sums by the keys of a group and by (component,), (unit,) or (basis, quality)."""
GIVEN = ("given", "static")


@dataclass(frozen=True, slots=True)
class Counts:
    """Sums of the server, in joules except `work` (in its unit), `grams`, `device_grams` and `runs`.

    `working` is the energy of the runs that report a unit. `idle` is the energy of GPUs without a run.
    """

    devices: Sums
    unclaimed: Sums
    claimed: Sums
    work: Sums
    working: Sums
    grams: Sums
    device_grams: Sums
    runs: Sums
    idle: Sums
    means: Means


@dataclass(frozen=True, slots=True)
class Means:
    """Origin of the sums: `asked` queries with `moved_bytes` in total, in `spans` parts of the window."""

    by: Literal["raw samples", "recording rules"]
    start_s: float
    end_s: float
    server: str
    spans: int
    asked: int
    moved_bytes: int
    why_not_rules: str = ""


@dataclass(frozen=True, slots=True)
class GroupWork:
    """Work of a group; `joules` is the attributed GPU energy of the runs that report this unit.

    In runs without a GPU it is the energy of the CPUs.
    """

    amount: float
    joules: float

    @property
    def joules_per_unit(self) -> float | None:
        return self.joules / self.amount if self.amount > 0 and self.joules > 0 else None


@dataclass(frozen=True, slots=True)
class FleetGroup:
    """One group of runs; `joules` by component, `grams` by basis and quality."""

    keys: Keys
    joules: Mapping[str, float]
    runs: int | None = None
    work: Mapping[str, GroupWork] = field(default_factory=dict)
    grams: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @property
    def energy_j(self) -> float:
        return sum(self.joules.values())


@dataclass(frozen=True, slots=True)
class Fleet:
    """Energy of a fleet; `groups` by falling energy, `unattributed` is the energy of no run."""

    by: Keys
    policy: str
    groups: tuple[FleetGroup, ...]
    unattributed: tuple[FleetGroup, ...]
    devices: Mapping[str, float]
    device_grams: Mapping[tuple[str, str], float]
    idle_j: float
    means: Means

    @property
    def device_j(self) -> float:
        return sum(self.devices.values())

    @property
    def parts(self) -> dict[str, float]:
        """Energy of all groups and without a run, by component."""
        found: dict[str, float] = {}
        for group in (*self.groups, *self.unattributed):
            for name, joules in group.joules.items():
                found[name] = found.get(name, 0.0) + joules
        return found

    @property
    def whole_j(self) -> float:
        """Energy of all components that shares refer to."""
        return sum(self.whole.values())

    @property
    def whole(self) -> dict[str, float]:
        """Energy by component: the devices' counters, or the parts where they are more.

        Runs before the first scrape of their exporter have energy that no counter of a device shows.
        """
        parts = self.parts
        names = [name for name in COMPONENTS if name in {*self.devices, *parts}]
        return {name: max(self.devices.get(name, 0.0), parts.get(name, 0.0)) for name in names}

    def share(self, group: FleetGroup) -> float | None:
        """Return the share of a group, an upper limit if the counters do not cover the time of all runs."""
        return group.energy_j / self.whole_j if self.whole_j > 0 else None

    @property
    def claimed_j(self) -> float:
        return sum(group.energy_j for group in self.groups)

    @property
    def unattributed_j(self) -> float:
        return sum(group.energy_j for group in self.unattributed)

    @property
    def excess_ratio(self) -> float | None:
        """Excess of the parts over the counters of the devices, as a ratio."""
        return (self.claimed_j + self.unattributed_j) / self.device_j - 1 if self.device_j > 0 else None


def fleet(by: Keys, policy: str, counts: Counts, grams_per_kwh: float | None = None) -> Fleet:
    """Return the groups of a fleet; `grams_per_kwh` replaces the recorded emissions."""
    joules = _by_group(_named(counts.claimed))
    work, working = _by_group(_named(counts.work)), _by_group(_named(counts.working))
    runs = _by_group(_named(counts.runs))
    emitted = _by_group(_named(counts.grams))
    groups = []
    for keys in joules.keys() | work.keys():
        components = {what[0]: value for what, value in joules.get(keys, {}).items()}
        grams = {(what[0], what[1]): value for what, value in emitted.get(keys, {}).items()}
        if grams_per_kwh is not None:
            grams = {GIVEN: sum(components.values()) / _KWH_J * grams_per_kwh}
        done = {
            what[0]: GroupWork(amount, working.get(keys, {}).get(what, 0.0))
            for what, amount in work.get(keys, {}).items()
            if is_amount(what[0])
        }
        number = runs.get(keys, {}).get(())
        if number is None and not any(components.values()):
            continue  # ended before the window
        groups.append(FleetGroup(keys, components, None if number is None else round(number), done, grams))
    unattributed = [
        FleetGroup(keys, {what[0]: value for what, value in parts.items()})
        for keys, parts in _by_group(_named(counts.unclaimed, NO_GPU)).items()
    ]
    devices = _total(counts.devices)
    total_grams = {(what[0], what[1]): value for what, value in _total(counts.device_grams).items()}
    if grams_per_kwh is not None:
        total_grams = {GIVEN: sum(devices.values()) / _KWH_J * grams_per_kwh}
    return Fleet(
        by,
        policy,
        tuple(sorted(groups, key=lambda group: (-group.energy_j, group.keys))),
        tuple(sorted(unattributed, key=lambda group: (-group.energy_j, group.keys))),
        {name: devices[name,] for name in COMPONENTS if (name,) in devices},
        total_grams,
        sum(counts.idle.values()),
        counts.means,
    )


def add_sums(sums: Iterable[Sums]) -> dict[tuple[Keys, Keys], float]:
    """Add the sums of adjacent windows."""
    total: dict[tuple[Keys, Keys], float] = {}
    for each in sums:
        for key, value in each.items():
            total[key] = total.get(key, 0.0) + value
    return total


def _named(sums: Sums, lacking: str = NO_LABEL) -> Sums:
    """Replace empty keys by a name."""
    return {(tuple(key or lacking for key in keys), what): value for (keys, what), value in sums.items()}


def _by_group(sums: Sums) -> dict[Keys, dict[Keys, float]]:
    groups: dict[Keys, dict[Keys, float]] = {}
    for (keys, what), value in sums.items():
        groups.setdefault(keys, {})[what] = value
    return groups


def _total(sums: Sums) -> dict[Keys, float]:
    total: dict[Keys, float] = {}
    for (_, what), value in sums.items():
        total[what] = total.get(what, 0.0) + value
    return total

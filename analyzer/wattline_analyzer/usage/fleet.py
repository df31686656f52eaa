"""Model of a fleet: sums of a server, and the energy by group of runs with its unattributed
part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from wattline.contract.work import primary_first

NO_LABEL = "(none)"
NO_RUN = "(no run)"
NO_GPU = "(no GPU)"
COMPONENTS = ("gpu", "cpu", "dram")
REPORTED_EXCESS = 0.01
"""Ratio of parts to counters from which a difference is reported; scrape times explain about 0.001.
"""
_TOLERANCE_S, _TOLERATED, _TOLERATED_SCRAPES = 300.0, 0.01, 3
"""Longest time without samples at an edge of a window that is not reported, its ratio to the
window, in scrapes.
"""

Keys = tuple[str, ...]
Sums = Mapping[tuple[Keys, Keys], float]
"""Sums by the keys of a group and by (component,), (unit,) or (basis, quality)."""
GIVEN = ("given", "static")


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """Nodes with samples in the window, and those without samples at its start and at its end."""

    names: tuple[str, ...] = ()
    without_start: tuple[str, ...] = ()
    without_end: tuple[str, ...] = ()


def start_tolerance_s(window_s: float) -> float:
    """Return the time after the start of a window up to which a first sample is not reported as
    late.

    Nodes with a sample in the hour before the window need none.
    """
    return min(_TOLERANCE_S, _TOLERATED * window_s)


def end_tolerance_s(window_s: float, scrape_interval_s: float) -> float:
    """Return the time before the end of a window from which on a last sample is not reported as
    early.
    """
    return min(_TOLERANCE_S, max(_TOLERATED * window_s, _TOLERATED_SCRAPES * scrape_interval_s))


@dataclass(frozen=True, slots=True)
class Counts:
    """Sums of the server, in joules except `work` (in its unit), `grams`, `device_grams` and
    `runs`.

    `working` is the energy of the runs that report a unit, `unmeasured` the work of those without
    energy. `idle` is the energy of GPUs without a run, `primary` the number of runs by their
    primary unit. `gpu_seconds`, `squared_halves` (sum of squared half-widths, in J²) and `certain`
    (energy of the runs with a half-width) are of the groups; they and `nodes` are empty if not
    requested. `by_owners`: the energy is of the counters by owner. `emissions_left_out`: these have
    no emissions by this policy. `emission_energy` is the energy of the devices with emissions, by
    basis.
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
    gpu_seconds: Sums = field(default_factory=dict)
    certain: Sums = field(default_factory=dict)
    squared_halves: Sums = field(default_factory=dict)
    nodes: NodeTimes = field(default_factory=NodeTimes)
    unattributed_gpu_seconds: Sums = field(default_factory=dict)
    unattributed_grams: Sums = field(default_factory=dict)
    by_owners: bool = False
    emissions_left_out: bool = False
    unmeasured: Sums = field(default_factory=dict)
    primary: Mapping[str, float] = field(default_factory=dict)
    emission_energy: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Means:
    """Origin of the sums: `asked` queries with `moved_bytes` in total, in `spans` parts of the
    window.
    """

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

    In runs without a GPU it is the energy of the CPUs. `unmeasured` is the part of the work in runs
    without energy.
    """

    amount: float
    joules: float
    unmeasured: float = 0.0

    @property
    def joules_per_unit(self) -> float | None:
        amount = self.amount - self.unmeasured
        return self.joules / amount if amount > 0 and self.joules > 0 else None


@dataclass(frozen=True, slots=True)
class FleetGroup:
    """One group of runs; `joules` by component, `grams` by basis and quality.

    `half_j` is the half-width of the 95 % CI of the energy; None where it is unknown for a part of
    the runs.
    """

    keys: Keys
    joules: Mapping[str, float]
    runs: int | None = None
    work: Mapping[str, GroupWork] = field(default_factory=dict)
    grams: Mapping[tuple[str, str], float] = field(default_factory=dict)
    gpu_seconds: float | None = None
    half_j: float | None = None

    @property
    def energy_j(self) -> float:
        return sum(self.joules.values())


@dataclass(frozen=True, slots=True)
class Fleet:
    """Energy of a fleet; `groups` by falling energy, `unattributed` of no run, `primary` the runs
    by primary unit.
    """

    by: Keys
    policy: str
    groups: tuple[FleetGroup, ...]
    unattributed: tuple[FleetGroup, ...]
    devices: Mapping[str, float]
    device_grams: Mapping[tuple[str, str], float]
    idle_j: float
    means: Means
    nodes: NodeTimes = field(default_factory=NodeTimes)
    by_owners: bool = False
    emissions_left_out: bool = False
    primary: Mapping[str, float] = field(default_factory=dict)
    emission_energy: Mapping[str, float] = field(default_factory=dict)

    @property
    def emission_shares(self) -> dict[str, float]:
        """Share of the devices' energy that the emissions counted by the nodes are of, by basis,
        where it is known.
        """
        bases = {basis for basis, _ in self.device_grams}
        known = {basis: joules for basis, joules in self.emission_energy.items() if basis in bases}
        return (
            {basis: min(joules / self.device_j, 1.0) for basis, joules in known.items()}
            if self.device_j > 0
            else {}
        )

    @property
    def units(self) -> list[str]:
        """Units of work of all groups; those come first that are the primary one of most runs."""
        units = primary_first({unit for group in self.groups for unit in group.work})
        return sorted(units, key=lambda unit: -self.primary.get(unit, 0.0))

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

        Runs before the first scrape of their exporter have energy that no counter of a device
        shows.
        """
        parts = self.parts
        names = [name for name in COMPONENTS if name in {*self.devices, *parts}]
        return {name: max(self.devices.get(name, 0.0), parts.get(name, 0.0)) for name in names}

    def share(self, group: FleetGroup) -> float | None:
        """Return the share of a group, an upper limit if the counters do not cover the time of all
        runs.
        """
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
        return (
            (self.claimed_j + self.unattributed_j) / self.device_j - 1
            if self.device_j > 0
            else None
        )


def add_sums(sums: Iterable[Sums]) -> dict[tuple[Keys, Keys], float]:
    """Add the sums of adjacent windows."""
    total: dict[tuple[Keys, Keys], float] = {}
    for each in sums:
        for key, value in each.items():
            total[key] = total.get(key, 0.0) + value
    return total

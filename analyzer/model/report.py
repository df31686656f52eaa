"""What was measured of one run: all that a report prints, whatever its format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from analyzer.assess.boundaries import Boundary
from analyzer.carbon.emissions import Emission, EmissionTotal, totals
from analyzer.carbon.intensity import CarbonSlot
from analyzer.carbon.sci import Sci
from analyzer.energy.calibration import Calibrated, Calibration
from analyzer.energy.checks import Finding
from analyzer.energy.error_budget import Budget
from analyzer.energy.states import ESTIMATE
from analyzer.model.cost import Price
from analyzer.model.interval import Interval, total

if TYPE_CHECKING:
    from analyzer.carbon.restate import Restatement


@dataclass(frozen=True, slots=True)
class Device:
    """One device of the run. Energies in joules between the run's begin and end on the device's own instance.

    `energy` is the ledger's figure. `integral_j` is the ledger's integral of power, `own` the analyzer's figure from
    raw samples, `net` what is left above `idle_power_w`. `duration_s` is how long the energy is of: less than the run
    where an import or an untagged range has no samples. `shared` says that other runs used it at the same time,
    `divided` that a part of the energy is not this run's; `attributed_j` is its part by policy, where that is known.
    """

    instance: str
    component: str
    device: str
    label: str
    name: str
    energy: Interval
    duration_s: float
    integral_j: float | None = None
    own: Interval | None = None
    idle_power_w: Interval | None = None
    net: Interval | None = None
    max_power_w: float | None = None
    power_limit_w: float | None = None
    covered_ratio: float | None = None
    shared: bool = False
    divided: bool = False
    attributed_j: Mapping[str, float] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    """Where the energy came from, in the order of time."""
    architecture: str = ""
    budget: Budget | None = None
    calibration: Calibration | None = None
    calibrated: Interval | None = None
    """The energy as the calibration puts it right, in joules."""

    @property
    def estimated(self) -> bool:
        """Some of the energy at least was not measured: it was taken from utilization."""
        return ESTIMATE in self.methods

    @property
    def mean_power_w(self) -> Interval | None:
        return self.energy.scaled(1 / self.duration_s) if self.duration_s > 0 else None


@dataclass(frozen=True, slots=True)
class Work:
    """`energy_per_unit` is that of the GPUs (of all devices in a run without GPUs), a ratio of sums."""

    unit: str
    amount: float
    per_second: float | None
    energy_per_unit: Interval | None
    phases: tuple[str, ...] = ()
    """Those in which it was done, where that is not the whole run: the rate and the energy are of them alone."""


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    duration_s: float
    energy: Mapping[str, Interval]
    """By component, in joules."""


@dataclass(frozen=True, slots=True)
class Report:
    """`energy` by component; `own`, `integral_j` and `net` are those of all GPUs, None where one of them lacks it."""

    run_id: str
    source: str
    workload: str
    labels: Mapping[str, str]
    instances: tuple[str, ...]
    simulated: bool
    outcome: str | None
    started_at_s: float
    ended_at_s: float | None
    duration_s: float
    devices: tuple[Device, ...]
    energy: Mapping[str, Interval]
    own: Interval | None
    integral_j: float | None
    net: Interval | None
    work: tuple[Work, ...]
    phases: tuple[Phase, ...]
    results: Mapping[str, float]
    emissions: tuple[Emission, ...]
    carbon_slots: tuple[CarbonSlot, ...]
    findings: tuple[Finding, ...]
    boundaries: tuple[Boundary, ...] = ()
    price: Price | None = None
    restated: tuple[Restatement, ...] = ()
    sci: tuple[Sci, ...] = ()
    untagged: bool = False
    """It is a range of time that no run tagged."""
    calibrated: Calibrated | None = None

    @property
    def headline(self) -> Interval | None:
        """The energy of the run: of its GPUs, or of what else there is in a run without GPUs."""
        return self.energy.get("gpu") or self.energy.get("cpu") or self.energy.get("dram")

    @property
    def whole(self) -> Interval | None:
        """All components together; None where there is but one, or one of them was shared with other runs."""
        if len(self.energy) < 2 or any(device.shared for device in self.devices):
            return None
        return total(self.energy.values())

    @property
    def estimated(self) -> frozenset[str]:
        """The components whose energy is an estimate, some of it at least."""
        return frozenset(device.component for device in self.devices if device.estimated)

    @property
    def headline_estimated(self) -> bool:
        return next(iter(self.energy), "") in self.estimated

    @property
    def shares(self) -> dict[str, dict[str, float]]:
        """The run's joules by component and policy, of those components of which a part is not the run's."""
        found = {}
        for component in self.energy:
            mine = [device for device in self.devices if device.component == component]
            if any(device.divided for device in mine) and all(device.attributed_j for device in mine):
                found[component] = {
                    policy: math.fsum(device.attributed_j.get(policy, 0.0) for device in mine)
                    for policy in mine[0].attributed_j
                }
        return found

    @property
    def emission_totals(self) -> tuple[EmissionTotal, ...]:
        return tuple(totals(self.emissions))

    @property
    def mean_power_w(self) -> Interval | None:
        return self.headline.scaled(1 / self.duration_s) if self.headline and self.duration_s > 0 else None

    @property
    def gpus(self) -> tuple[Device, ...]:
        return tuple(device for device in self.devices if device.component == "gpu")

"""Devices of a run: energy, share, uncertainty budget and calibration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from wattline.contract.power_sensors import gpu_limits_j
from wattline.contract.work import SHARE_POLICY, is_shared
from wattline.figures import Figure, sum_of_independent
from wattline_analyzer.core.units import WHOLE_RATIO

ESTIMATE = "model"
"""The energy method of --cpu.power-model: power estimated from utilization, not measured."""
SCRAPED = "scraped_power"
"""The energy method of untagged ranges without a counter: the analyzer's integral of scraped power.
"""
SIMULATED = "SIMULATED"
SIMULATED_REMARK = f"{SIMULATED} hardware: the figures do not describe a real GPU"


class GpuModel(NamedTuple):
    """Name and architecture of a GPU, from which the accuracy of its sensor is known."""

    name: str
    architecture: str

    @property
    def simulated(self) -> bool:
        return self.name.startswith(SIMULATED)

    def with_accuracy(self, energy: Figure) -> Figure:
        """Return an energy of this GPU with the systematic error of its sensor; a simulated sensor
        has none.
        """
        if self.simulated:
            return energy
        return replace(energy, bias=gpu_limits_j(energy.number, self.name, self.architecture))


UNKNOWN_GPU = GpuModel("", "")


SAMPLED_RATIO = 0.99
"""Least ratio of a time for which a file or a server has samples, to count as all of it."""


class DeviceKey(NamedTuple):
    """Identity of a device within a run; `device` is a UUID or a number."""

    instance: str
    component: str
    device: str


@dataclass(frozen=True, slots=True)
class ReportDevice:
    """A device with its energy in joules between the run's start and end on the device's instance.

    `energy` is the ledger's figure, `integral_j` the ledger's integral of power. `from_raw_samples`
    is the analyzer's figure from raw samples, `net` the energy above `idle_power_w`. `duration_s`
    is the time that the energy covers: less than the run where an import or an untagged range lacks
    samples. `shared` is True if other runs used the device at the same time. `methods` names the
    sources of the energy in the order of time. `attributed_j` is the run's share in joules by
    policy, where it is known.
    """

    instance: str
    component: str
    device: str
    label: str
    name: str
    energy: Figure
    duration_s: float
    integral_j: float | None = None
    from_raw_samples: Figure | None = None
    idle_power_w: Figure | None = None
    net: Figure | None = None
    max_power_w: float | None = None
    power_limit_w: float | None = None
    covered_ratio: float | None = None
    shared: bool = False
    methods: tuple[str, ...] = ()
    architecture: str = ""
    attributed_j: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.instance, self.component, self.device)

    @property
    def estimated(self) -> bool:
        """At least a part of the energy is estimated from utilization."""
        return ESTIMATE in self.methods

    @property
    def is_covered(self) -> bool:
        """True if the device was read during the whole run, as far as known."""
        return self.covered_ratio is None or self.covered_ratio >= WHOLE_RATIO

    @property
    def simulated(self) -> bool:
        return self.name.startswith(SIMULATED)

    @property
    def mean_power_w(self) -> Figure | None:
        return self.energy.scaled(1 / self.duration_s) if self.duration_s > 0 else None

    @property
    def divided(self) -> bool:
        """True if a part of the energy is not the run's, with the idle power attributed to the
        holders.
        """
        attributed_j = self.attributed_j.get(SHARE_POLICY)
        return attributed_j is not None and is_shared(
            self.energy.number,
            attributed_j,
            mean_power_w=self.mean_power_w.number if self.mean_power_w else 0.0,
            max_power_w=self.max_power_w or 0.0,
            half_j=self.energy.half_width,
        )


@dataclass(frozen=True, slots=True)
class UncertaintyBudget:
    """The contributions to the uncertainty of an energy, in joules; None where unknown or not
    applicable. `edges_j` and `sampling_j` are both None where one of them is unknown.

    `edges_j`: half-width of the ledger's interval, mostly from the sensor's update interval at
    start and end. `sampling_j`: half-width for power changes between samples. `gaps_j`: least and
    most energy in gaps. `sensor_j`: the true value minus the reading, least and most. `aliasing_j`:
    greatest error, either way. `residual_j`: uncertainty that remains after calibration, either
    way.
    """

    energy_j: float
    edges_j: float | None = None
    sampling_j: float | None = None
    gaps_j: tuple[float, float] | None = None
    sensor_j: tuple[float, float] | None = None
    aliasing_j: float | None = None
    residual_j: float | None = None

    @property
    def random_j(self) -> float | None:
        """The half-width of the 95 % confidence interval."""
        parts = [Figure(0.0, self.edges_j), Figure(0.0, self.sampling_j)]
        applicable = [part for part in parts if part.half_width is not None]
        return sum_of_independent(applicable).half_width

    @property
    def sizes_j(self) -> dict[str, float]:
        """The greatest error of each contribution that is known, alone."""
        sensor_j = self.residual_j
        if sensor_j is None and self.sensor_j is not None:
            sensor_j = max(map(abs, self.sensor_j))
        sizes_j = {
            "sensor": sensor_j,
            "aliasing": self.aliasing_j,
            "gaps": None if self.gaps_j is None else max(self.gaps_j),
            "sampling": self.sampling_j,
            "edges": self.edges_j,
        }
        return {part: size_j for part, size_j in sizes_j.items() if size_j is not None}

    @property
    def largest(self) -> str | None:
        sizes_j = {part: size_j for part, size_j in self.sizes_j.items() if size_j > 0}
        return max(sizes_j, key=lambda part: sizes_j[part], default=None)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibration of one GPU: reading = gain · true power + offset.

    `uncertainty_percent` is the half-width that remains after calibration.
    """

    uuid: str
    gain: float
    offset_w: float
    uncertainty_percent: float | None = None
    source: str = ""

    def energy(self, reading: Figure, duration_s: float) -> Figure:
        """Return (E − offset · T) / gain with the interval of the reading; the residual uncertainty
        is separate.
        """
        return Figure(reading.number - self.offset_w * duration_s, reading.half_width).scaled(
            1 / self.gain
        )


@dataclass(frozen=True, slots=True)
class CalibratedGpu:
    """The calibration of a GPU of the run, and the GPU's calibrated energy in joules."""

    calibration: Calibration
    energy: Figure

    @property
    def residual_j(self) -> float | None:
        """The uncertainty that remains after calibration, either way."""
        percent = self.calibration.uncertainty_percent
        return None if percent is None else abs(self.energy.number) * percent / 100

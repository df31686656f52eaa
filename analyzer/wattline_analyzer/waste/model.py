"""Classes of waste, their thresholds, holders of GPUs, and findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from wattline.figures import JOULES_PER_KWH, Figure, sum_of_correlated, unknown


class WasteClass(StrEnum):
    """Class of waste; a second of a GPU belongs to the first class in this order that applies."""

    EXECUTION_IDLE = "execution_idle"
    HELD_IDLE = "held_idle"
    CLOCKS_STUCK = "clocks_stuck"
    THROTTLED = "throttled"
    LIMIT_LEFT = "limit_left"
    UNCLAIMED = "unclaimed"


CLASSES = tuple(WasteClass)
IDLE = (WasteClass.EXECUTION_IDLE, WasteClass.HELD_IDLE, WasteClass.CLOCKS_STUCK)
"""Classes in which the GPU does no work: all energy above deep idle is waste. In the others it is
an upper bound.
"""
SUMMED = (WasteClass.THROTTLED, WasteClass.UNCLAIMED)
"""Classes whose minimum duration applies to the sum; in the others it applies to each episode."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits between idle and busy.

    A GPU is idle while every sample of its utilization is at most `idle_ratio`, and its mean power
    from the energy counter at most `power_factor` times its sampled power plus `power_margin_w`:
    work between two samples raises the mean. A model is loaded from `loaded_bytes` on. Clocks are
    up from `clock_ratio` of the maximum on. A clock limit is active for `locked_share` of the time,
    at less than `locked_ratio` of the maximum.
    """

    min_s: float = 600.0
    idle_ratio: float = 0.02
    power_factor: float = 1.1
    power_margin_w: float = 2.0
    loaded_bytes: float = 2.0**30
    clock_ratio: float = 0.5
    locked_ratio: float = 0.8
    locked_share: float = 0.9
    site_limits_w: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """Run or pod that holds a GPU; `name` is the run ID, or namespace/pod."""

    kind: str
    name: str
    labels: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    @property
    def sets_limit(self) -> bool:
        """True for a run of a sweep, which sets a power limit or a clock intentionally."""
        return any(
            name in ("power_limit_watts", "sm_clock_hertz") and text for name, text in self.labels
        )

    def label(self, name: str) -> str:
        return dict(self.labels).get(name, "")


@dataclass(frozen=True, slots=True)
class HeldSpan:
    """Time span in Unix seconds in which a holder has a GPU."""

    start_s: float
    end_s: float
    holder: Holder


@dataclass(frozen=True, slots=True, order=True)
class GpuKey:
    instance: str
    uuid: str


@dataclass(frozen=True, slots=True)
class GpuEvidence:
    """Energy and state of one GPU in one class.

    `energy_j` is all energy in the state, `idle_j` the energy of the same time at deep-idle power,
    None if unknown. `half_j` is the half-width of the 95 % confidence interval of the waste,
    `grams` are its emissions. `utilization_ratio` and `clock_ratio` are means over time. `ongoing`
    is True if the state held at the end of the samples.
    """

    gpu: GpuKey
    index: str
    seconds: float
    energy_j: float
    idle_j: float | None
    half_j: float | None
    grams: float | None
    first_s: float
    last_s: float
    ongoing: bool
    utilization_ratio: float | None = None
    clock_ratio: float | None = None
    limit_w: float | None = None
    default_limit_w: float | None = None

    @property
    def waste_j(self) -> float | None:
        return None if self.idle_j is None else max(self.energy_j - self.idle_j, 0.0)

    @property
    def mean_power_w(self) -> float:
        return self.energy_j / self.seconds


@dataclass(frozen=True, slots=True)
class WasteFinding:
    """Waste of one class on one node with the same holders, on one or more GPUs."""

    kind: WasteClass
    instance: str
    holders: tuple[Holder, ...]
    gpus: tuple[GpuEvidence, ...]
    command: str = ""

    @property
    def seconds(self) -> float:
        return sum(gpu.seconds for gpu in self.gpus)

    @property
    def energy_j(self) -> float:
        return sum(gpu.energy_j for gpu in self.gpus)

    @property
    def waste_j(self) -> float | None:
        """Energy above deep idle; None if the deep-idle power of a GPU is unknown."""
        return sum_known([gpu.waste_j for gpu in self.gpus])

    @property
    def half_j(self) -> float | None:
        """Half-width of the 95 % confidence interval; None if the GPU worked, so that the waste is
        an upper bound.
        """
        if self.kind not in IDLE:
            return None
        return sum_of_correlated(Figure(0.0, gpu.half_j) for gpu in self.gpus).half_width

    @property
    def waste(self) -> Figure:
        """Waste of all GPUs."""
        if self.waste_j is None:
            return unknown("deep-idle power unknown")
        return Figure(self.waste_j, self.half_j)

    @property
    def limits_j(self) -> tuple[float, float] | None:
        """Limits of the waste, from 0 on if the GPU worked; None where they are unknown."""
        if self.waste_j is None:
            return None
        if self.kind not in IDLE:
            return 0.0, self.waste_j
        if self.half_j is None:
            return None
        return max(self.waste_j - self.half_j, 0.0), self.waste_j + self.half_j

    @property
    def grams(self) -> float | None:
        return sum_known([gpu.grams for gpu in self.gpus])

    @property
    def ongoing(self) -> bool:
        return any(gpu.ongoing for gpu in self.gpus)

    def cost(self, per_kwh: float) -> float | None:
        return None if self.waste_j is None else self.waste_j / JOULES_PER_KWH * per_kwh


@dataclass(frozen=True, slots=True)
class Waste:
    """Findings of a window by falling waste, with the coverage of the samples.

    `gpu_seconds` and `energy_j` are of all intervals with samples. `missing` are lines about
    missing data.
    """

    findings: tuple[WasteFinding, ...]
    gpus: int
    gpu_seconds: float
    energy_j: float
    missing: tuple[str, ...] = ()

    def total_j(self, kinds: Sequence[WasteClass]) -> float:
        """Return the waste of these classes, without findings of unknown waste."""
        return sum(finding.waste_j or 0.0 for finding in self.findings if finding.kind in kinds)

    @property
    def idle_waste(self) -> Figure:
        """Waste of idle GPUs, 0 without any; a lower limit if that of a finding is unknown.

        The errors of GPUs add up, since one poll reads them all.
        """
        found = [finding.waste for finding in self.findings if finding.kind in IDLE]
        return sum_of_correlated([Figure(0.0, 0.0), *found])


def sum_known(values: Sequence[float | None]) -> float | None:
    """Return the sum, None if a value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None

"""What nodes do now: the newest readings of their GPUs, of their open runs, and of the grid. Frozen.

None is what is not known now, however well it was known a minute ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from analyzer.model.interval import Interval

Device = tuple[str, str]
"""Instance and UUID."""


@dataclass(frozen=True, slots=True)
class NodeNow:
    """`seen_s` is the newest scrape. A `stale` node has not been scraped for `age_s`, which is too long."""

    instance: str
    seen_s: float
    age_s: float
    interval_s: float
    stale: bool
    down: tuple[str, ...] = ()
    """Sources of readings that do not answer."""


@dataclass(frozen=True, slots=True)
class GpuNow:
    """`energy_j` is that of the run `energy_of`, or since the table began where that is empty; `counter_j` the
    exporter's own. `up` is None where that is not known. `held_by` are reasons for which the clocks are held down.
    """

    instance: str
    gpu: str
    uuid: str
    name: str = ""
    up: bool | None = None
    power_w: float | None = None
    limit_w: float | None = None
    counter_j: float | None = None
    energy_j: float | None = None
    energy_of: str = ""
    utilization: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    temperature_celsius: float | None = None
    sm_clock_hz: float | None = None
    held_by: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunNow:
    """`energy` by component; `per_second` is the rate of the last seconds. `state` is running, stale, or an outcome."""

    run_id: str
    workload: str
    state: str
    instances: tuple[str, ...]
    duration_s: float | None = None
    energy: Mapping[str, Interval] = field(default_factory=dict)
    unit: str | None = None
    amount: float | None = None
    per_second: float | None = None
    energy_per_unit_j: float | None = None


@dataclass(frozen=True, slots=True)
class CarbonNow:
    """`grams_per_hour` is for the power of `component` now."""

    instance: str
    region: str
    basis: str
    quality: str
    grams_per_kwh: float
    component: Literal["gpu", "cpu", ""] = ""
    grams_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Glance:
    at_s: float
    nodes: tuple[NodeNow, ...]
    gpus: tuple[GpuNow, ...]
    runs: tuple[RunNow, ...]
    carbon: tuple[CarbonNow, ...]

    @property
    def power_w(self) -> float | None:
        """Of all GPUs that are live; None where none is."""
        known = [gpu.power_w for gpu in self.gpus if gpu.power_w is not None]
        return float(sum(known)) if known else None

    @property
    def counters_j(self) -> dict[Device, float]:
        return {(gpu.instance, gpu.uuid): gpu.counter_j for gpu in self.gpus if gpu.counter_j is not None}

"""Live state of nodes, GPUs, open runs and carbon intensity; None for unknown and outdated
values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from wattline.figures import Figure

Device = tuple[str, str]
"""Instance and UUID."""


@dataclass(frozen=True, slots=True)
class LiveNode:
    """One node. `seen_s` is its newest scrape, `age_s` seconds ago; a `stale` node has had none for
    too long.
    """

    instance: str
    seen_s: float
    age_s: float
    interval_s: float
    stale: bool
    down: tuple[str, ...] = ()
    """Sources that are down."""


@dataclass(frozen=True, slots=True)
class LiveGpu:
    """One GPU. `energy_j` is the energy of the run `energy_of`, or since the start of the table if
    that is empty.

    `counter_j` is the exporter's counter. `clock_events` are the active clock event reasons.
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
    clock_events: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run. `per_second` is the rate of the last seconds. `state` is running, stale or an
    outcome.

    `energy_per_unit` is in joules, of the `phases`, if there are any; on `shared` devices it is the
    attributed share.
    """

    run_id: str
    workload: str
    state: str
    instances: tuple[str, ...]
    duration_s: float | None = None
    energy: Mapping[str, Figure] = field(default_factory=dict)
    unit: str | None = None
    amount: float | None = None
    per_second: float | None = None
    energy_per_unit: Figure | None = None
    phases: tuple[str, ...] = ()
    shared: bool = False


@dataclass(frozen=True, slots=True)
class LiveCarbon:
    """Carbon intensity of a node, and its emission rate at the present power of `component`."""

    instance: str
    region: str
    basis: str
    quality: str
    grams_per_kwh: float
    component: Literal["gpu", "cpu", ""] = ""
    grams_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class WatchState:
    """Live state of all nodes at one time."""

    at_s: float
    nodes: tuple[LiveNode, ...]
    gpus: tuple[LiveGpu, ...]
    runs: tuple[LiveRun, ...]
    carbon: tuple[LiveCarbon, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Instances that are not shown, since they show the GPUs of the other instance: the same
    exporter twice.
    """

    @property
    def power_w(self) -> float | None:
        """Power of all live GPUs; None without any."""
        known = [gpu.power_w for gpu in self.gpus if gpu.power_w is not None]
        return float(sum(known)) if known else None

    @property
    def counters_j(self) -> dict[Device, float]:
        return {
            (gpu.instance, gpu.uuid): gpu.counter_j
            for gpu in self.gpus
            if gpu.counter_j is not None
        }

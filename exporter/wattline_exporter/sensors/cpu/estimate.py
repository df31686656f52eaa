"""CPU energy estimated from utilization, for nodes without counters, such as virtual machines.

Power is assumed to be linear in CPU utilization u, `idle + (max - idle) * u`: Fan, Weber, Barroso,
"Power provisioning for a warehouse-sized computer", ISCA 2007
(https://doi.org/10.1145/1250662.1250665). The model fits the sum of many servers with measured end
points; a single one may deviate strongly, since u contains neither clocks nor the kind of
instructions. `idle` and `max` are the node's share of its host's CPU power.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import psutil

from wattline.contract.metrics import CPU_ENERGY_METHOD
from wattline_exporter.sensors.processes.procfs import host_cpu_seconds
from wattline_exporter.sensors.readings import Batch, Device, Poll, Reading, SourceError, boottime

MAX_POWER_W = 10_000.0
MIN_INTERVAL_S = 0.5
"""Shortest interval with a meaningful utilization, given the kernel's ticks of 10 ms."""
_NODE = Device("package", "0")
_FORM = "expected idle=W,max=W in watts with 0 <= idle < max <= 10000, such as idle=40,max=150"


class PowerModel(NamedTuple):
    idle_w: float
    max_w: float

    def power_w(self, utilization: float) -> float:
        return self.idle_w + (self.max_w - self.idle_w) * utilization

    def __str__(self) -> str:
        return f"idle={self.idle_w:g},max={self.max_w:g}"


def parse_power_model(text: str) -> PowerModel:
    """Parse `idle=40,max=150` (watts). Raises ValueError."""
    fields: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (side.strip() for side in part.partition("="))
        if not equals or name not in ("idle", "max") or name in fields:
            raise ValueError(f"{_FORM}, not {text!r}")
        try:
            fields[name] = float(number)
        except ValueError:
            raise ValueError(f"{_FORM}, not {text!r}") from None
    idle_w = fields.get("idle", math.nan)
    max_w = fields.get("max", math.nan)
    if not 0 <= idle_w < max_w <= MAX_POWER_W:  # false for NaN as well
        raise ValueError(f"{_FORM}, not {text!r}")
    return PowerModel(idle_w, max_w)


class CpuModelSource:
    """Source that treats the node as package 0; `seconds` returns busy and total CPU time since
    boot.
    """

    name = "model"

    def __init__(
        self,
        model: PowerModel,
        seconds: Callable[[], tuple[float, float]] = host_cpu_seconds,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._model = model
        self._seconds = seconds
        self._clock = clock
        self._since: tuple[float, float, float] | None = None
        self._utilization: float | None = None

    def read(self) -> Batch:
        """Return the power since the last read, nothing at the first."""
        before_s = self._clock()
        try:
            busy_s, total_s = self._seconds()
        except OSError as error:
            raise SourceError(
                f"cannot read {error.filename}: {error.strerror}",
                f"check that proc is mounted: ls {psutil.PROCFS_PATH}",
            ) from error
        now_s = self._clock()
        self._update(busy_s, total_s, now_s)
        note = f"CPU energy is estimated from utilization, --cpu.power-model {self._model}"
        if self._utilization is None:
            return Batch(problems=(note,))
        poll = Poll(_NODE, before_s, now_s, instant_w=self._model.power_w(self._utilization))
        return Batch((Reading(CPU_ENERGY_METHOD, (_NODE.id, "model"), 1),), (poll,), (note,))

    def _update(self, busy_s: float, total_s: float, now_s: float) -> None:
        if self._since is None:
            self._since = busy_s, total_s, now_s
            return
        last_busy_s, last_total_s, last_s = self._since
        if now_s - last_s >= MIN_INTERVAL_S and total_s > last_total_s:
            share = (busy_s - last_busy_s) / (total_s - last_total_s)
            self._utilization = min(max(share, 0.0), 1.0)  # the kernel's iowait may decrease
            self._since = busy_s, total_s, now_s

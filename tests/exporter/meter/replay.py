"""Polls of a simulated GPU around a run, in virtual time, and its true energy."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from tests.laboratory.loads import HIGH_W, LOW_W
from wattline_exporter.meter.meter import LIMIT_MARGIN, DeviceMeter
from wattline_exporter.meter.totals import KEPT_S
from wattline_exporter.meter.uncertainty import MeasuredEnergy, energy_between
from wattline_exporter.runs.marks import FIRST_MARK_S, SETTLED_S
from wattline_exporter.sensors.readings import Device, Poll
from wattline_exporter.simulation import (
    PRODUCTS,
    Constant,
    Load,
    Segment,
    SimulatedGpuState,
    Square,
    make_gpus,
)
from wattline_exporter.simulation.gpu import energy_j
from wattline_exporter.simulation.sensors import average_w, counter_j, instant_w

START_S = 1_000.0
FAST_S, BURST_PERIOD_S, BURST_S, SLOW_S = 0.047, 0.013, 0.6, 1.0
CALL_S = 0.0001
WAKES_S = (0.0001, 0.002)
"""Range of the delay of a wake-up."""

Sensor = Literal["counter", "averaged", "full window", "quarter window"]
"""Values in addition to the instantaneous power: an energy counter and the 1 s average, that
average only, or none.

Without any, the instantaneous power covers all of the 100 ms between two updates, or the last 25 of
them.
"""


@dataclass(frozen=True)
class ReplayedGpu:
    gpu: SimulatedGpuState
    sensor: Sensor = "counter"
    was_short: bool = False
    """True if an earlier exporter saw that the instantaneous power covers less than an update."""
    _values: dict[tuple[int, int], tuple[float | None, float | None, float | None]] = field(
        default_factory=dict, compare=False
    )
    """Counter, instantaneous and averaged power by number of the counter's and of the sensor's
    update.
    """

    def poll(self, t: float) -> Poll:
        read_s, product = t + CALL_S / 2, self.gpu.product
        counter_update = math.floor((read_s - self.gpu.counter_phase_s) / product.counter_period_s)
        updates = (
            counter_update,
            math.floor((read_s - self.gpu.sensor_phase_s) / product.sensor_period_s),
        )
        if updates not in self._values:
            self._values[updates] = self._read(read_s)
        return Poll(Device("gpu", self.gpu.uuid), t, t + CALL_S, *self._values[updates])

    def _read(self, t: float) -> tuple[float | None, float | None, float | None]:
        counted_j = counter_j(self.gpu, t) if self.sensor == "counter" else None
        averaged_w = average_w(self.gpu, t) if self.sensor in ("counter", "averaged") else None
        return counted_j, instant_w(self.gpu, t), averaged_w

    def joules(self, begin_s: float, end_s: float) -> float:
        return energy_j(self.gpu, begin_s, end_s)


def square_wave(
    rng: random.Random, sensor: Sensor = "counter", period_s: float = 1.73, duty: float = 0.5
) -> ReplayedGpu:
    """Return a GPU with a load of 72 and 640 W, with random phases of load and sensor."""
    load = Square(LOW_W, HIGH_W, period_s, duty, phase_s=rng.uniform(0, period_s))
    return gpu_with_load(rng, load, sensor)


def gpu_with_load(
    rng: random.Random, load: Load, sensor: Sensor = "counter", from_s: float = 900.0
) -> ReplayedGpu:
    """Return a GPU under a load that starts at `from_s`, with random phases of its sensors."""
    product = PRODUCTS["H200"]
    if sensor == "full window":
        product = replace(product, instant_window_s=product.sensor_period_s)
    (gpu,) = make_gpus(1, product)
    segments = (
        Segment(0.0, 0.0, gpu.limit_w, 0.0, Constant(LOW_W)),
        Segment(from_s, from_s * LOW_W, gpu.limit_w, from_s, load),
    )
    phases = {"sensor_phase_s": rng.uniform(0, 0.1), "counter_phase_s": rng.uniform(0, 0.1)}
    return ReplayedGpu(replace(gpu, **phases, segments=segments, changes=2), sensor)


def poll_times(
    begin_s: float, end_s: float, rng: random.Random, *, always_fast: bool
) -> Iterator[tuple[float, float]]:
    """Yield time and period of each poll: at multiples of the period, and in a burst after the
    start and the end.

    An order ends a wait of a second early, but not one of 47 ms.
    """
    t = begin_s - KEPT_S - SLOW_S + rng.uniform(0, SLOW_S)  # as long as the meter keeps polls
    while t < end_s + 0.5:
        slow = t < begin_s and not always_fast
        yield t, SLOW_S if slow else FAST_S
        bursts = any(order_s <= t < order_s + BURST_S for order_s in (begin_s, end_s))
        period_s = BURST_PERIOD_S if bursts else SLOW_S if slow else FAST_S
        now_s = t + CALL_S
        wakes_s = now_s + period_s - now_s % period_s + rng.uniform(*WAKES_S)
        t = begin_s + rng.uniform(0.0005, 0.004) if slow and t < begin_s < wakes_s else wakes_s


def measure(
    gpu: ReplayedGpu, seconds: float, rng: random.Random, begin_s: float | None = None
) -> tuple[MeasuredEnergy, float]:
    """Return the energy of a run of this length as the ledger measures it, and its true joules.

    Without `begin_s`, the run starts at random.
    """
    begin_s = START_S + rng.uniform(0, 10) if begin_s is None else begin_s
    return measure_between(gpu, begin_s, begin_s + seconds, rng)


def measure_between(
    gpu: ReplayedGpu, begin_s: float, end_s: float, rng: random.Random
) -> tuple[MeasuredEnergy, float]:
    """Return the energy of a run between two instants, and its true joules."""
    meter = DeviceMeter()
    meter.max_w = LIMIT_MARGIN * gpu.gpu.limit_w
    meter.sensor_share = gpu.gpu.product.instant_window_s / gpu.gpu.product.sensor_period_s
    meter.windows.was_short = gpu.was_short
    begin, tick_s = meter.mark(begin_s), begin_s + rng.uniform(FIRST_MARK_S, FIRST_MARK_S + 1)
    for t, period_s in poll_times(begin_s, end_s, rng, always_fast=gpu.sensor != "counter"):
        meter.period_s = period_s
        meter.push(gpu.poll(t))
        if tick_s <= t and tick_s <= begin_s + SETTLED_S + 1:  # the ledger ticks once a second
            begin, tick_s = meter.mark(begin_s), tick_s + 1
        if t > end_s + meter.settling_s():
            break
    if end_s - begin_s < SETTLED_S:
        begin = meter.mark(begin_s)
    return energy_between(begin, meter.mark(end_s)), gpu.joules(begin_s, end_s)

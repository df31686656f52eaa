"""Polls of a simulated GPU in virtual time, as sampler and app would make them around a run; and its true energy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from exporter.energy.marks import MeasuredEnergy, energy_between
from exporter.energy.meter import LIMIT_MARGIN, DeviceMeter
from exporter.model import Device, Poll
from exporter.runs.marks import FIRST_MARK_S, SETTLED_S
from exporter.simulation import PRODUCTS, Constant, Gpu, Segment, Square
from exporter.simulation import make_gpus as made
from exporter.simulation.gpu import energy_j
from exporter.simulation.sensors import average_w, counter_j, instant_w

START_S = 1_000.0
FAST_S, BURST_PERIOD_S, BURST_S, SLOW_S = 0.047, 0.013, 0.6, 1.0
CALL_S = 0.0001
WAKES_S = (0.0001, 0.002)
"""How late the sampler wakes up."""
LOW_W, HIGH_W = 72.0, 640.0

Sensor = Literal["counter", "averaged", "sees all", "sees a quarter"]
"""What the card tells beside its instant power: an energy counter and the 1 s average, that average only, or nothing;
where it is nothing, the instant power is of all the 100 ms between two updates, or of the last 25 of them."""


@dataclass(frozen=True)
class Card:
    gpu: Gpu
    sensor: Sensor = "counter"

    def poll(self, t: float) -> Poll:
        device, read_s = Device("gpu", self.gpu.uuid), t + CALL_S / 2
        counted_j = counter_j(self.gpu, read_s) if self.sensor == "counter" else None
        averaged_w = average_w(self.gpu, read_s) if self.sensor in ("counter", "averaged") else None
        return Poll(device, t, t + CALL_S, counted_j, instant_w(self.gpu, read_s), averaged_w)

    def joules(self, begin_s: float, end_s: float) -> float:
        return energy_j(self.gpu, begin_s, end_s)


def square_wave(rng: random.Random, sensor: Sensor = "counter", period_s: float = 1.73, duty: float = 0.5) -> Card:
    """72 and 640 W, at a random phase, of a sensor that updates at a random one."""
    product = PRODUCTS["H200"]
    if sensor == "sees all":
        product = replace(product, instant_window_s=product.sensor_period_s)
    (gpu,) = made(1, product)
    load = Square(LOW_W, HIGH_W, period_s, duty, phase_s=rng.uniform(0, period_s))
    segments = (
        Segment(0.0, 0.0, gpu.limit_w, 0.0, Constant(LOW_W)),
        Segment(900.0, 900.0 * LOW_W, gpu.limit_w, 900.0, load),
    )
    phases = {"sensor_phase_s": rng.uniform(0, 0.1), "counter_phase_s": rng.uniform(0, 0.1)}
    return Card(replace(gpu, **phases, segments=segments, changes=2), sensor)


def poll_times(begin_s: float, end_s: float, rng: random.Random, *, always_fast: bool) -> Iterator[tuple[float, float]]:
    """(when, period): the sampler polls at multiples of the period, in a burst for a moment after begin and end.

    An order for that wakes it from a sleep of a second, and not from one of 47 ms.
    """
    t = begin_s - 20.0 + rng.uniform(0, SLOW_S)
    while t < end_s + 0.5:
        slow = t < begin_s and not always_fast
        yield t, SLOW_S if slow else FAST_S
        bursts = any(order_s <= t < order_s + BURST_S for order_s in (begin_s, end_s))
        period_s = BURST_PERIOD_S if bursts else SLOW_S if slow else FAST_S
        now_s = t + CALL_S
        wakes_s = now_s + period_s - now_s % period_s + rng.uniform(*WAKES_S)
        t = begin_s + rng.uniform(0.0005, 0.004) if slow and t < begin_s < wakes_s else wakes_s


def measure(card: Card, seconds: float, rng: random.Random) -> tuple[MeasuredEnergy, float]:
    """A run of this length as the ledger measures it, and its true joules."""
    begin_s = START_S + rng.uniform(0, 10)
    end_s = begin_s + seconds
    line = DeviceMeter()
    line.most_w = LIMIT_MARGIN * card.gpu.limit_w
    line.sensor_share = 0.25 if card.sensor == "sees a quarter" else 1.0
    begin, tick_s = line.mark(begin_s), begin_s + rng.uniform(FIRST_MARK_S, FIRST_MARK_S + 1)
    for t, period_s in poll_times(begin_s, end_s, rng, always_fast=card.sensor != "counter"):
        line.period_s = period_s
        line.push(card.poll(t))
        if tick_s <= t and tick_s <= begin_s + SETTLED_S + 1:  # the ledger ticks once a second
            begin, tick_s = line.mark(begin_s), tick_s + 1
        if t > end_s + line.settling_s():
            break
    if seconds < SETTLED_S:
        begin = line.mark(begin_s)
    return energy_between(begin, line.mark(end_s)), card.joules(begin_s, end_s)

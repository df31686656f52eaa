"""Random series of polls with faults of sensors, drivers and clocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from tests.exporter.meter.polls import GPU, PACKAGE
from wattline_exporter.meter.meter import LIMIT_MARGIN, DeviceMeter
from wattline_exporter.sensors.readings import Poll

SENSORS = {
    "all": 2,
    "counter and instant": 1,
    "counter": 1,
    "averaged": 1,
    "instant": 1,
    "package": 1,
    "none": 1,
}
"""Values that a device reports, with weights."""
WITHOUT_COUNTER = ("averaged", "instant", "none")
WITHOUT_INSTANT = ("counter", "averaged", "package", "none")
WITH_AVERAGE = ("all", "averaged")
RANGE_J = 5_000.0
LIMIT_W = 700.0


class Action(NamedTuple):
    """Poll to push, or a change of the meter's surroundings before the next one."""

    poll: Poll | None = None
    period_s: float | None = None
    is_busy: bool | None = None
    restarts: bool = False
    compares: bool = False
    is_restored: bool = False
    """True if the exporter restarts here."""


def _add_to_counter(joules: float, poll: Poll) -> Poll:
    if poll.counter_j is None:
        return poll
    return poll._replace(counter_j=max(0.0, poll.counter_j + joules))


def _garble(rng: Random, poll: Poll) -> Poll:
    if poll.counter_j is None or rng.random() < 0.5:
        return poll
    return poll._replace(counter_j=rng.choice((0.0, 5e15, poll.counter_j / 2, -3.0)))


def _slow(first: Poll, poll: Poll) -> Poll:
    if poll.counter_j is None or first.counter_j is None:
        return poll
    return poll._replace(
        counter_j=first.counter_j + 0.3 * max(0.0, poll.counter_j - first.counter_j)
    )


def _refuse(rng: Random, poll: Poll) -> Poll:
    if poll.integrand_w is None:
        return poll
    watts = rng.choice((65_535.0, -5.0, 1e9))
    return poll._replace(instant_w=watts, average_w=rng.choice((watts, None, 300.0)))


def _zero(poll: Poll) -> Poll:
    if poll.integrand_w is None:
        return poll
    return poll._replace(instant_w=0.0, average_w=0.0)


def _sometimes(rng: Random, faulty: Poll, poll: Poll) -> Poll:
    return faulty if rng.random() < 0.5 else poll


def _without_power(poll: Poll) -> Poll:
    return poll._replace(instant_w=None, average_w=None)


def _without_values(poll: Poll) -> Poll:
    return _without_power(poll)._replace(counter_j=None)


def _earlier(poll: Poll, seconds: float) -> Poll:
    return poll._replace(before_s=poll.before_s - seconds, after_s=poll.after_s - seconds)


Fault = Callable[[Random, Poll, Poll], Poll]
"""Changes a poll; the poll before it is the one at the start of the fault."""

FAULTS: dict[str, Fault] = {
    "counter missing": lambda _rng, _first, poll: poll._replace(counter_j=None),
    "counter missing for long": lambda _rng, _first, poll: poll._replace(counter_j=None),
    "counter flickers": lambda rng, _, poll: _sometimes(rng, poll._replace(counter_j=None), poll),
    "counter stalled": lambda _, first, poll: poll._replace(counter_j=first.counter_j),
    "counter jumps": lambda _rng, _first, poll: _add_to_counter(1e6, poll),
    "counter falls": lambda _rng, _first, poll: _add_to_counter(-500.0, poll),
    "counter garbled": lambda rng, _, poll: _garble(rng, poll),
    "counter doubtful, no power": lambda rng, _, poll: _without_power(_garble(rng, poll)),
    "counter slow": lambda _, first, poll: _slow(first, poll),
    "power missing": lambda _rng, _first, poll: _without_power(poll),
    "power flickers": lambda rng, _, poll: _sometimes(rng, _without_power(poll), poll),
    "power implausible": lambda rng, _, poll: _refuse(rng, poll),
    "power zero": lambda _rng, _first, poll: _zero(poll),
    "power stuck": lambda _, first, poll: poll._replace(
        instant_w=first.instant_w, average_w=first.average_w
    ),
    "nothing": lambda _rng, _first, poll: _without_values(poll),
    "nothing for long": lambda _rng, _first, poll: _without_values(poll),
    "clock repeats": lambda rng, first, poll: _sometimes(
        rng, poll._replace(before_s=first.before_s, after_s=first.after_s), poll
    ),
    "clock falls back": lambda rng, _, poll: _sometimes(
        rng, _earlier(poll, rng.choice((0.01, 5.0))), poll
    ),
    "slow calls": lambda _rng, _first, poll: poll._replace(after_s=poll.after_s + 0.4),
}
"""Faults of single polls. `RandomSeries` adds silence and reloads of the driver."""


class RandomSeries:
    """Polls of one device: pieces of some seconds, each with one fault or none."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.sensors = rng.choices(list(SENSORS), list(SENSORS.values()))[0]
        self.period_s = rng.choice((0.013, 0.047, 0.047, 0.2, 1.0, 1.0))
        self.t_s = rng.choice((0.0, 5.0, 1_000.0, 123_456.789))
        self._knows_limit = rng.random() < 0.7 and not self.is_package
        self._counter_j = self._read_j = rng.choice((0.0, 7.3, 1_000.0, 1e6 + 0.123))
        self._read_s = self.t_s
        self._average_w = self._watts = rng.choice((0.0, 72.0, 300.0, 640.0))
        self._load_period_s = rng.choice((0.05, 0.31, 1.73, 7.0, math.inf))

    @property
    def is_package(self) -> bool:
        return self.sensors == "package"

    def new_meter(self, **options) -> DeviceMeter:
        """Return a meter of this device."""
        update = {"update_s": 0.001} if self.is_package else {}
        meter = DeviceMeter(period_s=self.period_s, **update, **options)
        if self._knows_limit:
            meter.max_w = LIMIT_MARGIN * LIMIT_W
        meter.sensor_share = 0.25 if self.sensors == "instant" else 1.0
        return meter

    def actions(self, pieces: int) -> Iterator[Action]:
        for _ in range(pieces):
            yield from self._changes()
            is_faulty = self.rng.random() < 0.7
            fault = self.rng.choice(list(FAULTS)) if is_faulty else ""
            is_long = fault.endswith("long")
            seconds = self.rng.choice((20.0, 70.0, 130.0) if is_long else (0.1, 1.0, 3.0, 8.0))
            step_s = max(self.period_s, seconds / 100)
            first = self._poll()
            for _ in range(max(2, int(seconds / step_s))):
                self._advance(step_s * self.rng.uniform(0.9, 1.1))
                poll = self._poll()
                yield Action(FAULTS[fault](self.rng, first, poll) if fault else poll)
                if self.rng.random() < 0.05:
                    yield Action(compares=True)

    def _changes(self) -> Iterator[Action]:
        """Yield changes between two pieces."""
        rng = self.rng
        if rng.random() < 0.1:  # the GPU is lost for some time
            self._advance(rng.choice((0.5, 2.0, 10.0, 100.0)))
        if rng.random() < 0.1:  # the driver is reloaded
            self._advance(rng.choice((0.5, 3.0, 30.0)))
            self._counter_j = self._read_j = rng.choice((0.0, 50.0))
            if rng.random() < 0.7:
                yield Action(restarts=True)
        if rng.random() < 0.1:  # energy that no power reading shows
            self._counter_j += 400.0
        if rng.random() < 0.15:
            yield Action(is_restored=True)
        if rng.random() < 0.3:
            yield Action(is_busy=rng.random() < 0.7)
        if rng.random() < 0.3:
            self.period_s = rng.choice((0.013, 0.047, 0.2, 1.0))
            yield Action(period_s=self.period_s)
        if rng.random() < 0.3:
            self._watts = rng.choice((0.0, 2.0, 72.0, 300.0, 640.0, rng.uniform(0, 700)))

    def _advance(self, seconds: float) -> None:
        """Let the load run for some time; a GPU's counter is updated every 0.1 s."""
        self.t_s += seconds
        is_high = self._load_period_s == math.inf or (
            self.t_s % self._load_period_s < self._load_period_s / 2
        )
        watts = self._watts if is_high else 0.2 * self._watts
        self._counter_j += watts * seconds
        self._average_w += (watts - self._average_w) * min(1.0, seconds)
        if self.is_package or self.t_s - self._read_s >= 0.1:
            self._read_j = self._counter_j
            self._read_s = self.t_s

    def _poll(self) -> Poll:
        before_s = self.t_s
        after_s = before_s + self.rng.uniform(0.0, 0.002)
        if self.is_package:
            read_j = self._read_j % RANGE_J
            return Poll(PACKAGE, before_s, after_s, read_j, counter_range_j=RANGE_J)
        instant_w = self._watts + self.rng.choice((0.0, 0.0, self.rng.uniform(0, 5)))
        return Poll(
            GPU,
            before_s,
            after_s,
            None if self.sensors in WITHOUT_COUNTER else self._read_j,
            None if self.sensors in WITHOUT_INSTANT else instant_w,
            self._average_w if self.sensors in WITH_AVERAGE else None,
        )


class SeriesMeter:
    """Meter that is given the actions of a series."""

    def __init__(self, series: RandomSeries, new_meter: Callable[..., DeviceMeter]) -> None:
        self._series = series
        self._new_meter = new_meter
        self.meter = new_meter()

    def take(self, action: Action) -> float:
        """Apply an action; return the increase of the energy."""
        meter = self.meter
        if action.poll is not None:
            return meter.push(action.poll)
        if action.period_s is not None:
            meter.period_s = action.period_s
        if action.is_busy is not None:
            meter.note_busy(self._series.t_s, is_busy=action.is_busy)
        if action.restarts:
            meter.counter_restarts = True
        if action.compares:
            meter.compare_sensors()
        if action.is_restored and meter.latest:
            t_s = meter.latest.after_s
            last = Poll(meter.latest.device, t_s, t_s, meter.totals.raw_j)
            self.meter = self._new_meter(totals=meter.totals, last=last)
        return 0.0

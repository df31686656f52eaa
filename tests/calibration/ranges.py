"""Intervals of time ranges, imported logs and energy net of idle, over loads with a known
energy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from tests.calibration.coverage import Draw, Kind, from_bound, from_half_width
from tests.laboratory.loads import PowerLoad, any_wave, log_uniform, telegraph
from tests.laboratory.sensor_logs import sensor_log
from wattline.figures import Figure
from wattline_analyzer.core.device_counters import increase
from wattline_analyzer.core.emissions import widened_by_amount
from wattline_analyzer.core.integrate import counter_energy, idle_power, net_energy, power_range
from wattline_analyzer.core.samples import Samples, clean
from wattline_analyzer.core.streaming import ExactAccumulator
from wattline_analyzer.report.error_budget import sampling_half_j

LIMIT_W = 700.0


def _levels(rng: np.random.Generator) -> tuple[float, float]:
    low_w = rng.uniform(20, 300)
    return low_w, rng.uniform(low_w + 10, LIMIT_W)


def _steps(rng: np.random.Generator, dwell_s: float, seconds: float) -> PowerLoad:
    """Load that jumps at random times, to one of two levels or to any level."""
    low_w, high_w = _levels(rng)
    load = telegraph(rng, dwell_s, low_w, high_w, seconds)
    if rng.random() < 0.5:
        load = PowerLoad(load.edges_s, rng.uniform(low_w, high_w, len(load.levels_w)))
    return load


def _power_w(load: PowerLoad, times: np.ndarray) -> np.ndarray:
    return load.levels_w[
        np.clip(np.searchsorted(load.edges_s, times, side="right") - 1, 0, len(load.levels_w) - 1)
    ]


def _sampled(rng: np.random.Generator, load: PowerLoad, spacing_s: float, count: int) -> Samples:
    times = spacing_s * (np.arange(count) + rng.random() + 0.02 * rng.uniform(-1, 1, count))
    return clean(times, _power_w(load, times))


def _sampling_draw(load: PowerLoad, power: Samples, stated: Samples) -> Draw:
    """Return the trapezoid of the samples; `stated` are those from which the interval is
    computed.
    """
    truth = float(load.energy_j(power.t[-1]) - load.energy_j(power.t[0]))
    return from_half_width(
        truth, float(np.trapezoid(power.value, power.t)), sampling_half_j(stated)
    )


def sampling(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    """Samples 0.1 to 15 s apart of a load with steps 0.1 to 30 samples apart."""
    for _ in range(count):
        spacing_s, number = log_uniform(rng, 0.1, 15), int(log_uniform(rng, 30, 600))
        load = _steps(
            rng, spacing_s * log_uniform(rng, 0.1, min(30, number / 8)), spacing_s * (number + 2)
        )
        power = _sampled(rng, load, spacing_s, number)
        yield _sampling_draw(load, power, power)


def sampling_of_long_logs(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    """The same with more than 20,000 samples, of which the analyzer keeps sums only."""
    for _ in range(count):
        spacing_s, number = log_uniform(rng, 0.1, 2), 20_500
        load = _steps(rng, spacing_s * log_uniform(rng, 0.1, 30), spacing_s * (number + 2))
        power = _sampled(rng, load, spacing_s, number)
        exact = ExactAccumulator((float(power.t[0]), float(power.t[-1])))
        exact.add(power.t, power.value)
        yield _sampling_draw(load, power, Samples(power.t[::40], power.value[::40], exact.result()))


def sampling_of_fast_logs(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    """Samples 13 ms apart of a sensor with an update period of 50 ms to 1 s, which averages 10 to
    100 % of it.
    """
    for _ in range(count):
        update_s = log_uniform(rng, 0.05, 1)
        seconds = update_s * log_uniform(rng, 100, 400)
        load = _steps(rng, update_s * log_uniform(rng, 0.3, 30), seconds + 2)
        log = sensor_log(load, seconds, rng, rng.uniform(0.1, 1) * update_s, update_s)
        during = log.between(update_s, seconds)
        # the readings lag by up to an update; the edges are another part of the budget
        lag_s = update_s / 2
        truth = float(load.energy_j(during.t[-1] - lag_s) - load.energy_j(during.t[0] - lag_s))
        yield from_half_width(
            truth, float(np.trapezoid(during.value, during.t)), sampling_half_j(during)
        )


def power_load(rng: np.random.Generator, seconds: float) -> PowerLoad:
    """Periodic load of 10 ms to 60 s, with at most 10,000 steps."""
    return any_wave(rng, _levels(rng), seconds, max(0.01, seconds / 5_000))


def counters(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    """A range of 10 s to an hour, with scrapes of the counter 1 to 60 s apart, each up to 0.4 s
    old.
    """
    for _ in range(count):
        spacing_s = log_uniform(rng, 1, 60)
        seconds = max(log_uniform(rng, 10, 3_600), 2 * spacing_s)
        times = np.arange(0, seconds + 4 * spacing_s, spacing_s)
        load, counter = _scraped(rng, times, seconds + 4 * spacing_s)
        power = Samples(times, _power_w(load, times))
        start_s = spacing_s * (1 + rng.random())
        possible = power_range(power, LIMIT_W)
        assert possible is not None
        found = counter_energy(counter, start_s, start_s + seconds, possible)
        truth = float(load.energy_j(start_s + seconds) - load.energy_j(start_s))
        yield from_bound(truth, found.number if found else 0.0, found.limits if found else None)


def works(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    """Tokens of a server over a range, scraped 1 to 60 s apart."""
    for _ in range(count):
        spacing_s = log_uniform(rng, 1, 60)
        seconds = max(log_uniform(rng, 10, 3_600), 2 * spacing_s)
        load = power_load(rng, seconds + 4 * spacing_s)  # tokens per second instead of watts
        times = np.arange(0, seconds + 4 * spacing_s, spacing_s)
        start_s = spacing_s * (1 + rng.random())
        found = increase(
            Samples(times, load.energy_j(times) - load.energy_j(-1.0)), start_s, start_s + seconds
        )
        truth = float(load.energy_j(start_s + seconds) - load.energy_j(start_s))
        yield from_bound(
            truth, found.bound.number if found else 0.0, found.bound.limits if found else None
        )


def _scraped(
    rng: np.random.Generator, times: np.ndarray, seconds: float
) -> tuple[PowerLoad, Samples]:
    """Return a load, and its counter, of which each value is up to 0.4 s old."""
    load = power_load(rng, seconds)
    return load, Samples(
        times, load.energy_j(times - rng.uniform(0, 0.4, len(times))) - load.energy_j(-1.0)
    )


def energies_per_unit(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    """Energy per token over a range, both from scrapes."""
    for _ in range(count):
        spacing_s = log_uniform(rng, 1, 60)
        seconds = max(log_uniform(rng, 10, 3_600), 4 * spacing_s)
        times = np.arange(0, seconds + 4 * spacing_s, spacing_s)
        load, counter = _scraped(rng, times, seconds + 4 * spacing_s)
        tokens, _ = _scraped(rng, times, seconds + 4 * spacing_s)
        start_s = spacing_s * (1 + rng.random())
        possible = power_range(Samples(times, _power_w(load, times)), LIMIT_W)
        assert possible is not None
        energy = counter_energy(counter, start_s, start_s + seconds, possible)
        work = increase(
            Samples(times, tokens.energy_j(times) - tokens.energy_j(-1.0)),
            start_s,
            start_s + seconds,
        )
        assert energy is not None
        assert work is not None
        amount = work.bound.number
        joules = energy.symmetric()
        each = widened_by_amount(joules.scaled(1 / amount), amount, work.bound.limits)
        ends = None if each.half_width is None else each.limits
        truths = [
            float(one.energy_j(start_s + seconds) - one.energy_j(start_s)) for one in (load, tokens)
        ]
        yield from_bound(truths[0] / truths[1], each.number, ends)


def _idle(correlated: bool) -> Callable[[np.random.Generator, int], Iterator[Draw]]:
    def draws(rng: np.random.Generator, count: int) -> Iterator[Draw]:
        """Energy net of idle, whose power was measured 13 to 60 s before and after the run."""
        for _ in range(count):
            seconds, idle_w, spread_w = (
                log_uniform(rng, 1, 300),
                rng.uniform(15, 120),
                log_uniform(rng, 0.05, 1.5),
            )
            times = np.arange(
                -rng.uniform(14, 60), seconds + rng.uniform(14, 60), rng.choice([0.5, 1.0, 2.0])
            )
            noise = rng.standard_normal(len(times))
            if correlated:
                kept = math.exp(-(times[1] - times[0]) / log_uniform(rng, 0.5, 8))
                for i in range(1, len(noise)):
                    noise[i] = kept * noise[i - 1] + math.sqrt(1 - kept**2) * noise[i]
            power = clean(times, idle_w + spread_w * noise)
            windows = [(float(times[0]), 0.0), (seconds, float(times[-1]))]
            idle = idle_power(
                power, Samples(np.empty(0), np.empty(0)), windows[: int(rng.integers(1, 3))]
            )
            truth_j = rng.uniform(1, 5) * idle_w * seconds
            half_j = log_uniform(rng, 1e-4, 1e-3) * truth_j
            energy = Figure(truth_j + half_j / 1.96 * rng.standard_normal(), half_j)
            net = net_energy(energy, idle, seconds) if idle else None
            yield from_half_width(
                truth_j - idle_w * seconds,
                net.number if net else 0.0,
                net.half_width if net else None,
            )

    return draws


KINDS = (
    Kind("import: sampling term, logs slower than the sensor", "statistical", sampling),
    Kind(
        "import: sampling term, above 20,000 samples",
        "statistical",
        sampling_of_long_logs,
        cost=10.0,
    ),
    Kind(
        "import: sampling term, logs faster than the sensor",
        "conservative",
        sampling_of_fast_logs,
        cost=4.0,
    ),
    Kind("range: energy from scraped counters", "bound", counters),
    Kind("range: work from scraped counters", "bound", works),
    Kind("range: energy per unit of work", "bound", energies_per_unit),
    Kind("energy net of idle, independent readings", "conservative", _idle(correlated=False)),
    Kind("energy net of idle, correlated readings", "conservative", _idle(correlated=True)),
)

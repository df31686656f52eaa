"""Intervals of the exporter for CPU packages and DRAM: RAPL counters with updates, quanta and
wraps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from tests.calibration.coverage import Draw, Kind, from_half_width
from tests.laboratory.clients import open_run
from tests.laboratory.loads import PowerLoad, log_uniform, wave_or_telegraph
from wattline_exporter.meter.uncertainty import energy_between
from wattline_exporter.polling.meters import SLOW_S, EnergyMeters, SavedTotals
from wattline_exporter.runs import marks as run_marks
from wattline_exporter.runs.run_record import Cut, RunRecord
from wattline_exporter.sensors.readings import ClockReading, Device, Poll

Part = Literal["package", "dram"]
Figure = Literal["run", "phase"]
WATTS: dict[Part, tuple[float, float]] = {"package": (8.0, 400.0), "dram": (1.0, 60.0)}
QUANTA_J: dict[Part, float] = {"package": 61e-6, "dram": 15.3e-6}
RANGES_J: dict[Part, tuple[float, float]] = {
    "package": (65_532.6, 262_143.3),
    "dram": (65_712.999, 262_143.3),
}
"""Energies at which a counter wraps, as `max_energy_range_uj` has them."""
UPDATES_S = 0.0002, 0.001
"""RAPL updates about once a millisecond."""
LEAD_S = 5.0


@dataclass(frozen=True)
class _Counter:
    """RAPL counter of a load: whole quanta at its latest update, which wrap."""

    load: PowerLoad
    update_s: float
    quantum_j: float
    range_j: float
    first_j: float

    def read_j(self, t_s: float) -> float:
        updated_s = t_s - t_s % self.update_s
        quanta = math.floor((self.first_j + float(self.load.energy_j(updated_s))) / self.quantum_j)
        return quanta * self.quantum_j % self.range_j


def _load(rng: np.random.Generator, watts: tuple[float, float], seconds: float) -> PowerLoad:
    low_w = rng.uniform(watts[0], watts[1] / 2)
    high_w = rng.uniform(low_w, watts[1])
    return wave_or_telegraph(rng, (low_w, high_w), seconds, max(0.01, seconds / 5_000))


def _run(rng: np.random.Generator, part: Part) -> tuple[PowerLoad, RunRecord, Device, list[float]]:
    """Poll the counter once a second, as the exporter does, and at the start, at a phase and at the
    end of a run.
    """
    device, seconds = Device(part, "0"), log_uniform(rng, 1, 120)
    begin_s = LEAD_S + rng.random()
    end_s = begin_s + seconds
    phase_s = rng.uniform(begin_s, end_s)
    load = _load(rng, WATTS[part], end_s + 10)
    range_j = float(rng.choice(RANGES_J[part]))
    to_wrap_j = rng.uniform(
        0, 2 * float(load.energy_j(end_s))
    )  # about half of the runs have a wrap
    counter = _Counter(load, rng.uniform(*UPDATES_S), QUANTA_J[part], range_j, range_j - to_wrap_j)
    now_s = [0.0]
    meters = EnergyMeters(
        SavedTotals(), lambda _at: (), lambda: ClockReading(now_s[0], 1.79e9 + now_s[0], now_s[0])
    )
    run = open_run([device], begin_s)
    periodic_s = np.arange(rng.random(), end_s + 3, SLOW_S)
    requested_s = [at + log_uniform(rng, 3e-4, 0.03) for at in (begin_s, phase_s, end_s)]
    for t_s in sorted([*(periodic_s + rng.uniform(0, 0.01, len(periodic_s))), *requested_s]):
        now_s[0] = t_s
        if t_s > begin_s and not run.begin:
            run.begin = run.cuts[0].marks = run_marks.take_marks(run, meters.meters, begin_s, {})
        if t_s > phase_s and len(run.cuts) == 1 and not run.phases:
            run_marks.start_phase(run, meters.meters, Cut(phase_s, "measure"))
        took_s = log_uniform(rng, 2e-5, 1e-3)
        read_j = counter.read_j(t_s + rng.random() * took_s)
        meters.push(
            [Poll(device, t_s, t_s + took_s, counter_j=read_j, counter_range_j=range_j)], SLOW_S
        )
        if run.begin and t_s < end_s:
            run_marks.settle(run, meters.meters, t_s + took_s)
        if t_s == requested_s[-1]:
            run.end_s, run.ended_at, run.outcome = end_s, 1.79e9, "ok"
            run_marks.finish(run, meters.meters)
    return load, run, device, [begin_s, phase_s, end_s]


def draws(part: Part, figure: Figure, rng: np.random.Generator, count: int) -> Iterator[Draw]:
    for _ in range(count):
        load, run, device, (begin_s, phase_s, end_s) = _run(rng, part)
        if figure == "run":
            energy = energy_between(run.begin[device], run.final[device])
            truth_j = float(load.energy_j(end_s) - load.energy_j(begin_s))
            yield from_half_width(truth_j, energy.joules, energy.half_width_j)
        else:
            phase = next(phase for phase in run.phases if phase.name == "measure")
            truth_j = float(load.energy_j(end_s) - load.energy_j(phase_s))
            yield from_half_width(truth_j, phase.joules[device], phase.half_widths_j[device])


KINDS = (
    Kind("run: CPU energy", "conservative", partial(draws, "package", "run")),
    Kind("run: DRAM energy", "conservative", partial(draws, "dram", "run")),
    Kind("phase: CPU energy", "conservative", partial(draws, "package", "phase")),
)

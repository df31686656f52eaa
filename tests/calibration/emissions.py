"""Intervals of restated emissions: energy by slot of carbon intensity, and revised intensities."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from tests.calibration.coverage import Draw, Kind, from_half_width
from tests.calibration.ranges import LIMIT_W, power_load
from tests.laboratory.loads import PowerLoad, log_uniform
from wattline.contract import metrics as m
from wattline.figures import JOULES_PER_KWH, Figure
from wattline_analyzer.carbon.restate import EnergyOverTime, restate
from wattline_analyzer.core.devices import ReportDevice
from wattline_analyzer.core.emissions import PastIntensities, PastSlot
from wattline_analyzer.core.run_report import RunEnergies
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.core.timeline import Window
from wattline_analyzer.report.devices import RawSeries
from wattline_analyzer.report.energy_over_time import energy_tracks

SLOTS_S = 300.0, 900.0, 1_800.0, 3_600.0


def _series(rng: np.random.Generator, load: PowerLoad, start_s: float, end_s: float) -> RawSeries:
    """Return the scrapes of the run's counter or of the GPU's, 1 to 60 s apart, with values up to
    0.4 s old.
    """
    spacing_s, is_of_run = log_uniform(rng, 1, 60), rng.random() < 0.5
    times = np.arange(rng.random() * spacing_s, end_s + 3 * spacing_s, spacing_s)
    read_s = times - rng.uniform(0, 0.4, len(times))
    if is_of_run:
        during = (times >= start_s) & (times <= end_s)
        joules = load.energy_j(np.clip(read_s, start_s, end_s)) - load.energy_j(start_s)
        labels = {
            "__name__": m.RUN_ENERGY.name,
            "run_id": "run",
            "component": "gpu",
            "device": "GPU-0",
        }
        return RawSeries(table_of([({**labels, "instance": "n"}, times[during], joules[during])]))
    gpu = {"gpu": "0", "uuid": "GPU-0", "instance": "n"}
    limit = {"__name__": m.GPU_POWER_LIMIT.name, **gpu, "kind": "enforced"}
    return RawSeries(
        table_of(
            [
                ({"__name__": m.GPU_ENERGY.name, **gpu}, times, np.asarray(load.energy_j(read_s))),
                (limit, times, np.full(len(times), LIMIT_W)),
            ]
        )
    )


def _draw(rng: np.random.Generator, *, with_sigma: bool) -> Draw:
    """Restate a run of 20 s to 3 hours; errors of intensities are common to all slots, or
    independent.
    """
    start_s, seconds, slot_s = (
        rng.uniform(120, 4_000),
        log_uniform(rng, 20, 10_800),
        float(rng.choice(SLOTS_S)),
    )
    end_s = start_s + seconds
    load = power_load(rng, end_s + 300)
    edges_s = np.arange(start_s // slot_s, end_s // slot_s + 2) * slot_s
    sigma_g = rng.uniform(1, 40) if with_sigma else None
    published_g = rng.uniform(50, 900, len(edges_s) - 1)
    errors = rng.standard_normal() if rng.random() < 0.5 else rng.standard_normal(len(published_g))
    true_g = published_g + errors * (sigma_g or 0.0)
    slots = [
        PastSlot(float(begin_s), float(until_s), float(grams), "actual", sigma_g)
        for begin_s, until_s, grams in zip(edges_s, edges_s[1:], published_g, strict=False)
    ]
    joules = np.diff([float(load.energy_j(at)) for at in np.clip(edges_s, start_s, end_s)])
    whole_j = math.fsum(joules)
    half_j = log_uniform(rng, 1e-4, 1e-2) * whole_j
    energy = Figure(whole_j + half_j / 1.96 * rng.standard_normal(), half_j)
    device = ReportDevice("n", "gpu", "GPU-0", "0", "GPU", energy, seconds, power_limit_w=LIMIT_W)
    windows = {"n": Window(start_s, end_s, True, seconds)}
    tracks = energy_tracks(_series(rng, load, start_s, end_s), "run", [device], windows)
    energies = RunEnergies((device,), {"gpu": energy}, (), None, is_sampled=False)
    over_time = EnergyOverTime(energies, windows, tracks, ())
    past = PastIntensities("gb", "GB", "average", tuple(slots))
    (found,) = restate(over_time, past).emissions
    return from_half_width(
        float(joules @ true_g) / JOULES_PER_KWH, found.mass_g.number, found.mass_g.half_width
    )


def draws(rng: np.random.Generator, count: int, *, with_sigma: bool) -> Iterator[Draw]:
    return (_draw(rng, with_sigma=with_sigma) for _ in range(count))


KINDS = (
    Kind("restated emissions: exact intensities", "conservative", partial(draws, with_sigma=False)),
    Kind(
        "restated emissions: intensities with a standard deviation",
        "conservative",
        partial(draws, with_sigma=True),
    ),
)

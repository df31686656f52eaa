"""Intervals of the energy of requests, on simulated servers whose Shapley joules are known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from exporter.request_energy.divide import divide_energy
from tests.calibration.coverage import Draw, Kind, from_half_width
from tests.exporter.request_energy.server import TRAFFIC, serve

SECONDS = 60.0
SLOTS_S = (0.1, 0.25, 1.0)
OF_SERVER = 5
"""Requests that are drawn from each server: their errors are not independent."""


def draws(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    for start in range(0, count, OF_SERVER):
        served = serve(rng, str(rng.choice(list(TRAFFIC))), rng.uniform(0.15, 1.0), SECONDS)
        found = divide_energy(served.spans, served.slots(float(rng.choice(SLOTS_S)), rng))
        for k in rng.choice(len(served.spans), min(OF_SERVER, count - start)):
            yield from_half_width(float(served.shapley_j[k]), float(found.dynamic_j[k]), float(found.half_j[k]))


KINDS = (Kind("request: energy above idle", "conservative", draws, cost=4.0),)

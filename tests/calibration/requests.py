"""Intervals of the energy of requests and tokens, on simulated servers whose Shapley joules are known."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Literal

import numpy as np

from exporter.attribution.idle_level import IDLE_S, IdleLevel
from exporter.request_energy.divide import EnergyPart, divide_energy
from tests.calibration.coverage import Draw, Kind, from_half_width
from tests.exporter.request_energy.server import IDLE_W, Served, serve, serve_one_at_a_time
from tests.exporter.request_energy.traffic import TRAFFIC

SECONDS = 60.0
SAMPLES = ((0.1, 0.0), (0.25, 0.0), (1.0, 0.0), (1.0, 0.1))
"""Widths of slots in seconds with the ages of their samples: those of interpolated energies, and of a history."""
OF_SERVER = 5
"""Requests that are drawn from each server: their errors are not independent."""
POWERS = (0.0, 0.03, 1.0)
"""Power above idle of a server with one user, as factors of the usual one."""

Figure = Literal["prompt", "generated", "idle"]


def _above_idle(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    for start in range(0, count, OF_SERVER):
        served = serve(rng, str(rng.choice(list(TRAFFIC))), rng.uniform(0.15, 1.0), SECONDS)
        width_s, age_s = rng.choice(SAMPLES)
        found = divide_energy(served.spans, served.slots(width_s, rng, age_s=age_s, idle_w=_idle_w(rng)))
        for k in rng.choice(len(served.spans), min(OF_SERVER, count - start)):
            yield from_half_width(float(served.shapley_j[k]), float(found.dynamic_j[k]), float(found.half_j[k]))


def _one_at_a_time(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    """Yield energies with idle energy: the server's idle energy during each request."""
    for start in range(0, count, OF_SERVER):
        traffic, power = str(rng.choice(["code", "conversation"])), float(rng.choice(POWERS))
        served = serve_one_at_a_time(rng, traffic, SECONDS, power)
        width_s, age_s = rng.choice(SAMPLES)
        found = divide_energy(served.spans, served.slots(width_s, rng, age_s=age_s, idle_w=_idle_w(rng)))
        true_j = served.shapley_j + IDLE_W * (served.spans.ended_s - served.spans.arrived_s)
        for k in rng.choice(len(served.spans), min(OF_SERVER, count - start)):
            yield from_half_width(float(true_j[k]), float(found.total_j[k]), float(found.half_j[k]))


def _idle_w(rng: np.random.Generator) -> float:
    """Return the idle power that the exporter finds in half a minute without requests."""
    level, noise_w = IdleLevel(None), rng.uniform(0.0, 2.0)
    seconds = np.arange(IDLE_S + 1.0, 2.0 + rng.uniform(IDLE_S, 3 * IDLE_S))
    energy_j = np.cumsum(IDLE_W + rng.normal(0.0, noise_w, len(seconds))) - IDLE_W * rng.uniform(0.0, 0.1, len(seconds))
    for t_s, joules in zip(seconds.tolist(), energy_j.tolist(), strict=True):
        level.update(t_s, joules)
    return level.watts or IDLE_W


@lru_cache(maxsize=512)
def _figures(seed: int) -> dict[Figure, Draw]:
    """Return the figures of a server: joules of each phase, and the idle share. Those of context are too rare."""
    rng = np.random.default_rng(seed)
    served = serve(rng, str(rng.choice(list(TRAFFIC))), rng.uniform(0.15, 1.0), SECONDS)
    width_s, age_s = rng.choice(SAMPLES)
    slots = served.slots(width_s, rng, age_s=age_s, idle_w=_idle_w(rng))
    found = divide_energy(served.spans, slots)
    decode_j = float(served.shapley_j.sum()) - served.prefill_j
    first_s, last_s = served.energy_j(slots.edges_s[[0, -1]])
    seconds = float(slots.edges_s[-1] - slots.edges_s[0])
    idle_share, half = found.idle_j / found.measured_j, found.idle_half_j / found.measured_j
    return {
        "prompt": _draw(served, served.prefill_j, found.prefill),
        "generated": _draw(served, decode_j, found.decode),
        "idle": from_half_width(float(IDLE_W * seconds / (last_s - first_s)), idle_share, half),
    }


def _draw(served: Served, true_j: float, found: EnergyPart | None) -> Draw:
    return from_half_width(true_j, found.joules, found.half_j) if found else Draw(true_j, true_j, None)


def _of_server(figure: Figure, rng: np.random.Generator, count: int) -> Iterator[Draw]:
    for _ in range(count):
        yield _figures(int(rng.integers(2**32)))[figure]


FIGURES: dict[Figure, str] = {
    "prompt": "request: energy per prompt token",
    "generated": "request: energy per generated token",
    "idle": "request: idle share",
}
KINDS = (
    Kind("request: energy above idle", "conservative", _above_idle, cost=4.0),
    Kind("request: one at a time, down to idle power", "conservative", _one_at_a_time, cost=4.0),
    *(
        Kind(name, "conservative", partial(_of_server, figure), cost=10.0, stream="request figures")
        for figure, name in FIGURES.items()
    ),
)

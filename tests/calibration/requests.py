"""Intervals of the energy of requests and tokens, on simulated servers whose Shapley joules are
known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

import numpy as np

from tests.calibration.coverage import Draw, Kind, from_half_width
from tests.exporter.requests.division.disaggregated import serve_disaggregated
from tests.exporter.requests.division.server import (
    IDLE_W,
    Served,
    draw_law,
    serve,
    serve_one_at_a_time,
)
from tests.exporter.requests.division.traffic import TRAFFIC
from tests.laboratory.loads import log_uniform
from wattline_exporter.attribution.idle_level import IDLE_S, IdleLevel
from wattline_exporter.requests.division.arrays import FloatArray, amounts_at
from wattline_exporter.requests.division.division import divide_all
from wattline_exporter.requests.division.model import Role
from wattline_exporter.requests.division.roles import divide_roles
from wattline_exporter.requests.division.spans import EnergySlots, RequestSpans, with_first_tokens
from wattline_exporter.requests.division.totals import EnergyPart

SECONDS = 60.0
SAMPLES = ((0.1, 0.0), (0.25, 0.0), (1.0, 0.0), (1.0, 0.1))
"""Widths of slots in seconds with the ages of their samples: those of interpolated energies, and of
a history.
"""
LOADS, LOW_LOADS, HIGH_LOADS = (0.03, 1.0), (0.02, 0.06), (0.5, 1.0)
RATES = (0.5, 12.0)
"""Requests per second to a disaggregated server."""
OF_SERVER = 5
"""Requests that are drawn from each server: their errors are not independent."""
POWERS = (0.0, 0.03, 1.0)
"""Power above idle of a server with one user, as factors of the usual one."""
FREEDOM = 2.0
"""Degrees of freedom of Student's t distribution of the errors of single requests relative to their
half-widths.
"""

Figure = Literal["prompt", "generated", "context", "idle"]
GroupOf = Callable[[np.random.Generator, RequestSpans], np.ndarray]
"""Group of each request, (N,)."""


@dataclass(frozen=True, slots=True)
class _Division:
    """Draws of single requests to one server, and of the figures of all its requests."""

    requests: list[Draw]
    figures: dict[Figure, Draw]


def _requests(
    rng: np.random.Generator, true_j: FloatArray, found_j: FloatArray, half_j: FloatArray
) -> list[Draw]:
    """Return draws of some of the requests."""
    return [
        from_half_width(float(true_j[k]), float(found_j[k]), float(half_j[k]), FREEDOM)
        for k in rng.choice(len(true_j), OF_SERVER)
    ]


@lru_cache(maxsize=512)
def _divided(seed: int, traffic: str | None, loads: tuple[float, float]) -> _Division:
    rng = np.random.default_rng(seed)
    traffic = traffic or str(rng.choice(list(TRAFFIC)))
    served = serve(rng, traffic, log_uniform(rng, *loads), SECONDS, draw_law(rng))
    slots = _slots(served, rng)
    found = divide_all(served.spans, slots)
    decode_j = float(served.shapley_j.sum()) - served.prefill_j
    first_s, last_s = served.energy_j(slots.edges_s[[0, -1]])
    seconds = float(slots.edges_s[-1] - slots.edges_s[0])
    idle_share, half = found.idle_j / found.measured_j, found.idle_half_j / found.measured_j
    return _Division(
        _requests(rng, served.shapley_j, found.dynamic_j, found.half_j),
        {
            "prompt": _draw(served.prefill_j, found.prefill),
            "generated": _draw(decode_j, found.decode),
            "context": _draw(
                served.context_j / max(1.0, served.context_tokens), found.context_token
            ),
            "idle": from_half_width(float(IDLE_W * seconds / (last_s - first_s)), idle_share, half),
        },
    )


def _draw(true_j: float, found: EnergyPart | None) -> Draw:
    return (
        from_half_width(true_j, found.joules, found.half_j) if found else Draw(true_j, true_j, None)
    )


def _groups(group_of: GroupOf, seed: int) -> list[Draw]:
    """Return energies above idle of groups of the requests to one server."""
    rng = np.random.default_rng(seed)
    served = serve(
        rng, str(rng.choice(list(TRAFFIC))), log_uniform(rng, *LOADS), SECONDS, draw_law(rng)
    )
    _, numbers = np.unique(group_of(rng, served.spans), return_inverse=True)
    found = divide_all(served.spans, _slots(served, rng), groups=numbers.astype(np.int32))
    count = len(found.group_half_j)
    true_j, found_j = (
        amounts_at(numbers, each, count) for each in (served.shapley_j, found.dynamic_j)
    )
    return _requests(rng, true_j, found_j, found.group_half_j)


def _one_at_a_time(rng: np.random.Generator) -> list[Draw]:
    """Return energies with the idle energy of the server during each request."""
    served = serve_one_at_a_time(
        rng, str(rng.choice(list(TRAFFIC))), SECONDS, float(rng.choice(POWERS)), draw_law(rng)
    )
    found = divide_all(served.spans, _slots(served, rng))
    true_j = served.shapley_j + IDLE_W * (served.spans.ended_s - served.spans.arrived_s)
    return _requests(rng, true_j, found.total_j, found.half_j)


def _disaggregated(rng: np.random.Generator) -> list[Draw]:
    rate = log_uniform(rng, *RATES)
    served = serve_disaggregated(
        rng, str(rng.choice(list(TRAFFIC))), rate, 20 + int(20 * rate), draw_law(rng)
    )
    pools: dict[Role, Served] = {"prefill": served.prefill, "decode": served.decode}
    width_s, age_s = rng.choice(SAMPLES)
    found = divide_roles(
        served.spans,
        {
            role: pool.slots(width_s, rng, age_s=age_s, idle_w=idle_power_w(rng))
            for role, pool in pools.items()
        },
    )
    true_j = served.prefill.shapley_j + served.decode.shapley_j
    return _requests(rng, true_j, found.dynamic_j, found.half_j)


def _untimed(part: float, rng: np.random.Generator) -> list[Draw]:
    """Return energies of requests to a server that does not report the first tokens of a part of
    them.
    """
    served = serve(
        rng, str(rng.choice(list(TRAFFIC))), log_uniform(rng, *LOADS), SECONDS, draw_law(rng)
    )
    first_s = np.where(rng.random(len(served.spans)) < part, np.nan, served.spans.first_token_s)
    spans, untimed = with_first_tokens(replace(served.spans, first_token_s=first_s))
    found = divide_all(spans, _slots(served, rng), untimed=untimed)
    return _requests(rng, served.shapley_j, found.dynamic_j, found.half_j)


def _slots(served: Served, rng: np.random.Generator) -> EnergySlots:
    width_s, age_s = rng.choice(SAMPLES)
    return served.slots(width_s, rng, age_s=age_s, idle_w=idle_power_w(rng))


def idle_power_w(rng: np.random.Generator) -> float:
    """Return the idle power that the exporter finds in half a minute without requests."""
    level, noise_w = IdleLevel(None), rng.uniform(0.0, 2.0)
    seconds = np.arange(IDLE_S + 1.0, 2.0 + rng.uniform(IDLE_S, 3 * IDLE_S))
    energy_j = np.cumsum(IDLE_W + rng.normal(0.0, noise_w, len(seconds))) - IDLE_W * rng.uniform(
        0.0, 0.1, len(seconds)
    )
    for t_s, joules in zip(seconds.tolist(), energy_j.tolist(), strict=True):
        level.update(t_s, joules)
    return level.watts or IDLE_W


def of_servers(
    of_one: Callable[[int], list[Draw]], rng: np.random.Generator, count: int
) -> Iterator[Draw]:
    """Yield draws of servers, each of which has a seed."""
    found: list[Draw] = []
    while len(found) < count:
        found += of_one(int(rng.integers(2**32)))
    yield from found[:count]


def _of_mixed(figure: Figure | None, seed: int) -> list[Draw]:
    divided = _divided(seed, None, LOADS)
    return [divided.figures[figure]] if figure else divided.requests


def _of_traffic(traffic: str, seed: int) -> list[Draw]:
    return _divided(seed, traffic, LOADS).requests


TRAFFIC_TITLES = {
    "conversation": "conversations",
    "code": "code",
    "long": "long prompts",
    "chat": "chat",
    "azure conversation": "conversations of four kinds",
    "azure code": "bursts with pauses",
}
FIGURES: dict[Figure, str] = {
    "prompt": "request: energy per prompt token",
    "generated": "request: energy per generated token",
    "context": "request: energy per 1,000 tokens of context",
    "idle": "request: idle share",
}
_CLASSES: dict[str, Callable[[int], list[Draw]]] = {
    **{
        f"request: {title}": partial(_of_traffic, traffic)
        for traffic, title in TRAFFIC_TITLES.items()
    },
    "request: few requests": lambda seed: _divided(seed, None, LOW_LOADS).requests,
    "request: busy servers": lambda seed: _divided(seed, None, HIGH_LOADS).requests,
    "request: no first token reported": lambda seed: _untimed(1.0, np.random.default_rng(seed)),
    "request: half of the first tokens reported": lambda seed: _untimed(
        0.5, np.random.default_rng(seed)
    ),
    "request: disaggregated server": lambda seed: _disaggregated(np.random.default_rng(seed)),
    "request: all of one of five users": partial(
        _groups, lambda rng, spans: rng.integers(0, 5, len(spans))
    ),
    "request: all of one length": partial(
        _groups, lambda _, spans: np.searchsorted((32, 128, 512, 2_048), spans.generated_tokens)
    ),
    "request: one at a time, down to idle power": lambda seed: _one_at_a_time(
        np.random.default_rng(seed)
    ),
}
_SERVERS = "request figures"
"""Stream of the servers with all kinds of traffic, which several rows share."""
KINDS = (
    Kind(
        "request: energy above idle",
        "conservative",
        partial(of_servers, partial(_of_mixed, None)),
        cost=3.2,
        stream=_SERVERS,
    ),
    *(
        Kind(name, "conservative", partial(of_servers, of_one), cost=10.0)
        for name, of_one in _CLASSES.items()
    ),
    *(
        Kind(
            name,
            "conservative",
            partial(of_servers, partial(_of_mixed, figure)),
            cost=16.0,
            stream=_SERVERS,
        )
        for figure, name in FIGURES.items()
    ),
)

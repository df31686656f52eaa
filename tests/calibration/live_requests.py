"""Intervals of requests while their server runs: the exporter's division in virtual time, against
Shapley joules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from tests.calibration.coverage import Draw, Kind, from_half_width
from tests.calibration.requests import FREEDOM, LOADS, OF_SERVER, idle_power_w, of_servers
from tests.exporter.requests.division.server import IDLE_W, Served, draw_law, serve
from tests.exporter.requests.division.traffic import TRAFFIC
from tests.laboratory.loads import log_uniform
from wattline_exporter.requests.division.arrays import FloatArray
from wattline_exporter.requests.division.columns import LabelSet, RequestColumns
from wattline_exporter.requests.division.energy_rows import row_half_widths_j, totals_j
from wattline_exporter.requests.division.spans import RequestSpans
from wattline_exporter.requests.llm_server import EnergyAt, Server
from wattline_exporter.requests.watermark import Watermark
from wattline_exporter.sensors.readings import ClockReading, Device

SECONDS = 120.0
"""Time of the arrivals: two minutes, of which the model is fitted after half a minute."""
AGES_S = 0.0, 0.02, 0.1
"""Oldest values at the edges of slots: of a power that is integrated, and of counters."""
BEFORE_S, WINDOW_S, SETTLING_S = 10.0, 120.0, 0.3
UNIX_S = 1.79e9

State = Literal["final", "provisional"]


def _energy_at(served: Served, rng: np.random.Generator, age_s: float) -> EnergyAt:
    """Return the energy of the server at edges, with values of fixed ages up to `age_s`."""
    ages: dict[float, float] = {}

    def energy_at(
        _device: Device, _trail: Any, edges_s: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        own_s = np.array(
            [
                ages.setdefault(round(edge_s, 4), rng.uniform(0.0, age_s))
                for edge_s in edges_s.tolist()
            ]
        )
        joules = served.energy_j(edges_s - own_s)
        power_w = (served.energy_j(edges_s + 0.1) - served.energy_j(edges_s - 0.1)) / 0.2
        return joules - joules[0], power_w * age_s / 2

    return energy_at


def _columns(spans: RequestSpans, chosen: np.ndarray) -> RequestColumns:
    some = spans.take(chosen)
    values = np.array(
        [
            *(each + UNIX_S for each in (some.arrived_s, some.first_token_s, some.ended_s)),
            *(some.prompt_tokens, some.cached_tokens, some.generated_tokens),
        ]
    )
    none = np.zeros(len(chosen), dtype=np.intp)
    return RequestColumns([str(each) for each in chosen], values, none, [LabelSet({}, None)])


def _serve_live(
    served: Served, energy_at: EnergyAt, idle_w: float
) -> tuple[np.ndarray, FloatArray]:
    """Report each request at the second after its end; return final rows, and estimates (2, N) at
    the reports.
    """
    spans = served.spans
    trail = SimpleNamespace(
        begin_s=-np.inf, last_s=-np.inf, is_polled=True, pauses_s=lambda _since_s: ()
    )
    trail.read = lambda now_s: setattr(trail, "last_s", now_s - SETTLING_S)
    trails: Any = {Device("gpu", "GPU-0"): trail}
    server = Server(
        Watermark(WINDOW_S),
        trails,
        lambda _device, edges_s: np.full(len(edges_s) - 1, idle_w),
        energy_at,
    )
    order, reported, rows = np.argsort(spans.ended_s), 0, []
    estimates = np.full((2, len(spans)), np.nan)
    now_s = float(np.ceil(spans.ended_s.min()))
    server.begin(now_s - BEFORE_S, now_s, is_continued=False)
    while reported < len(spans) or server.is_busy:
        until = int(np.searchsorted(spans.ended_s[order], now_s, side="right"))
        if chosen := order[reported:until].tolist():
            now, labels = (
                ClockReading(now_s, UNIX_S + now_s, now_s),
                np.zeros(len(chosen), dtype=np.intp),
            )
            server.add(_columns(spans, np.array(chosen)), chosen, labels, reported, now)
            for each in chosen:
                estimates[:, each] = server.estimate(spans.take(np.array([each]))) or np.nan
            reported = until
        rows.append(server.tick(now_s, now_s)[0])
        now_s += 1.0
    return np.concatenate(rows), estimates


def _idle_j(spans: RequestSpans) -> FloatArray:
    """Return the idle energy of each request: the idle power at each instant, shared by the
    requests in flight.
    """
    times_s = np.unique(np.concatenate([spans.arrived_s, spans.ended_s]))
    begun, ended = (
        np.searchsorted(np.sort(each), times_s[:-1], side="right")
        for each in (spans.arrived_s, spans.ended_s)
    )
    in_flight = begun - ended
    joules = np.where(in_flight > 0, IDLE_W * np.diff(times_s) / np.maximum(in_flight, 1), 0.0)
    total_j = np.append(0.0, np.cumsum(joules))
    result: FloatArray = np.interp(spans.ended_s, times_s, total_j) - np.interp(
        spans.arrived_s, times_s, total_j
    )
    return result


@lru_cache(maxsize=512)
def _measured(seed: int) -> dict[State, list[Draw]]:
    """Return draws of requests to one server; of those without an energy, an interval was refused.

    Errors of estimates come from the load, and have no long tails.
    """
    rng = np.random.default_rng(seed)
    served = serve(
        rng, str(rng.choice(list(TRAFFIC))), log_uniform(rng, *LOADS), SECONDS, draw_law(rng)
    )
    energy_at = _energy_at(served, rng, float(rng.choice(AGES_S)))
    rows, estimates = _serve_live(served, energy_at, idle_power_w(rng))
    true_j = served.shapley_j + _idle_j(served.spans)
    found: dict[State, list[Draw]] = {"final": [], "provisional": []}
    halves_j = row_half_widths_j(rows)
    totals_of_rows_j = totals_j(rows)
    for k in rng.choice(len(rows), OF_SERVER).tolist():
        row = rows[k]
        truth_j, (joules, half_j) = float(true_j[row["id"]]), estimates[:, row["id"]].tolist()
        is_known = not row["loss"] and row["missing_s"] == 0.0
        found["final"].append(
            from_half_width(
                truth_j,
                float(totals_of_rows_j[k]),
                float(halves_j[k]) if is_known else None,
                FREEDOM,
            )
        )
        found["provisional"].append(
            from_half_width(truth_j, joules, None if np.isnan(half_j) else half_j)
        )
    return found


def _of_state(state: State) -> Callable[[int], list[Draw]]:
    return lambda seed: _measured(seed)[state]


def _draws(state: State, rng: np.random.Generator, count: int) -> Iterator[Draw]:
    return of_servers(_of_state(state), rng, count)


TITLES: dict[State, str] = {
    "final": "request: final energy in the exporter",
    "provisional": "request: provisional energy in the exporter",
}
KINDS = tuple(
    Kind(title, "conservative", partial(_draws, state), cost=8.0, stream="live requests")
    for state, title in TITLES.items()
)

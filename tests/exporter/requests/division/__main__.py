"""Errors against Shapley values over many random patterns of traffic: python -m
tests.exporter.requests.division.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace

import numpy as np

from tests.exporter.requests.division.proration import by_time, by_tokens
from tests.exporter.requests.division.server import draw_law, serve
from tests.exporter.requests.division.traffic import TRAFFIC
from wattline_analyzer.core.samples import FloatArray
from wattline_exporter.requests.division.division import divide_all
from wattline_exporter.requests.division.pace import union_s
from wattline_exporter.requests.division.spans import EnergySlots, RequestSpans

SLOTS_S = (0.1, 0.25, 1.0)
OTHER_PERIOD_S = 20.0
"""Mean time between two begins of the work of another process."""
MANY_QUIET = 20
"""Samples without requests from which on the power of other work is known."""
COLUMNS = ("model", "by time", "by tokens", "contained", "half-width", "bias")


@dataclass(frozen=True, slots=True)
class Other:
    """Part of the requests that are not reported, and another process with its power and its part
    of the time.
    """

    unreported: float
    watts: float
    part: float

    def add_to(self, slots: EnergySlots, rng: np.random.Generator) -> EnergySlots:
        """Return the slots with the energy of the other process."""
        if not self.watts:
            return slots
        seconds, count = (
            slots.edges_s[-1] + OTHER_PERIOD_S,
            2 + 4 * int(slots.edges_s[-1] / OTHER_PERIOD_S),
        )
        steps_s = rng.exponential(OTHER_PERIOD_S, (count, 2)) * [1.0 - self.part, self.part]
        changes_s = np.cumsum(steps_s) - rng.uniform(0.0, OTHER_PERIOD_S)
        begin_s, end_s = changes_s.reshape(-1, 2)[changes_s[::2] < seconds].T
        return replace(
            slots, joules=slots.joules + self.watts * union_s(begin_s, end_s, slots.edges_s)
        )


def quiet_samples(spans: RequestSpans, slots: EnergySlots) -> int:
    """Return the number of samples without a request in them and in their neighbours."""
    busy = union_s(spans.arrived_s, spans.ended_s, slots.edges_s) > 0.0
    near = np.concatenate([[True], busy, [True]])
    return int(np.count_nonzero(~(near[:-2] | busy | near[2:])))


def measure(
    seed: int, traffic: str, width_s: float, other: Other
) -> tuple[bool, float, list[float]]:
    """Return whether MANY_QUIET samples have no request, the error of the sum, and the figures of
    COLUMNS.

    Errors are relative to the mean energy, the bias and the error of the sum to the sum.
    """
    rng = np.random.default_rng(seed)
    served = serve(rng, traffic, rng.uniform(0.15, 1.0), rng.uniform(60, 120), draw_law(rng))
    slots = other.add_to(served.slots(width_s, rng), rng)
    reported = np.flatnonzero(rng.random(len(served.spans)) >= other.unreported)
    spans, true_j = served.spans.take(reported), served.shapley_j[reported]
    found = divide_all(spans, slots)
    divisions = found.dynamic_j, by_time(spans, slots), by_tokens(spans, slots)
    errors = [float(np.abs(each - true_j).mean() / true_j.mean()) for each in divisions]
    contained = float(np.mean(np.abs(found.dynamic_j - true_j) <= found.half_j))
    half_width = float(np.median(found.half_j / found.dynamic_j))
    bias = float(found.dynamic_j.sum() / true_j.sum()) - 1.0
    meter_j = float(slots.joules.sum())
    sum_error = abs(float(found.total_j.sum()) + found.unassigned_j - meter_j) / meter_j
    return (
        quiet_samples(spans, slots) >= MANY_QUIET,
        sum_error,
        [*errors, contained, half_width, bias],
    )


def line(name: str, found: list[list[float]]) -> str:
    figures: FloatArray = np.mean(found, axis=0)
    figures[COLUMNS.index("half-width")] = np.median(found, axis=0)[COLUMNS.index("half-width")]
    return f"{name:24}{len(found):>10}" + "".join(f"{100 * figure:>10.1f} %" for figure in figures)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.exporter.requests.division", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patterns", type=int, default=204)
    parser.add_argument(
        "--unreported", type=float, default=0.0, help="Part of the requests that are not reported."
    )
    parser.add_argument("--other-w", type=float, default=0.0, help="Power of another process.")
    parser.add_argument(
        "--other-part", type=float, default=0.3, help="Part of the time in which it works."
    )
    given = parser.parse_args()
    other = Other(given.unreported, given.other_w, given.other_part)
    rows: dict[str, list[list[float]]] = {traffic: [] for traffic in TRAFFIC}
    by_quiet: dict[bool, list[list[float]]] = {True: [], False: []}
    largest_error = 0.0
    for index in range(given.patterns):
        round_number, position = divmod(index, len(TRAFFIC))
        traffic, width_s = list(TRAFFIC)[position], SLOTS_S[round_number % len(SLOTS_S)]
        is_quiet, sum_error, found = measure(given.seed + index, traffic, width_s, other)
        largest_error = max(largest_error, sum_error)
        rows[traffic].append(found)
        by_quiet[is_quiet].append(found)
        print(f"\r{index + 1} of {given.patterns} patterns", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"{'traffic':24}{'patterns':>10}" + "".join(f"{name:>12}" for name in COLUMNS))
    lines = [
        *rows.items(),
        (f"{MANY_QUIET} quiet samples or more", by_quiet[True]),
        ("fewer quiet samples", by_quiet[False]),
        ("all", [row for each in rows.values() for row in each]),
    ]
    for name, each in lines:
        if each:
            print(line(name, each))
    print(
        f"largest difference of requests and rest to the meter: {largest_error:.1e} of its energy"
    )


if __name__ == "__main__":
    main()

"""Errors against Shapley values over many random patterns of traffic: python -m tests.exporter.request_energy."""

from __future__ import annotations

import argparse
import sys

import numpy as np

from exporter.request_energy.divide import divide_energy
from tests.exporter.request_energy.proration import by_time, by_tokens
from tests.exporter.request_energy.server import draw_law, serve
from tests.exporter.request_energy.traffic import TRAFFIC

SLOTS_S = (0.1, 0.25, 1.0)
COLUMNS = ("model", "by time", "by tokens", "contained", "half-width")


def measure(seed: int, traffic: str) -> list[float]:
    """Return the relative errors of the model, by time and by tokens, the part contained, and the half-width."""
    rng = np.random.default_rng(seed)
    served = serve(rng, traffic, rng.uniform(0.15, 1.0), rng.uniform(60, 120), draw_law(rng))
    slots = served.slots(SLOTS_S[seed % len(SLOTS_S)], rng)
    found = divide_energy(served.spans, slots)
    true_j = served.shapley_j
    divisions = found.dynamic_j, by_time(served.spans, slots), by_tokens(served.spans, slots)
    errors = [float(np.abs(each - true_j).mean() / true_j.mean()) for each in divisions]
    contained = float(np.mean(np.abs(found.dynamic_j - true_j) <= found.half_j))
    return [*errors, contained, float(np.median(found.half_j / found.dynamic_j))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patterns", type=int, default=200)
    arguments = parser.parse_args()
    rows: dict[str, list[list[float]]] = {traffic: [] for traffic in TRAFFIC}
    for index in range(arguments.patterns):
        traffic = list(TRAFFIC)[index % len(TRAFFIC)]
        rows[traffic].append(measure(arguments.seed + index, traffic))
        print(f"\r{index + 1} of {arguments.patterns} patterns", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"{'traffic':20}{'patterns':>10}" + "".join(f"{name:>12}" for name in COLUMNS))
    for name, found in [*rows.items(), ("all", [row for each in rows.values() for row in each])]:
        if found:
            figures = [*np.mean(found, axis=0)[:-1], np.median(found, axis=0)[-1]]
            print(f"{name:20}{len(found):>10}" + "".join(f"{100 * figure:>10.1f} %" for figure in figures))


if __name__ == "__main__":
    main()

"""CPU time and memory of the division of energy among the requests of two days, in a separate
process.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np

from tests.bench.figures import Figure
from wattline_exporter.requests.division.division import divide_all
from wattline_exporter.requests.division.spans import EnergySlots, RequestSpans

SLOTS, RATE = 172_800, 50.0
"""Two days with a sample each second, and requests per second."""
CPU_GOAL_S, MEMORY_GOAL_BYTES = 60.0, 1e9


def request_figures() -> list[Figure]:
    """Return CPU time and memory of the whole program."""
    done = subprocess.run(
        [sys.executable, "-m", __name__], check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    what = f"{found['requests']:,} requests, {SLOTS:,} slots"
    return [
        Figure("energy of requests, CPU time", "s", found["cpu_s"], goal=CPU_GOAL_S, note=what),
        Figure(
            "energy of requests, memory",
            "GB",
            float(found["bytes"]),
            goal=MEMORY_GOAL_BYTES,
            note=what,
        ),
    ]


def traffic(slots: int, rng: np.random.Generator) -> tuple[RequestSpans, EnergySlots]:
    """Return requests at RATE with the lengths of conversations, and energies of `slots`
    seconds.
    """
    count = int(slots * RATE)
    arrived = np.cumsum(rng.exponential(1 / RATE, count))
    first = arrived + rng.gamma(2, 0.1, count)
    ended = first + rng.gamma(2, 2.0, count)
    prompt = rng.lognormal(np.log(1_020), 0.9, count)
    generated = rng.lognormal(np.log(129), 1.0, count) + 1
    spans = RequestSpans(arrived, first, ended, prompt, np.zeros_like(prompt), generated)
    return spans, EnergySlots(np.arange(slots + 1.0), rng.uniform(300, 700, slots), 90.0)


def main() -> None:
    spans, slots = traffic(SLOTS, np.random.default_rng(1))
    begun_s = time.process_time()
    found = divide_all(spans, slots)
    cpu_s = time.process_time() - begun_s
    difference_j = float(found.total_j.sum()) + found.unassigned_j - float(slots.joules.sum())
    if abs(difference_j) > 1e-9 * float(slots.joules.sum()):
        raise SystemExit(f"the energies do not add up: {difference_j:g} J")
    memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
    print(json.dumps({"requests": len(spans), "cpu_s": cpu_s, "bytes": memory_bytes}))


if __name__ == "__main__":
    main()

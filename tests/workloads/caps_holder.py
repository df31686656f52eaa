"""Holds cards and sets the power limits of its arguments, one for each line of stdin: a sweep without its jobs.

The first argument is the GPUs, like 0,1, or all; the caps follow: watts, or hertz where they are that many.
"""

from __future__ import annotations

import os
import sys

from workloads.caps import apply as caps
from workloads.caps.gpu_set import Cap, CapsError
from workloads.caps.open_gpus import open_gpu_set

HERTZ = 1e6  # no card draws that many watts


def main(gpus: str, *values: str) -> None:
    wanted = [Cap("sm_clock_hertz" if float(value) > HERTZ else "power_limit_watts", float(value)) for value in values]
    cards = open_gpu_set(None if gpus == "all" else gpus.split(","), os.environ.get("SIMULATED_CARDS"))
    caps.check_caps(cards, wanted)
    with caps.restoring_caps(cards) as setter:
        for cap in wanted:
            print("ready", flush=True)
            if sys.stdin.readline() == "fail\n":
                raise CapsError("the sweep failed")
            setter.confirm()
            setter.apply(cap)
        print("ready", flush=True)
        sys.stdin.readline()
    print("left", flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except CapsError as error:
        sys.exit(str(error))

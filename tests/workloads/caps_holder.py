"""Sweep without jobs: sets the caps of its arguments, one for each line of stdin.

The first argument is the GPUs, like 0,1 or all. The others are caps in watts, or in hertz above a
million.
"""

from __future__ import annotations

import os
import sys

from wattline_workloads.caps import apply as caps
from wattline_workloads.caps.gpu_set import Cap, CapsError, open_gpu_set

HERTZ = 1e6  # no GPU draws as many watts


def main(gpus: str, *values: str) -> None:
    requested = [
        Cap("sm_clock_hertz" if float(value) > HERTZ else "power_limit_watts", float(value))
        for value in values
    ]
    gpu_set = open_gpu_set(
        None if gpus == "all" else gpus.split(","), os.environ.get("SIMULATED_GPUS")
    )
    caps.check_caps(gpu_set, requested)
    with caps.restoring_caps(gpu_set) as setter:
        for cap in requested:
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

"""Windows of a given length, one JSON line each, shared by the peers' scripts."""

from __future__ import annotations

import argparse
import json
import time


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def options(description: str | None) -> tuple[int, float]:
    """Return number and length of the windows from the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--windows", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    return arguments.windows, arguments.seconds


def print_window(
    method: str, begin_s: float, end_s: float, joules: dict[int, float], begin_took_s: float = 0.0
) -> None:
    print(
        json.dumps(
            {
                "method": method,
                "begin_s": begin_s,
                "end_s": end_s,
                "joules": joules,
                "begin_took_s": begin_took_s,
            }
        ),
        flush=True,
    )

"""gpustat: mean of its power once a second, in whole watts, times the time. gpustat itself claims
no energy.
"""

from __future__ import annotations

import threading

import gpustat
from protocol import boottime, examine

EVERY_S = 1.0


def main() -> None:
    polls_w: dict[int, list[float]] = {}
    begun_s: list[float] = []
    stopped = threading.Event()

    def poll() -> None:
        for gpu in gpustat.new_query():
            if gpu.power_draw is not None:
                polls_w.setdefault(gpu.index, []).append(gpu.power_draw)

    def poll_on() -> None:
        while not stopped.wait(EVERY_S):
            poll()

    def begin() -> None:
        begun_s.append(boottime())
        poll()
        threading.Thread(target=poll_on, daemon=True).start()

    def end() -> dict[int, float]:
        stopped.set()
        seconds = boottime() - begun_s[0]
        return {gpu: sum(watts) / len(watts) * seconds for gpu, watts in polls_w.items()}

    examine(begin, end)


if __name__ == "__main__":
    main()

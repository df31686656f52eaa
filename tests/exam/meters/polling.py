"""Plain NVML: the mean of nvmlDeviceGetPowerUsage once a second, times the time, as in many
scripts.
"""

from __future__ import annotations

import threading
from statistics import fmean

import pynvml
from protocol import boottime, examine

EVERY_S = 1.0


def main() -> None:
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in range(pynvml.nvmlDeviceGetCount())]
    polls_mw: list[list[int]] = []
    stopped = threading.Event()
    begun_s: list[float] = []

    def poll() -> None:
        polls_mw.append([pynvml.nvmlDeviceGetPowerUsage(handle) for handle in handles])

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
        return {
            gpu: fmean(column) / 1e3 * seconds
            for gpu, column in enumerate(zip(*polls_mw, strict=True))
        }

    examine(begin, end)


if __name__ == "__main__":
    main()

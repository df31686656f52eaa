"""Plain NVML: the energy counter at both ends of a window, and power every 5 s times the time."""

from __future__ import annotations

import time

import pynvml
from windows import boottime, options, print_window

POLL_EVERY_S = 5.0


def main() -> None:
    windows, seconds = options(__doc__)
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    for _ in range(windows):
        begin_s = boottime()
        counted_mj = [pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles]
        polled_w: list[list[int]] = []
        while (elapsed_s := boottime() - begin_s) < seconds:
            polled_w.append([pynvml.nvmlDeviceGetPowerUsage(handle) for handle in handles])
            time.sleep(min(POLL_EVERY_S, seconds - elapsed_s))
        end_s = boottime()
        counter_j = {
            i: (pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - counted_mj[i]) / 1e3
            for i, handle in enumerate(handles)
        }
        mean_w = [sum(column) / len(column) / 1e3 for column in zip(*polled_w, strict=True)]
        print_window("counter", begin_s, end_s, counter_j)
        print_window(
            "polled",
            begin_s,
            end_s,
            {i: power_w * (end_s - begin_s) for i, power_w in enumerate(mean_w)},
        )
        time.sleep(0.7)


if __name__ == "__main__":
    main()

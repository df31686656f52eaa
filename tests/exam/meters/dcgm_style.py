"""Imitation of a DCGM field watch: the energy counter, read once a second, and the difference of
cached values.

DCGM itself does not run on the simulated driver. Its field watches default to one update a second.
"""

from __future__ import annotations

import threading

import pynvml
from protocol import examine

EVERY_S = 1.0


def main() -> None:
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in range(pynvml.nvmlDeviceGetCount())]
    cached_mj: dict[int, int] = {}
    begin_mj: dict[int, int] = {}

    def update() -> None:
        for gpu, handle in enumerate(handles):
            try:
                cached_mj[gpu] = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            except pynvml.NVMLError:
                cached_mj.pop(gpu, None)  # DCGM then reports a blank value

    def update_on() -> None:
        while True:
            threading.Event().wait(EVERY_S)
            update()

    update()
    threading.Thread(target=update_on, daemon=True).start()
    threading.Event().wait(1.5)  # the watch has run before

    def end() -> dict[int, float]:
        return {gpu: (mj - begin_mj[gpu]) / 1e3 for gpu, mj in cached_mj.items() if gpu in begin_mj}

    examine(lambda: begin_mj.update(cached_mj), end)


if __name__ == "__main__":
    main()

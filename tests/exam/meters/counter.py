"""Plain NVML: the difference of the energy counter, as in many scripts."""

from __future__ import annotations

import pynvml
from protocol import examine


def main() -> None:
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in range(pynvml.nvmlDeviceGetCount())]
    begin_mj: list[int] = []

    def begin() -> None:
        begin_mj.extend(map(pynvml.nvmlDeviceGetTotalEnergyConsumption, handles))

    def end() -> dict[int, float]:
        end_mj = map(pynvml.nvmlDeviceGetTotalEnergyConsumption, handles)
        return {
            gpu: (after - before) / 1e3
            for gpu, (before, after) in enumerate(zip(begin_mj, end_mj, strict=True))
        }

    examine(begin, end)


if __name__ == "__main__":
    main()

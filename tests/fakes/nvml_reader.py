"""Reader of simulated GPUs with the exporter's NVML source, also as a program with pynvml.

The program takes the state file as its argument and lines of JSON, `[method of Reader,
*arguments]`, on stdin. It prints results in JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from wattline_exporter.sensors.nvml.driver import Nvml, XidWatch
from wattline_exporter.sensors.nvml.gpu import NvmlGpu
from wattline_exporter.simulation import Simulation

Rows = dict[str, float]


class Reader:
    """Reader with the simulation's clock, which tests set. GPUs are attached when they are first
    used.
    """

    def __init__(self, api: Any, simulation: Simulation) -> None:
        self.nvml = Nvml(api, now=simulation.now)
        self.nvml.open()
        self._xids = XidWatch(api)
        self._gpus: dict[int, NvmlGpu] = {}

    def gpu(self, index: int) -> NvmlGpu:
        if index not in self._gpus:
            self._gpus[index] = self.nvml.gpu(index)
        return self._gpus[index]

    def readings(self, index: int) -> Rows:
        """Return values by `metric labels`, without the prefix and without the GPU's own index and
        UUID.
        """
        rows: Rows = {}
        own = (str(index), self.gpu(index).info.uuid)
        for metric, labels, value, _ in self.gpu(index).readings():
            labels_text = labels[2:] if labels[:2] == own else labels[1:]
            key = " ".join([metric.name.removeprefix("wattline_gpu_"), *labels_text])
            assert key not in rows, f"{key} twice"
            rows[key] = value
        return rows

    def processes(self, index: int) -> list[list[Any]]:
        return [list(process) for process in self.gpu(index).processes()]

    def pids(self, index: int) -> list[int]:
        return self.gpu(index).pids()

    def instances(self, index: int) -> list[str]:
        return list(self.gpu(index).instances())

    def counter_j(self, index: int) -> float | None:
        return self.gpu(index).poll().counter_j

    def register(self, index: int) -> bool:
        return self._xids.register(self.gpu(index).handle)

    def xid(self, timeout_s: float = 0.0) -> list[Any] | None:
        result = self._xids.wait(timeout_s)
        return None if result is None else list(result)


if __name__ == "__main__":
    import pynvml

    with Simulation.open(Path(sys.argv[1])) as opened:
        reader = Reader(pynvml, opened)
        for line in sys.stdin:
            method, *arguments = json.loads(line)
            print(json.dumps(getattr(reader, method)(*arguments)), flush=True)

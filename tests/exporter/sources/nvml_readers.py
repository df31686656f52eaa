"""The NVML source on simulated GPUs: through SimulatedNvml, and through the real pynvml on the loadable library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pynvml

from exporter.simulation import PRODUCTS, Simulation, create, make_gpus
from exporter.sources.simulated import SimulatedNvml
from tests.fakes import nvml, read_nvml

NOW = 5_000.0


class ReaderProcess:
    """A tests.fakes.read_nvml.Reader in a process of its own."""

    def __init__(self, state_file: Path) -> None:
        environment = {**os.environ, **nvml.environment(state_file)}
        command = [sys.executable, "-m", "tests.fakes.read_nvml", str(state_file)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        folder = Path(__file__).parents[3]
        self.child = subprocess.Popen(command, env=environment, cwd=folder, **pipes)

    def __getattr__(self, method):
        def ask(*arguments):
            self.child.stdin.write(json.dumps([method, *arguments]) + "\n")
            self.child.stdin.flush()
            return json.loads(self.child.stdout.readline())

        return ask


class Between:
    """Stands between the source and the driver: counts the calls, refuses some, changes what others say."""

    def __init__(self, api, refusals=None, changes=None):
        self._api = api
        self._refusals = refusals or {}
        self._changes = changes or {}
        self.calls: list[str] = []

    def __getattr__(self, name):
        value = getattr(self._api, name)
        if not name.startswith("nvml") or not callable(value):
            return value

        def call(*arguments, **options):
            self.calls.append(name)
            if name in self._refusals:
                raise pynvml.NVMLError(self._refusals[name])
            answer = value(*arguments, **options)
            return self._changes[name](answer) if name in self._changes else answer

        return call


class Node:
    """Simulated GPUs whose time stands at 5000 s; `reader()` reads them in this process."""

    def __init__(self, folder: Path, model: str, count: int = 1) -> None:
        create(folder / "simulation.state", make_gpus(count, PRODUCTS[model]), now=4_000.0)
        self.simulation = Simulation.open(folder / "simulation.state")
        self.simulation.set_clock(NOW)
        self._apis: list[SimulatedNvml] = []

    def api(self) -> SimulatedNvml:
        self._apis.append(SimulatedNvml(self.simulation.path))
        return self._apis[-1]

    def reader(self, **between) -> read_nvml.Reader:
        return read_nvml.Reader(Between(self.api(), **between), self.simulation)

    def later(self, seconds: float) -> None:
        self.simulation.set_clock(self.simulation.now() + seconds)

    def close(self) -> None:
        for api in self._apis:
            api.simulation.close()
        self.simulation.close()

"""Readers of simulated GPUs, through SimulatedNvml and through pynvml on the test library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pynvml

from tests.fakes import nvml, nvml_reader
from wattline_exporter.simulation import PRODUCTS, Simulation, create, make_gpus
from wattline_exporter.simulation.nvml import SimulatedNvml

NOW = 5_000.0


class ReaderProcess:
    """A tests.fakes.nvml_reader.Reader in a separate process."""

    def __init__(self, state_file: Path) -> None:
        environment = {**os.environ, **nvml.environment(state_file)}
        command = [sys.executable, "-m", "tests.fakes.nvml_reader", str(state_file)]
        folder = Path(__file__).parents[4]
        self.child = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __getattr__(self, method):
        def call(*arguments):
            self.child.stdin.write(json.dumps([method, *arguments]) + "\n")
            self.child.stdin.flush()
            return json.loads(self.child.stdout.readline())

        return call


class ApiProxy:
    """Proxy of the NVML API that records calls, fails some of them, and replacements results of
    others.
    """

    def __init__(self, api, errors=None, replacements=None):
        self._api = api
        self._errors = errors or {}
        self._replacements = replacements or {}
        self.calls: list[str] = []

    def __getattr__(self, name):
        value = getattr(self._api, name)
        if not name.startswith("nvml") or not callable(value):
            return value

        def call(*arguments, **options):
            self.calls.append(name)
            if name in self._errors:
                raise pynvml.NVMLError(self._errors[name])
            result = value(*arguments, **options)
            return self._replacements[name](result) if name in self._replacements else result

        return call


class Node:
    """Simulated GPUs at a fixed time of 5000 s; `reader()` reads them in this process."""

    def __init__(self, folder: Path, model: str, count: int = 1) -> None:
        create(folder / "simulation.state", make_gpus(count, PRODUCTS[model]), now=4_000.0)
        self.simulation = Simulation.open(folder / "simulation.state")
        self.simulation.set_clock(NOW)
        self._apis: list[SimulatedNvml] = []

    def api(self) -> SimulatedNvml:
        self._apis.append(SimulatedNvml(self.simulation.path))
        return self._apis[-1]

    def reader(self, **options) -> nvml_reader.Reader:
        return nvml_reader.Reader(ApiProxy(self.api(), **options), self.simulation)

    def later(self, seconds: float) -> None:
        self.simulation.set_clock(self.simulation.now() + seconds)

    def close(self) -> None:
        for api in self._apis:
            api.simulation.close()
        self.simulation.close()

"""GPU under test: the real one, or a simulated one if WATTLINE_SIMULATION names a state file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.program import Program
from tests.fakes import nvml
from tests.gpu.load import PERIOD_S
from tests.gpu.probe import EXIT_NVML
from wattline_exporter import simulation
from wattline_exporter.simulation import Constant, Simulation, Square

ROOT = Path(__file__).parents[2]
_RESPONDS_WITHIN_S = 60.0
_LOAD_STARTS_WITHIN_S = 120.0


class NoGpuError(Exception):
    """No NVIDIA driver is available; the text states the cause."""


@dataclass(frozen=True, slots=True)
class GpuUnderTest:
    environment: dict[str, str]
    state_file: Path | None
    """State file of the simulation; None for a real GPU."""

    @property
    def simulated(self) -> bool:
        return self.state_file is not None

    def probe(self, quantity: str, seconds: float = 0.0) -> Any:
        """Return the result of `probe.py`. Raise NoGpuError if NVML does not respond."""
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tests.gpu.probe", quantity, str(seconds)],
                env={**os.environ, **self.environment},
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=seconds + _RESPONDS_WITHIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NoGpuError(f"the driver did not respond within {error.timeout:.0f} s") from error
        if done.returncode == EXIT_NVML:
            raise NoGpuError(done.stderr.strip().splitlines()[-1])
        if done.returncode:
            raise RuntimeError(
                f"the probe {quantity!r} ended with {done.returncode}:\n{done.stderr}"
            )
        return json.loads(done.stdout)

    @contextmanager
    def loaded(self, uuid: str, duty: float, folder: Path) -> Iterator[None]:
        """Keep the GPU busy for `duty` of the time. Raise ProgramError if torch cannot use it."""
        if self.state_file:
            with Simulation.open(self.state_file) as opened:
                product = opened.gpus[0].product
                high_w = 0.95 * product.peak_w
                opened.set_load(0, Square(product.idle_w, high_w, PERIOD_S, duty=duty))
                yield
                opened.set_load(0, Constant(product.idle_w))
            return
        environment = {**self.environment, "CUDA_VISIBLE_DEVICES": uuid, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.gpu.load", str(duty)]
        with Program(f"load-{duty:g}", command, environment, folder) as program:
            program.until(lambda: program.lines() == ["ready"], _LOAD_STARTS_WITHIN_S)
            yield


def find_gpu() -> GpuUnderTest:
    """Return the GPU; create a state file with one H200 if it is missing. Raise NoGpuError."""
    state_path = os.environ.get(simulation.ENVIRONMENT)
    if state_path is None:
        gpu = GpuUnderTest({}, None)
    else:
        path = Path(state_path).absolute()
        if not path.exists():
            simulation.create(
                path, simulation.make_gpus(1, simulation.PRODUCTS["H200"]), simulation.clock_s()
            )
        gpu = GpuUnderTest(nvml.environment(path), path)
    gpu.probe("identity")
    return gpu


def torch_cuda_problem() -> str | None:
    """Return the reason why torch has no CUDA, or None."""
    code = (
        "import torch, sys; sys.exit(None if torch.cuda.is_available() else 'torch finds no "
        "CUDA device')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else None

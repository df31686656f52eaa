from __future__ import annotations

import pynvml
import pytest

from tests.fakes.nvml_process import NvmlProcess
from wattline_exporter.simulation import (
    FILE_NAME,
    PRODUCTS,
    Constant,
    Ramp,
    Recording,
    Simulation,
    Square,
    Trace,
    create,
    make_gpus,
)
from wattline_exporter.simulation.nvml import SimulatedNvml

NOW = 5_000.0
GIB = 1 << 30


@pytest.fixture
def simulation(tmp_path):
    """Eight H200 with loads of every kind, at a fixed time of 5000 s."""
    gpus = make_gpus(8, PRODUCTS["H200"])
    recording = Recording((0.0, 0.25, 0.5, 700.0), (150.0, 650.0, 420.0, 333.3))
    create(tmp_path / FILE_NAME, gpus, now=4_000.0, recording=recording)
    with Simulation.open(tmp_path / FILE_NAME) as opened:
        opened.set_load(0, Constant(300.0), at=4_001.0)
        opened.set_load(1, Square(72.0, 640.0, 0.104), at=4_002.7)
        opened.set_limit(1, 333.0, at=4_900.0)
        opened.set_load(2, Ramp(90.0, 690.0, 1_500.0), at=4_003.1)
        opened.set_limit(2, 400.0, at=4_100.0)
        opened.set_load(3, Trace(recording, start_s=0.1), at=4_600.3)
        opened.drive(4, 0.7, pid=4711, memory_bytes=3 * GIB, at=4_500.0)
        opened.drive(4, 0.4, pid=4712, memory_bytes=GIB, at=4_600.0)
        opened.set_limit(4, 450.0, at=4_700.0)
        for i in range(50):
            opened.set_load(5, Constant(100.0 + i), at=4_998.0 + i / 50)
        opened.set_clock(NOW)
        yield opened


@pytest.fixture
def start(simulation):
    """Return a function that starts processes with pynvml, initialized by default."""
    started = []

    def start_one(*, init=True):
        process = NvmlProcess(simulation.path)
        started.append(process)
        if init:
            assert process.call("nvmlInitWithFlags", None, pynvml.NVML_INIT_FLAG_NO_ATTACH) is None
        return process

    yield start_one
    for process in started:
        process.end()


@pytest.fixture
def simulated(simulation):
    opened = SimulatedNvml(simulation.path)
    opened.nvmlInit()
    yield opened
    opened.simulation.close()

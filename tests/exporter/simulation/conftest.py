from __future__ import annotations

from dataclasses import replace

import pytest

from wattline_exporter.simulation import (
    FILE_NAME,
    PRODUCTS,
    Recording,
    Simulation,
    create,
    make_gpus,
)

H200 = replace(PRODUCTS["H200"], noise_w=0.0)
STEPS = Recording((0.0, 1.0, 3.0), (100.0, 400.0, 250.0))


@pytest.fixture
def simulation(tmp_path):
    create(tmp_path / FILE_NAME, make_gpus(8, H200), now=1_000.0, recording=STEPS)
    with Simulation.open(tmp_path / FILE_NAME) as opened:
        yield opened

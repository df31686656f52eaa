"""Energy of the GPUs of one server."""

from __future__ import annotations

import numpy as np

from wattline_exporter.requests.llm_server import energy_of_gpus


def test_half_widths_of_gpus_at_one_instant_add():
    first = np.array([0.0, 100.0]), np.array([3.0, 6.0])
    second = np.array([0.0, 50.0]), np.array([4.0, 8.0])
    joules, half_j = energy_of_gpus([first, second], 2)
    assert joules.tolist() == [0.0, 150.0]
    assert half_j.tolist() == [7.0, 14.0]  # squares would give 5 and 10


def test_server_without_gpus_has_no_energy():
    joules, half_j = energy_of_gpus([], 3)
    assert joules.tolist() == [0.0] * 3
    assert half_j.tolist() == [0.0] * 3

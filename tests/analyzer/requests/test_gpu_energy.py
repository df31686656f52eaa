"""Energy of GPUs in the slots between their samples."""

import numpy as np

from wattline.contract import metrics as m
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.requests.gpu_energy import RunGpus, sampled_energy

START_S = 1_790_000_000.0
GPU = ("a", "GPU-0")


class OneCounter:
    """Source with the energy counter of one GPU, which has a sample each second."""

    name = "one counter"

    def __init__(self, values):
        labels = {"__name__": m.GPU_ENERGY.name, "instance": "a", "gpu": "0", "uuid": "GPU-0"}
        t_s = START_S + np.arange(len(values), dtype=np.float64)
        self._series = labels, t_s, np.array(values, dtype=np.float64)

    def fetch(self, metrics, matchers, start_s, end_s):
        return table_of([self._series])

    def close(self):
        pass


def slots(values):
    source = OneCounter(values)
    measured = sampled_energy(source, RunGpus.alone([GPU]), (START_S, START_S + len(values) - 1))
    return (measured.edges_s - START_S).tolist(), measured.joules.tolist(), measured.sampled_j


def test_gpu_energy_after_a_restart_counts_from_zero():
    """300 J, then 200 J since the restart, then 300 J."""
    assert slots([1_000, 1_300, 200, 500]) == ([0, 1, 2, 3], [300, 200, 300], 800)


def test_gpu_energy_without_a_late_sample_has_a_longer_slot():
    """49,900 J at 1 s is older than 50,000 J at 0 s: 600 J in the slot of 2 s."""
    assert slots([50_000, 49_900, 50_600, 50_900]) == ([0, 2, 3], [600, 300], 900)

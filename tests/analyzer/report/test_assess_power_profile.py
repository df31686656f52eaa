"""Power profile of a run."""

import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape_times
from tests.analyzer.run_reports import run_frames
from wattline_analyzer.report.assess import assess, run_power_profile


def test_power_profile_has_energy_of_each_5_minutes(tmp_path):
    """200 W for 10 min, then 400 W for 10 min: 60 kJ in each of the first two parts, 120 kJ in the
    others.
    """
    end_s = START_S + 1_200
    gpu = NodeGpu([(START_S - 1_000, 60), (START_S, 200), (START_S + 600, 400), (end_s, 60)])
    frames = run_frames(
        tmp_path,
        NodeRun(end_s=end_s, cpu_j=40_000),
        gpus=[gpu],
        times=scrape_times(10, START_S - 60, end_s + 60),
    )

    profile = run_power_profile(frames, assess(frames))

    assert profile.boundary == "gpu+cpu"
    assert profile.durations_s == (300.0,) * 4
    assert profile.energies_j == pytest.approx(
        [70_000, 70_000, 130_000, 130_000]
    )  # 10 kJ of the CPU in each
    assert profile.energy_j == pytest.approx(400_000)

"""Panels of a run's plot."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.analyzer.node import START_S, NodeGpu
from tests.analyzer.run_reports import POWER_STEPS, SCRAPE_TIMES, run_frames
from wattline.contract import metrics as m
from wattline.figures import Figure
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.plot import error_bar, run_plot
from wattline_analyzer.report.timeseries import power_samples


@pytest.mark.parametrize(("limit_w", "is_drawn"), [(400.0, True), (1_000.0, False)])
def test_run_plot_has_panels_of_sensors_and_a_near_power_limit(tmp_path, limit_w, is_drawn):
    gpu = NodeGpu(POWER_STEPS, limit_w=limit_w, utilization=0.5)
    frames = run_frames(tmp_path, gpus=[gpu])
    report = assess(frames)

    plot = run_plot(report, power_samples(frames, report), frames.raw, form="svg").decode()

    assert "<!-- GPU utilization, % -->" in plot
    assert "GPU temperature" not in plot  # no samples of it
    assert ("(dashed: power limit)" in plot) == is_drawn


def test_error_bar_of_unknown_half_width_is_not_drawn():
    assert error_bar(3.0) == 3.0
    assert math.isnan(error_bar(None))


@pytest.mark.parametrize(("half_j", "bars"), [(300.0, 1), (None, 0)])
def test_run_plot_has_error_bars_of_known_half_widths_only(tmp_path, half_j, bars):
    frames = run_frames(tmp_path, gpus=[NodeGpu(POWER_STEPS)])
    report = assess(frames)
    devices = [
        replace(device, energy=Figure(6_000.0, half_j)) for device in report.energies.devices
    ]
    report = replace(report, energies=replace(report.energies, devices=tuple(devices)))

    plot = run_plot(report, power_samples(frames, report), frames.raw, form="svg").decode()

    assert len(re.findall(r'id="LineCollection_\d+">', plot)) == bars  # "/>" ends an empty one


@pytest.mark.parametrize("utilization", [0.0, 0.3, 1.0])
def test_run_plot_utilization_axis_is_from_0_to_100_percent(tmp_path, utilization):
    frames = run_frames(tmp_path, gpus=[NodeGpu(POWER_STEPS, utilization=utilization)])
    report = assess(frames)

    plot = run_plot(report, power_samples(frames, report), frames.raw, form="svg").decode()

    gauge = plot.partition('id="axes_2"')[2].partition('id="axes_3"')[0]
    axis = gauge.partition('id="matplotlib.axis_4"')[2]
    assert re.findall(r"<!-- (\d+) -->", axis) == ["0", "50", "100"]


@pytest.mark.parametrize(
    ("rise_c", "ticks"), [(0.0, ["58", "59", "60"]), (40.0, ["60", "80", "100"])]
)
def test_run_plot_temperature_axis_covers_the_samples(tmp_path, rise_c, ticks):
    """60 °C until 10 s after the start, and 60 °C or 100 °C from then on: the axis is from 58 to 62
    °C, or from 56.8 to 103.2 °C.
    """
    frames = run_frames(tmp_path)
    report = assess(frames)
    labels = {
        "__name__": m.GPU_TEMPERATURE.name,
        "gpu": "0",
        "uuid": report.gpus[0].device,
        "sensor": "gpu",
    }
    times = np.array(SCRAPE_TIMES)
    sensors = table_of([(labels, times, 60.0 + rise_c * (times > START_S + 10))])

    plot = run_plot(report, power_samples(frames, report), sensors, form="svg").decode()

    axis = plot.partition('id="matplotlib.axis_4"')[2]
    assert re.findall(r"<!-- (\d+) -->", axis)[:3] == ticks

"""Conditions of a GPU during the work."""

import numpy as np

from wattline.contract import metrics as m
from wattline_analyzer.core.conditions import gpu_conditions
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.core.timeline import Window


def test_gpu_conditions_exclude_readings_from_before_the_work():
    # scrapes each second; temperature and utilization are up to a second old, so the first scrape
    # is old
    t = np.arange(100.0, 111.0)
    of_gpu = {"uuid": "GPU-0"}
    series = [
        (
            {"__name__": m.GPU_TEMPERATURE.name, "sensor": "gpu", **of_gpu},
            t,
            np.where(t < 105, 35.0, 30.0),
        ),
        ({"__name__": m.GPU_CLOCK.name, "domain": "sm", **of_gpu}, t, np.where(t < 105, 3e8, 2e9)),
        (
            {"__name__": m.GPU_UTILIZATION.name, "engine": "gpu", **of_gpu},
            t,
            np.where(t < 105, 0.0, 1.0),
        ),
    ]
    window = Window(100.0, 110.0, ended=True, duration_s=10.0)

    long_work = gpu_conditions(table_of(series), window, "GPU-0", [(104.5, 109.5)])
    short_work = gpu_conditions(table_of(series), window, "GPU-0", [(103.5, 104.5)])

    assert (long_work.temperature_celsius, long_work.utilization) == (30.0, 1.0)
    assert gpu_conditions(table_of(series), window, "GPU-0", [(104.5, 111)]).sm_clock_hz == 2e9
    assert (short_work.temperature_celsius, short_work.utilization) == (None, None)


def capped_s(values):
    """Return the seconds with a power cap in a run of 10 s, with a scrape each two seconds."""
    labels = {"__name__": m.GPU_CLOCK_EVENT_SECONDS.name, "uuid": "GPU-0", "reason": "sw_power_cap"}
    table = table_of([(labels, np.arange(100.0, 111.0, 2.0), np.array(values))])
    window = Window(100.0, 110.0, ended=True, duration_s=10.0)
    return gpu_conditions(table, window, "GPU-0", []).capped_s


def test_gpu_conditions_late_counter_changes_no_event_seconds():
    # 1 s in each 2 s; 52.5 s at the fourth scrape is older than 53 s
    assert capped_s([51.0, 52.0, 53.0, 52.5, 55.0, 56.0]) == 5.0


def test_gpu_conditions_restarted_counter_has_no_event_seconds():
    assert capped_s([51.0, 52.0, 53.0, 1.0, 2.0, 3.0]) is None

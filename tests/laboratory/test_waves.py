"""Intervals of waves on sensors that update in other ways."""

import random
from itertools import product

import numpy as np
import pytest

from tests.calibration.windows import LENGTHS_S, WindowDraw
from tests.exporter.meter.replay import START_S, gpu_with_load
from tests.laboratory.results import ENOUGH, stored_rows
from tests.laboratory.waves import (
    LOADS,
    RESULTS,
    UPDATES,
    UpdatedGpu,
    Updates,
    measure_wave_runs,
    summarize_jobs,
    update_table,
    updated_gpu,
    wave_table,
)
from wattline_exporter.simulation import Square

TOGETHER = UPDATES[0]._replace(gpus=1)
BURSTS = "bursts of 0.1 s, pauses"


def counted_j(gpu, t_s):
    """Return the counter's value at an instant."""
    return gpu.poll(t_s).counter_j


def state_of(load):
    return gpu_with_load(random.Random(1), load, from_s=900.0).gpu


def test_updated_gpu_counter_and_power_date_from_their_updates():
    """700 W for half of each second: the counter rises by 350 J a second, at its updates."""
    state = state_of(Square(0.0, 700.0, 1.0))
    gpu = updated_gpu(random.Random(2), Updates("", counter_s=0.25, power_s=0.1), state)
    phase_s = gpu.gpu.counter_phase_s
    first_j, same_j, later_j = (
        counted_j(gpu, START_S + phase_s + since_s) for since_s in (0.01, 0.24, 1.01)
    )

    assert first_j == same_j
    assert later_j - first_j == pytest.approx(350.0, abs=0.002)


def test_updated_gpu_late_power_is_that_of_earlier_updates():
    """72 W until 1,000 s, then 640 W; updates at each 0.1 s, and a power that is 0.1 s late."""
    state = state_of(Square(640.0, 72.0, 200.0))  # from 900 s on
    late = UpdatedGpu(updated_gpu(random.Random(2), TOGETHER, state).gpu, delay_s=0.1)
    exact = UpdatedGpu(late.gpu)
    moved_s = late.gpu.sensor_phase_s + 1_000.0 + 0.001

    assert exact.poll(moved_s + 0.1).instant_w == pytest.approx(640.0, abs=1.0)
    mean_w = exact.poll(moved_s).instant_w  # a part of the update is before 1,000 s
    assert late.poll(moved_s + 0.1).instant_w == pytest.approx(mean_w, abs=2.0)
    assert late.poll(moved_s + 0.2).instant_w == pytest.approx(640.0, abs=1.0)


def test_updated_gpu_scatter_moves_each_update_by_at_most_the_jitter():
    state = state_of(Square(100.0, 700.0, 10.0))
    gpu = UpdatedGpu(updated_gpu(random.Random(2), TOGETHER, state).gpu, jitter_s=0.005)
    phase_s = gpu.gpu.counter_phase_s
    polls_s = np.arange(START_S, START_S + 3.0, 0.0005)
    values = [counted_j(gpu, t) for t in polls_s]
    moved_s = polls_s[1:][np.diff(values) > 0] - phase_s
    away_s = moved_s - 0.1 * np.round(moved_s / 0.1)

    assert len(moved_s) in (29, 30, 31)
    assert np.max(np.abs(away_s)) <= 0.0056
    assert np.ptp(away_s) > 0.005


def test_summary_of_jobs_adds_errors_and_half_widths():
    """Errors of 6 J in ± 8 J, twice; and of 6 and 12 J, which sum up to 18 J in ± 16 J."""
    draws = [WindowDraw(6.0, 8.0), WindowDraw(12.0, 8.0)]
    found = summarize_jobs([[draws[0], draws[0]], [draws[0], draws[1]]])

    assert found["runs"] == 4
    assert found["coverage"] == 0.75
    assert found["sum_coverage"] == 0.5


def test_bursts_with_pauses_need_at_least_half_and_at_most_a_third_of_their_half_width():
    """Half of the half-widths contain too few errors; a third of them is less than is needed."""
    draws = [draw for (draw,) in measure_wave_runs(11, TOGETHER, BURSTS, 3.0, 60)]
    errors_j = np.abs([draw.error_j for draw in draws])
    halves_j = np.array([draw.half_width_j for draw in draws])

    assert np.mean(errors_j <= halves_j) >= 0.93
    assert np.mean(errors_j <= halves_j / 2) < 0.93
    assert np.mean(halves_j) < 3.0 * np.quantile(errors_j, 0.95)


@pytest.mark.parametrize("updates", UPDATES[1:], ids=lambda updates: updates.title)
@pytest.mark.parametrize("load", ["wave of 0.11 s", BURSTS])
def test_few_runs_are_inside_their_intervals(updates, load):
    jobs = measure_wave_runs(11, updates, load, 3.0, 20)

    assert summarize_jobs(jobs)["coverage"] >= 0.85


def test_stored_waves_have_each_class():
    found = [(row["updates"], row["load"], row["seconds"]) for row in stored_rows(RESULTS)]
    titles = [updates.title for updates in UPDATES]

    assert sorted(found) == sorted(product(titles, LOADS, LENGTHS_S))


def test_stored_waves_contain_the_truth_in_each_class():
    too_few = [
        row for row in stored_rows(RESULTS) if min(row["coverage"], row["sum_coverage"]) < ENOUGH
    ]

    assert too_few == []


def test_tables_have_a_row_for_each_load_and_for_each_kind_of_updates():
    loads = wave_table().splitlines()[2:]
    updates = update_table().splitlines()[2:]

    assert [line.split(" | ")[0].removeprefix("| ") for line in loads] == list(LOADS)
    assert [line.split(" | ")[0].removeprefix("| ") for line in updates] == [
        one.title for one in UPDATES
    ]

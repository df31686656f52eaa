"""Energy of a run over time: its parts in two slots of carbon intensity."""

import random
from contextlib import closing

import numpy as np
import pytest

from tests.analyzer.carbon.test_restate import HALF_S, JOULES, TIMES, TWO_POWERS, past, run
from tests.analyzer.node import NodeGpu, NodeRun, scrape, scrape_times, series_of_scrapes
from tests.analyzer.run_reports import load_frames, run_frames
from wattline.contract import metrics as m
from wattline.figures import Figure
from wattline_analyzer.carbon.fetch import with_energy_counters
from wattline_analyzer.core.devices import ReportDevice
from wattline_analyzer.core.run_report import UserInputs
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.core.timeline import Window
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.devices import RawSeries
from wattline_analyzer.report.energy_over_time import energy_tracks


@pytest.mark.parametrize("spacing_s", [1, 5, 15])
@pytest.mark.parametrize("own_counter", [True, False])
def test_run_energy_short_run_interval_contains_true_emissions(tmp_path, spacing_s, own_counter):
    """Runs of 12 to 40 s with several loads across a change of slot, from 100 to 400 g/kWh."""
    chance = random.Random(10 * spacing_s + own_counter)
    start_s = HALF_S - chance.uniform(2, 20)
    end_s = HALF_S + chance.uniform(10, 20)
    loads = [(start_s + chance.uniform(2, 9) * n, chance.uniform(100, 400)) for n in range(5)]
    gpu = NodeGpu(
        [
            (start_s - 2_000, 60),
            *sorted([(start_s, 250), *(one for one in loads if one[0] < end_s)]),
        ]
    )
    gpu = NodeGpu([*gpu.steps, (end_s, 60)])
    times = scrape_times(spacing_s, start_s - 65 + chance.uniform(0, spacing_s), end_s + 180)
    short = NodeRun(start_s=start_s, end_s=end_s, uncertainty_j=1.0)
    frames = run_frames(tmp_path, short, gpus=[gpu], times=times)
    if own_counter:
        with closing(HistorySource(tmp_path)) as source:
            frames = with_energy_counters(source, frames)

    (restatement,) = assess(frames, UserInputs(past=(past(100.0, 400.0),))).restated

    true_j = [
        gpu.energy_j(HALF_S) - gpu.energy_j(start_s),
        gpu.energy_j(end_s) - gpu.energy_j(HALF_S),
    ]
    true_g = (100 * true_j[0] + 400 * true_j[1]) / JOULES
    (emission,) = restatement.emissions
    assert emission.mass_g.low <= true_g <= emission.mass_g.high
    assert restatement.mass_g == pytest.approx(true_g, rel=0.03 if spacing_s == 1 else 0.3)
    assert sum(slot.energy_j for slot in restatement.slots) == pytest.approx(sum(true_j), rel=1e-9)


def test_run_energy_imported_power_log_follows_its_power(tmp_path):
    """Without a counter, the integral of power divides the energy: 120 kJ and 360 kJ."""
    series = series_of_scrapes((t, scrape([TWO_POWERS], run(), t)) for t in TIMES)
    series = [one for one in series if one.labels["__name__"] != m.GPU_ENERGY.name]

    (restatement,) = assess(
        load_frames(tmp_path, series), UserInputs(past=(past(150.0, 300.0),))
    ).restated

    assert [slot.energy_j for slot in restatement.slots] == pytest.approx(
        [120_000, 360_000], rel=0.01
    )


def test_run_energy_before_first_sample_is_ledger_minus_samples(tmp_path):
    """Samples from the half hour on rise by 360 kJ, the ledger's by 480 kJ: 120 kJ were before."""
    times = [t for t in TIMES if t >= HALF_S]
    frames = run_frames(tmp_path, run(), gpus=[TWO_POWERS], times=times, intensity=100.0)

    (restatement,) = assess(frames, UserInputs(past=(past(150.0, 300.0),))).restated

    assert [slot.energy_j for slot in restatement.slots] == pytest.approx([120_000, 360_000])
    assert restatement.mass_g == pytest.approx(35.0)


def package_track(values):
    """Return the track of a CPU package over 30 s, whose counter has a value each ten seconds."""
    labels = {"__name__": m.CPU_ENERGY.name, "instance": "a", "package": "0", "zone": "package"}
    counter = labels, np.array([0.0, 10.0, 20.0, 30.0]), np.array(values, dtype=np.float64)
    device = ReportDevice("a", "cpu", "0", "CPU 0", "", Figure(2_500.0), 30.0)
    window = Window(0.0, 30.0, ended=True, duration_s=30.0)
    tracks = energy_tracks(RawSeries(table_of([counter])), "r", [device], {"a": window})
    return tracks["a", "cpu"][0]


def test_run_energy_of_a_package_counts_from_zero_after_a_restart():
    """1,000 J in 10 s, 500 J since the restart at 20 s, and 1,000 J until 30 s."""
    track = package_track([1_000, 2_000, 500, 1_500])

    assert track.values(np.array([0.0, 10.0, 20.0, 30.0])).tolist() == [0, 1_000, 1_500, 2_500]


def test_run_energy_of_a_package_leaves_a_late_sample_out():
    """1,900 J at 20 s is older than 2,000 J at 10 s: 1,500 J in 20 s are 750 J until 20 s."""
    track = package_track([1_000, 2_000, 1_900, 3_500])

    assert track.values(np.array([0.0, 10.0, 20.0, 30.0])).tolist() == [0, 1_000, 1_750, 2_500]

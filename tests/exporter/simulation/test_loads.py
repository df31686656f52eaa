"""Loads of a simulated GPU, worked out by hand."""

from __future__ import annotations

import pytest

from tests.exporter.simulation.conftest import STEPS
from wattline_exporter.simulation import (
    Constant,
    Ramp,
    Recording,
    Square,
    Trace,
)


def test_load_constant_300_w_for_10_s_is_3000_j(simulation):
    simulation.set_load(0, Constant(300), at=1_001.0)

    assert simulation.energy_j(0, 1_001.0, 1_011.0) == pytest.approx(3_000, abs=1e-9)
    assert simulation.power_w(0, 1_005.0) == 300


def test_load_before_the_first_load_gpu_is_idle(simulation):
    assert simulation.energy_j(0, 990.0, 1_010.0) == pytest.approx(20 * 78)


def test_load_square_wave_adds_whole_and_partial_periods(simulation):
    simulation.set_load(0, Square(low_w=100, high_w=500, period_s=2, duty=0.25), at=1_001.0)

    assert simulation.energy_j(0, 1_001.0, 1_003.0) == pytest.approx(500 * 0.5 + 100 * 1.5)
    assert simulation.energy_j(0, 1_001.25, 1_004.0) == pytest.approx(
        500 * 0.25 + 100 * 1.5 + 500 * 0.5 + 100 * 0.5
    )
    assert simulation.power_w(0, 1_001.4) == 500
    assert simulation.power_w(0, 1_001.6) == 100


def test_load_square_wave_with_phase_starts_within_a_period(simulation):
    simulation.set_load(
        0, Square(low_w=100, high_w=500, period_s=2, duty=0.5, phase_s=0.9), at=1_001.0
    )

    assert simulation.energy_j(0, 1_001.0, 1_002.0) == pytest.approx(500 * 0.1 + 100 * 0.9)


def test_load_ramp_rises_and_stays(simulation):
    simulation.set_load(0, Ramp(from_w=100, to_w=500, duration_s=10), at=1_001.0)

    assert simulation.energy_j(0, 1_001.0, 1_011.0) == pytest.approx(3_000)
    assert simulation.energy_j(0, 1_011.0, 1_013.0) == pytest.approx(1_000)
    assert simulation.power_w(0, 1_006.0) == pytest.approx(300)


@pytest.mark.parametrize(("from_w", "to_w"), [(100, 500), (500, 100)])
def test_load_ramp_is_capped_by_the_limit(simulation, from_w, to_w):
    simulation.set_limit(0, 300, at=1_000.5)
    simulation.set_load(0, Ramp(from_w, to_w, duration_s=10), at=1_001.0)

    # half of the ramp is above 300 W: 5 s at a mean of 200 W, 5 s at 300 W
    assert simulation.energy_j(0, 1_001.0, 1_011.0) == pytest.approx(5 * 200 + 5 * 300)


def test_load_trace_keeps_each_power_until_the_next(simulation):
    simulation.set_load(0, Trace(simulation.recording), at=1_001.0)

    assert simulation.energy_j(0, 1_001.0, 1_006.0) == pytest.approx(100 + 2 * 400 + 2 * 250)
    assert simulation.power_w(0, 1_002.5) == 400


def test_load_trace_with_offset_is_capped_by_the_limit(simulation):
    simulation.set_limit(0, 300, at=1_000.5)
    simulation.set_load(0, Trace(simulation.recording, start_s=0.5), at=1_001.0)

    assert simulation.energy_j(0, 1_001.0, 1_003.0) == pytest.approx(0.5 * 100 + 1.5 * 300)


def test_recording_csv_with_t_and_watts_is_read(tmp_path):
    (tmp_path / "trace.csv").write_text("t,watts\n5,100\n6,400\n8,250\n")

    recording = Recording.from_csv(tmp_path / "trace.csv")

    assert (recording.times_s, recording.watts) == (STEPS.times_s, STEPS.watts)


@pytest.mark.parametrize("text", ["time,power\n0,1\n", "t,watts\n", "t,watts\n1,5\n1,6\n"])
def test_recording_invalid_csv_is_refused_with_its_name(tmp_path, text):
    (tmp_path / "bad.csv").write_text(text)

    with pytest.raises(ValueError, match=r"bad\.csv"):
        Recording.from_csv(tmp_path / "bad.csv")


def test_load_trace_of_another_recording_is_refused(simulation):
    with pytest.raises(ValueError, match="another recording"):
        simulation.set_load(0, Trace(Recording((0.0,), (5.0,))))


def test_limit_change_keeps_the_phase_of_the_load(simulation):
    simulation.set_load(0, Square(low_w=100, high_w=500, period_s=2), at=1_001.0)
    simulation.set_limit(0, 200, at=1_001.5)

    # 500 W for 0.5 s until the limit is lowered, 200 W to the end of the high part, then 100 W
    assert simulation.energy_j(0, 1_001.0, 1_003.0) == pytest.approx(500 * 0.5 + 200 * 0.5 + 100)


def test_load_100_changes_keep_the_energy_exact(simulation):
    for i in range(100):
        simulation.set_load(0, Constant(100.0 + i), at=1_001.0 + i)

    assert simulation.energy_j(0, 1_099.0, 1_101.0) == pytest.approx(198 + 199)
    assert simulation.counter_j(0, 1_101.1) == pytest.approx(
        78 + sum(range(100, 200)), abs=0.11 * 199
    )
    with pytest.raises(ValueError, match="last 32 changes"):
        simulation.energy_j(0, 1_001.0, 1_101.0)


def test_load_change_in_the_past_is_refused(simulation):
    simulation.set_load(0, Constant(300), at=1_005.0)

    with pytest.raises(ValueError, match="is earlier than the last one"):
        simulation.set_load(0, Constant(100), at=1_004.0)
    assert simulation.power_w(0, 1_006.0) == 300


def test_limit_out_of_range_is_refused(simulation):
    with pytest.raises(ValueError, match="200 to 700 W, not 150 W"):
        simulation.set_limit(0, 150)

"""Loads and sensors of a simulated GPU, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from exporter.simulation import (
    FILE_NAME,
    PRODUCTS,
    Constant,
    Fault,
    Ramp,
    Recording,
    Simulation,
    Square,
    Trace,
    create,
    make_gpus,
    parse_spec,
)
from tests.contract.conftest import H200, STEPS


def test_a_constant_load_of_300_w_for_10_s_is_3000_j(simulation):
    simulation.set_load(0, Constant(300), at=1_001.0)

    assert simulation.energy_j(0, 1_001.0, 1_011.0) == pytest.approx(3_000, abs=1e-9)
    assert simulation.power_w(0, 1_005.0) == 300


def test_before_its_first_load_a_gpu_idles(simulation):
    assert simulation.energy_j(0, 990.0, 1_010.0) == pytest.approx(20 * 78)


def test_a_square_wave_adds_up_whole_periods_and_parts(simulation):
    simulation.set_load(0, Square(low_w=100, high_w=500, period_s=2, duty=0.25), at=1_001.0)

    assert simulation.energy_j(0, 1_001.0, 1_003.0) == pytest.approx(500 * 0.5 + 100 * 1.5)
    assert simulation.energy_j(0, 1_001.25, 1_004.0) == pytest.approx(500 * 0.25 + 100 * 1.5 + 500 * 0.5 + 100 * 0.5)
    assert simulation.power_w(0, 1_001.4) == 500
    assert simulation.power_w(0, 1_001.6) == 100


def test_a_square_wave_may_begin_within_a_period(simulation):
    simulation.set_load(0, Square(low_w=100, high_w=500, period_s=2, duty=0.5, phase_s=0.9), at=1_001.0)

    assert simulation.energy_j(0, 1_001.0, 1_002.0) == pytest.approx(500 * 0.1 + 100 * 0.9)


def test_a_ramp_climbs_and_holds(simulation):
    simulation.set_load(0, Ramp(from_w=100, to_w=500, duration_s=10), at=1_001.0)

    assert simulation.energy_j(0, 1_001.0, 1_011.0) == pytest.approx(3_000)
    assert simulation.energy_j(0, 1_011.0, 1_013.0) == pytest.approx(1_000)
    assert simulation.power_w(0, 1_006.0) == pytest.approx(300)


@pytest.mark.parametrize(("from_w", "to_w"), [(100, 500), (500, 100)])
def test_a_limit_cuts_the_top_off_a_ramp(simulation, from_w, to_w):
    simulation.set_limit(0, 300, at=1_000.5)
    simulation.set_load(0, Ramp(from_w, to_w, duration_s=10), at=1_001.0)

    # half of the ramp lies above 300 W: 5 s at a mean of 200 W, 5 s at 300 W
    assert simulation.energy_j(0, 1_001.0, 1_011.0) == pytest.approx(5 * 200 + 5 * 300)


def test_a_trace_holds_each_power_until_the_next_and_its_last(simulation):
    simulation.set_load(0, Trace(simulation.recording), at=1_001.0)

    assert simulation.energy_j(0, 1_001.0, 1_006.0) == pytest.approx(100 + 2 * 400 + 2 * 250)
    assert simulation.power_w(0, 1_002.5) == 400


def test_a_trace_may_begin_in_its_midst_and_is_cut_by_the_limit(simulation):
    simulation.set_limit(0, 300, at=1_000.5)
    simulation.set_load(0, Trace(simulation.recording, start_s=0.5), at=1_001.0)

    assert simulation.energy_j(0, 1_001.0, 1_003.0) == pytest.approx(0.5 * 100 + 1.5 * 300)


def test_a_trace_is_read_from_columns_t_and_watts(tmp_path):
    (tmp_path / "trace.csv").write_text("t,watts\n5,100\n6,400\n8,250\n")

    recording = Recording.from_csv(tmp_path / "trace.csv")

    assert (recording.times_s, recording.watts) == (STEPS.times_s, STEPS.watts)


@pytest.mark.parametrize("text", ["time,power\n0,1\n", "t,watts\n", "t,watts\n1,5\n1,6\n"])
def test_a_csv_that_is_no_power_trace_is_refused_with_its_name(tmp_path, text):
    (tmp_path / "bad.csv").write_text(text)

    with pytest.raises(ValueError, match=r"bad\.csv"):
        Recording.from_csv(tmp_path / "bad.csv")


def test_a_trace_that_the_file_does_not_carry_cannot_be_played(simulation):
    with pytest.raises(ValueError, match="another recording"):
        simulation.set_load(0, Trace(Recording((0.0,), (5.0,))))


def test_changing_the_limit_keeps_the_load_in_step(simulation):
    simulation.set_load(0, Square(low_w=100, high_w=500, period_s=2), at=1_001.0)
    simulation.set_limit(0, 200, at=1_001.5)

    # 500 W until the limit falls half a second in, 200 W to the end of the high part, 100 W
    assert simulation.energy_j(0, 1_001.0, 1_003.0) == pytest.approx(500 * 0.5 + 200 * 0.5 + 100)


def test_only_the_last_changes_are_kept_and_the_energy_remains_exact(simulation):
    for i in range(100):
        simulation.set_load(0, Constant(100.0 + i), at=1_001.0 + i)

    assert simulation.energy_j(0, 1_099.0, 1_101.0) == pytest.approx(198 + 199)
    assert simulation.counter_j(0, 1_101.1) == pytest.approx(78 + sum(range(100, 200)), abs=0.11 * 199)
    with pytest.raises(ValueError, match="last 32 changes"):
        simulation.energy_j(0, 1_001.0, 1_101.0)


def test_a_change_in_the_past_is_refused(simulation):
    simulation.set_load(0, Constant(300), at=1_005.0)

    with pytest.raises(ValueError, match="lies before the last one"):
        simulation.set_load(0, Constant(100), at=1_004.0)
    assert simulation.power_w(0, 1_006.0) == 300


def test_a_limit_that_the_card_does_not_take_is_refused(simulation):
    with pytest.raises(ValueError, match="200 to 700 W, not 150 W"):
        simulation.set_limit(0, 150)


def test_the_instantaneous_sensor_sees_25_of_each_100_ms(tmp_path):
    gpu = replace(make_gpus(1, H200)[0], sensor_phase_s=0.0)
    create(tmp_path / FILE_NAME, [gpu], now=1_000.0)
    with Simulation.open(tmp_path / FILE_NAME) as simulation:
        simulation.set_load(0, Constant(600), at=1_001.09)

        # at 1001.1 it looks back over [1001.075, 1001.1]: 15 ms of idling at 78 W, 10 ms at 600 W
        assert simulation.instant_w(0, 1_001.15) == pytest.approx(78 * 0.6 + 600 * 0.4, abs=0.001)
        assert simulation.average_w(0, 1_001.15) == pytest.approx(78 * 0.99 + 600 * 0.01, abs=0.001)
        assert simulation.instant_w(0, 1_001.25) == 600


def test_the_counter_stands_between_its_updates(tmp_path):
    gpu = replace(make_gpus(1, H200)[0], counter_phase_s=0.05)
    create(tmp_path / FILE_NAME, [gpu], now=1_000.0)
    with Simulation.open(tmp_path / FILE_NAME) as simulation:
        simulation.set_load(0, Constant(300), at=1_000.0)

        assert [simulation.counter_j(0, t) for t in (1_001.06, 1_001.14, 1_001.16)] == [315, 315, 345]


def test_noise_is_the_same_each_time_and_has_no_mean(tmp_path):
    create(tmp_path / FILE_NAME, make_gpus(1, replace(H200, noise_w=0.2)), now=1_000.0)
    with Simulation.open(tmp_path / FILE_NAME) as simulation:
        watts = [simulation.instant_w(0, 1_010 + i / 10) for i in range(2_000)]

        assert watts == [simulation.instant_w(0, 1_010 + i / 10) for i in range(2_000)]
    assert 77.8 <= min(watts) < 77.81
    assert 78.19 < max(watts) <= 78.2
    assert math.fsum(watts) / 2_000 == pytest.approx(78, abs=0.01)


def test_a_frozen_gpu_repeats_itself_and_draws_on(simulation):
    simulation.set_load(0, Constant(300), at=1_001.0)
    simulation.freeze(0, at=1_010.0)
    said = (simulation.instant_w(0, 1_010.0), simulation.average_w(0, 1_010.0), simulation.counter_j(0, 1_010.0))
    simulation.set_load(0, Constant(500), at=1_011.0)

    assert (simulation.instant_w(0, 1_020), simulation.average_w(0, 1_020), simulation.counter_j(0, 1_020)) == said
    assert simulation.energy_j(0, 1_011.0, 1_012.0) == pytest.approx(500)
    simulation.thaw(0)
    assert simulation.instant_w(0, 1_020.0) == 500


def test_a_reloaded_driver_counts_from_zero(simulation):
    simulation.set_load(0, Constant(300), at=1_001.0)
    simulation.unload_driver()
    simulation.load_driver(at=1_050.0)

    assert simulation.counter_j(0, 1_050.0) == 0
    assert simulation.counter_j(0, 1_060.1) == pytest.approx(3_000, abs=0.1 * 300)
    assert simulation.state.driver_loaded


def test_a_spec_gives_count_and_model():
    assert parse_spec("8xH200") == (8, PRODUCTS["H200"])
    assert parse_spec("a100") == (1, PRODUCTS["A100"])


@pytest.mark.parametrize("spec", ["8xB9000", "0xH200", "65xH200", "H200x8", ""])
def test_a_spec_that_is_not_understood_lists_the_models(spec):
    with pytest.raises(ValueError, match=r"known model \(H200, H100, A100, RTX4090\)"):
        parse_spec(spec)


def test_all_simulated_gpus_say_so_and_differ():
    gpus = make_gpus(64, PRODUCTS["H100"])

    assert all("SIMULATED" in product.name for product in PRODUCTS.values())
    assert len({gpu.uuid for gpu in gpus}) == len({gpu.pci_bus_id for gpu in gpus}) == 64
    assert len({round(gpu.sensor_phase_s, 6) for gpu in gpus[:8]}) == 8
    assert gpus == make_gpus(64, PRODUCTS["H100"])
    assert not {gpu.uuid for gpu in gpus} & {gpu.uuid for gpu in make_gpus(64, PRODUCTS["H100"], node="b")}


def test_only_ga100_lacks_the_averaged_power():
    faults = {name: make_gpus(1, product)[0].faults for name, product in PRODUCTS.items()}

    assert faults == {"H200": Fault.NONE, "H100": Fault.NONE, "A100": Fault.NO_AVERAGE, "RTX4090": Fault.NONE}

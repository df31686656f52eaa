from __future__ import annotations

import itertools
import math
import multiprocessing
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.contract.simulation import (
    FILE_NAME,
    PRODUCTS,
    Constant,
    Fault,
    Ramp,
    Recording,
    Simulation,
    Square,
    StateFileError,
    Trace,
    counter_j,
    create,
    make_gpus,
    parse_spec,
    sm_clock_mhz,
    speed,
    utilization,
)
from exporter.contract.simulation.card import Gpu, Segment
from exporter.contract.simulation.gpu import cumulative_capped_s, energy_j, with_limit, with_load

H200 = replace(PRODUCTS["H200"], noise_w=0.0)
STEPS = Recording((0.0, 1.0, 3.0), (100.0, 400.0, 250.0))


@pytest.fixture
def simulation(tmp_path):
    create(tmp_path / FILE_NAME, make_gpus(8, H200), now=1_000.0, recording=STEPS)
    with Simulation.open(tmp_path / FILE_NAME) as opened:
        yield opened


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


def test_half_the_clock_is_half_the_speed_for_an_eighth_of_the_dynamic_power(simulation):
    simulation.drive(0, 1.0, pid=4711, at=1_001.0)
    simulation.lock_clock(0, 990, at=1_011.0)

    assert simulation.power_w(0, 1_012.0) == 155.75  # 78 + (700 - 78) / 8
    assert speed(simulation.gpus[0], 1.0) == 0.5
    assert sm_clock_mhz(simulation.gpus[0], 1_012.0) == 990
    assert utilization(simulation.gpus[0], 1_012.0) == 1
    assert simulation.energy_j(0, 1_001.0, 1_021.0) == pytest.approx(10 * 700 + 10 * 155.75)


def test_an_unlocked_clock_is_the_full_one_again(simulation):
    simulation.lock_clock(0, 990, at=1_001.0)
    simulation.drive(0, 1.0, pid=4711, at=1_002.0)
    assert simulation.power_w(0, 1_003.0) == 155.75
    simulation.lock_clock(0, None, at=1_004.0)

    assert simulation.power_w(0, 1_005.0) == 700
    assert speed(simulation.gpus[0], 1.0) == 1


def test_of_a_lock_and_a_limit_the_stricter_one_decides(simulation):
    simulation.drive(0, 1.0, pid=4711, at=1_001.0)
    simulation.lock_clock(0, 1_485, at=1_002.0)  # three quarters
    simulation.set_limit(0, 200, at=1_003.0)

    # (200 - 78) / (700 - 78) of the dynamic power leave its cube root of the speed: less than three quarters
    assert speed(simulation.gpus[0], 1.0) == pytest.approx((122 / 622) ** (1 / 3))
    assert simulation.power_w(0, 1_004.0) == 200
    simulation.set_limit(0, 700, at=1_005.0)
    assert speed(simulation.gpus[0], 1.0) == 0.75


def test_a_lock_outside_of_the_cards_clocks_is_refused(simulation):
    with pytest.raises(ValueError, match="has SM clocks of 345 to 1980 MHz, not 1000 MHz"):
        simulation.lock_clock(0, 1_000)


def test_half_the_dynamic_power_leaves_the_cube_root_of_half_the_speed(simulation):
    simulation.set_limit(0, 78 + 311, at=1_000.5)

    assert speed(simulation.gpus[0], 1.0) == pytest.approx(0.5 ** (1 / 3))
    assert speed(simulation.gpus[0], 0.5) == 1
    simulation.set_load(0, Constant(700), at=1_001.0)
    assert sm_clock_mhz(simulation.gpus[0], 1_002.0) == round(1_980 * 0.5 ** (1 / 3))


def test_processes_share_a_gpu_until_they_release_it(simulation):
    simulation.drive(0, 0.5, pid=41, memory_bytes=1 << 30, at=1_001.0)
    simulation.drive(0, 0.25, pid=42, at=1_002.0)
    assert simulation.power_w(0, 1_001.5) == 78 + 622 * 0.5
    assert simulation.power_w(0, 1_002.5) == 78 + 622 * 0.75
    assert [process.pid for process in simulation.gpus[0].processes] == [41, 42]

    simulation.release(0, pid=41, at=1_003.0)
    simulation.release(0, pid=42, at=1_004.0)
    assert simulation.power_w(0, 1_003.5) == 78 + 622 * 0.25
    assert simulation.power_w(0, 1_004.5) == 78
    assert not simulation.gpus[0].processes


def test_a_gpu_has_room_for_16_processes(simulation):
    for pid in range(1, 17):
        simulation.drive(0, 0.01, pid=pid)

    with pytest.raises(ValueError, match="16 processes"):
        simulation.drive(0, 0.01, pid=17)


def test_a_state_file_of_an_older_version_says_so(simulation, tmp_path):
    (tmp_path / "old").write_bytes(b"WATTSIM1" + simulation.path.read_bytes()[8:])

    with pytest.raises(StateFileError, match="another version of wattline wrote it"):
        Simulation.open(tmp_path / "old")


def test_faults_are_switched_one_by_one(simulation):
    simulation.set_fault(3, Fault.HANG, on=True)
    simulation.set_fault(3, Fault.NO_COUNTER, on=True)
    simulation.set_fault(3, Fault.HANG, on=False)

    assert simulation.gpus[3].faults == Fault.NO_COUNTER
    assert simulation.gpus[2].faults == Fault.NONE


def test_everyone_who_opens_the_file_sees_the_same(simulation):
    with Simulation.open(simulation.path) as other:
        other.set_load(5, Square(100, 500, 0.3), at=1_001.0)
        other.set_fault(5, Fault.LOST, on=True)

    assert simulation.gpus[5].segments[-1].load == Square(100, 500, 0.3)
    assert simulation.gpus[5].faults == Fault.LOST


def _drive_and_release(path: Path, pid: int, times: int) -> None:
    with Simulation.open(path) as simulation:
        for _ in range(times):
            simulation.drive(0, 0.1, pid=pid)
            simulation.release(0, pid=pid)


def test_writers_in_several_processes_lose_nothing(simulation):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_drive_and_release, args=(simulation.path, pid, 50)) for pid in (1, 2, 3, 4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert [writer.exitcode for writer in writers] == [0] * 4
    assert simulation.gpus[0].changes == 1 + 4 * 50 * 2
    assert not simulation.gpus[0].processes


def test_a_writer_that_was_killed_while_writing_stops_no_one(simulation):
    with simulation.path.open("r+b") as file:
        file.seek(12)
        file.write(struct.pack("<I", 7))  # odd: someone is writing, but holds no lock

    simulation.set_load(0, Constant(300), at=1_001.0)

    assert simulation.power_w(0, 1_002.0) == 300


def test_a_reader_mends_what_a_killed_writer_left(simulation):
    with simulation.path.open("r+b") as file:
        file.seek(12)
        file.write(struct.pack("<I", 7))

    assert len(simulation.gpus) == 8


def test_a_refused_change_changes_nothing(simulation):
    before = simulation.state

    with pytest.raises(ValueError, match="not 5 W"):
        simulation.set_limit(0, 5)
    assert simulation.state == before


@pytest.mark.parametrize("content", [b"", b"WATTSIM1", b"#!/bin/sh\n" * 100])
def test_a_file_that_is_no_state_file_is_refused_with_its_name(tmp_path, content):
    (tmp_path / "other").write_bytes(content)

    with pytest.raises(StateFileError, match="other is not a simulation's state file"):
        Simulation.open(tmp_path / "other")


def test_a_state_file_that_is_cut_off_is_refused(simulation, tmp_path):
    (tmp_path / "half").write_bytes(simulation.path.read_bytes()[:-100])

    with pytest.raises(StateFileError, match="cut off"):
        Simulation.open(tmp_path / "half")


def test_a_state_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(StateFileError, match=r"nothing\.state: No such file"):
        Simulation.open(tmp_path / "nothing.state")


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


watts = st.floats(0, 800)
loads = st.one_of(
    st.builds(Constant, watts),
    st.builds(Square, watts, watts, st.floats(0.01, 10), st.floats(0, 1), st.floats(0, 10)),
    st.builds(Ramp, watts, watts, st.floats(0.1, 20)),
    st.builds(Trace, st.just(STEPS), st.floats(0, 5)),
)


@st.composite
def gpus(draw) -> Gpu:
    """A GPU with a past from 1000 s on: up to 30 loads and limits."""
    gpu = make_gpus(8, H200)[draw(st.integers(0, 7))]
    gpu = replace(gpu, segments=(Segment(1_000.0, 0.0, gpu.limit_w, 1_000.0, Constant(78)),), changes=1)
    now = 1_000.0
    for pause_s, change in draw(
        st.lists(st.tuples(st.floats(0, 5), st.one_of(loads, st.floats(200, 700))), max_size=30)
    ):
        now += pause_s
        gpu = with_limit(gpu, change, now) if isinstance(change, float) else with_load(gpu, change, now)
    return gpu


instants = st.floats(990, 1_200)


@given(gpus(), st.tuples(instants, instants, instants).map(sorted))
def test_energies_of_adjacent_windows_add_up(gpu, times):
    t0, t1, t2 = times

    assert energy_j(gpu, t0, t1) + energy_j(gpu, t1, t2) == pytest.approx(energy_j(gpu, t0, t2), abs=1e-6)


@given(gpus(), instants, instants)
def test_energy_lies_between_no_power_and_the_limit(gpu, t0, t1):
    t0, t1 = min(t0, t1), max(t0, t1)

    assert -1e-6 <= energy_j(gpu, t0, t1) <= 700 * (t1 - t0) + 1e-6


@given(gpus(), st.lists(instants, min_size=2).map(sorted))
def test_the_time_under_the_cap_never_falls_and_is_no_longer_than_the_time(gpu, times):
    for before_s, after_s in itertools.pairwise(times):
        capped_s = cumulative_capped_s(gpu, after_s) - cumulative_capped_s(gpu, before_s)
        assert -1e-6 <= capped_s <= after_s - before_s + 1e-6


@given(gpus(), st.lists(instants, min_size=2).map(sorted))
def test_the_counter_never_falls(gpu, times):
    counted = [counter_j(gpu, t) for t in times]

    assert counted == sorted(counted)


@given(gpus(), instants)
def test_the_counter_is_the_truth_up_to_its_last_update(gpu, t):
    truth_j = energy_j(gpu, 1_000.0, max(1_000.0, t))

    assert truth_j - 0.1 * 700 - 0.002 <= counter_j(gpu, t) <= truth_j + 1e-5

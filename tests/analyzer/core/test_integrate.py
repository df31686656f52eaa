import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analyzer.node import NodeGpu
from wattline.figures import Figure
from wattline_analyzer.core.integrate import (
    PowerRange,
    counter_energy,
    idle_power,
    net_energy,
    power_range,
    restart_times,
    trapezoid,
    unwrap,
)
from wattline_analyzer.core.samples import Samples, clean


def series(*pairs):
    return clean(
        np.array([t for t, _ in pairs], float), np.array([value for _, value in pairs], float)
    )


NO_SAMPLES = Samples(np.empty(0), np.empty(0))
BOARD = PowerRange(30, 440)


def test_counter_energy_at_constant_power_is_power_times_time():
    counter = series(*((t, 300 * t) for t in np.arange(0.3, 60, 15)))

    bound = counter_energy(counter, 10, 30, BOARD)

    assert bound.value == pytest.approx(6_000)  # 300 W x 20 s
    assert bound.low <= 6_000 <= bound.high


def test_counter_energy_between_two_scrapes_has_wide_bound():
    counter = series((0, 0), (15, 60 * 10 + 300 * 5))  # idle at 60 W, 5 s at 300 W somewhere in it

    bound = counter_energy(counter, 6, 11, BOARD)

    assert bound.low <= 1_500 <= bound.high
    assert bound.high - bound.low > 500


def test_counter_energy_limits_have_the_counters_slowest_power():
    """Values up to 10 s old, 200 J in 10 s: at least 200 J / (10 s + 10 s) = 10 W, not 30 W.

    At 4 s at least 3.95 s of 10 W, since a value may be 0.05 s newer than its sample: 39.5 J. At
    6 s at most 200 J and 440 W for 6 s since a value of 0 s: 2,840 J.
    """
    bound = counter_energy(series((0, 0), (10, 200)), 4, 6, BOARD, read_age_s=10)

    assert bound.value == pytest.approx(40.0)
    assert bound.limits == pytest.approx((0.0, 2_840 - 39.5))


def test_counter_energy_limits_have_the_counters_fastest_power():
    """Values up to 10 s old, 10,000 J in 10 s: at most 10,000 J / (10 s + 10 s) = 500 W, not 440 W.

    At 4 s between 10,000 J less 500 W for 6.05 s, 6,975 J, and 500 W for 14 s, 7,000 J; at 6 s
    between 7,975 and 8,000 J.
    """
    bound = counter_energy(series((0, 0), (10, 10_000)), 4, 6, BOARD, read_age_s=10)

    assert bound.limits == pytest.approx((975.0, 1_025.0))


def test_counter_energy_without_samples_is_none():
    assert counter_energy(NO_SAMPLES, 0, 10, BOARD) is None


def test_unwrap_restart_adds_new_value_to_last():
    # at most 440 W × 1 s = 440 J between the samples of the restart, of which 200 J were seen
    line = unwrap(series((0, 1_000), (1, 1_300), (2, 200), (3, 500)), BOARD)

    assert line.energy_j.tolist() == [1_000, 1_300, 1_500, 1_800]
    assert line.lost_j.tolist() == [0, 0, 240, 240]


def test_unwrap_late_sample_is_left_out():
    # 440 W × (1 s + 1.4 s) = 1,056 J: 49,900 J cannot have been counted since 0
    line = unwrap(series((0, 50_000), (1, 49_900), (2, 50_300)), BOARD)

    assert line.t.tolist() == [0, 2]
    assert line.energy_j.tolist() == [50_000, 50_300]
    assert line.lost_j.tolist() == [0, 0]


def test_restart_times_are_those_of_the_samples_after():
    counter = series((0, 50_000), (1, 49_900), (2, 50_300), (3, 100), (4, 400), (5, 50))

    assert restart_times(counter, BOARD) == [3, 5]


def test_unwrap_restart_of_a_counter_whose_values_are_old():
    # values are up to 30 s old, so that 440 W × (10 s + 30 s) = 17,600 J can follow the restart
    counter = series((0, 50_000), (10, 17_000))

    assert unwrap(counter, BOARD, 30).energy_j.tolist() == [50_000, 67_000]
    assert unwrap(counter, BOARD).energy_j.tolist() == [50_000]


def test_counter_energy_of_old_values_counts_a_restart():
    """Values up to 30 s old: 300 W, and a restart with 8,700 J 29 s before the next value."""
    counter = series((0, 50_000), (10, 53_000), (20, 8_700), (30, 11_700))

    bound = counter_energy(counter, 0, 30, BOARD, read_age_s=30)

    assert bound.value == 3_000 + 8_700 + 3_000


def test_counter_energy_bound_covers_energy_hidden_by_reset():
    # 300 W throughout; the counter restarts at 0 half a second after t = 5, which hides 150 J
    counter = series(*((t, 300 * t if t <= 5 else 300 * (t - 5.5)) for t in range(21)))

    bound = counter_energy(counter, 2, 18, BOARD)

    assert bound.value == pytest.approx(4_650)
    assert bound.low <= 4_800 <= bound.high


def test_trapezoid_uses_sample_timestamps():
    power = series((0, 100), (1, 100), (1.5, 200), (3, 200))

    assert trapezoid(power, 0, 3).energy_j == pytest.approx(100 * 1 + 75 + 200 * 1.5)


def test_trapezoid_interpolates_at_window_edges():
    power = series((0, 100), (10, 200))

    assert trapezoid(power, 2, 4).energy_j == pytest.approx(260)  # 120 W rising to 140 W


def test_trapezoid_excludes_gaps():
    power = series((0, 100), (1, 100), (2, 100), (3, 100), (60, 100), (61, 100))

    result = trapezoid(power, 0, 61)

    assert result.energy_j == pytest.approx(400)
    assert result.covered_s == pytest.approx(4)


def test_power_range_ends_10_percent_above_power_limit():
    assert power_range(series((0, 80), (1, 350)), 400) == PowerRange(0, pytest.approx(440))
    assert power_range(series((0, 80), (1, 500)), 400) == PowerRange(0, 500)
    assert power_range(series((0, 80), (1, 300)), None) == PowerRange(0, 450)
    assert power_range(NO_SAMPLES, 400) == PowerRange(0, pytest.approx(440))
    assert power_range(NO_SAMPLES, None) is None


def test_idle_power_is_median_of_idle_windows():
    power = series(*((t, 60 if t < 100 else 66) for t in range(200)))

    idle_w = idle_power(power, NO_SAMPLES, [(0, 60), (140, 200)])

    assert idle_w == Figure(63, 3)


@pytest.mark.parametrize(
    ("deviations_w", "half_width_w"),
    [
        # r is below 0: 12 readings. The variance is 12/11 W², and Student's t of 11 is 2.2010:
        # 2.2010 x 1.253 x √(12/11 / 12)
        ([-1, 1] * 6, 0.8315),
        # r = 1/12, and (1 + 3/12) / 12 more: 0.1875, as 12 x 0.8125 / 1.1875 = 8.2105 readings. The
        # variance is 1.1387 W², and Student's t of 7.2105 is 2.3507: x 1.253 x √(1.1387 / 8.2105)
        ([-1, -1, 1, 1] * 3, 1.0969),
        # r = 9/12, and (1 + 27/12) / 12 more: at most 0.95. At least 3 readings: a variance of
        # 1.5 W², and Student's t of 2 is 4.3027: x 1.253 x √(1.5 / 3)
        ([-1] * 6 + [1] * 6, 3.8122),
    ],
    ids=["independent", "correlated", "steady"],
)
def test_idle_power_half_width_is_that_of_the_median(deviations_w, half_width_w):
    # readings of 60 and 62 W at 3 to 14 s
    power = series(*((3 + k, 61 + each_w) for k, each_w in enumerate(deviations_w)))

    idle_w = idle_power(power, NO_SAMPLES, [(0, 14)])

    assert idle_w.value == 61
    assert idle_w.half_width == pytest.approx(half_width_w, abs=0.0001)


def test_idle_power_of_two_windows_halves_the_sum_of_squares():
    # two windows of ± 0.8315 W each: √2 x 0.8315 W / 2
    power = series(*((t, 60 + 2 * (t % 2)) for t in range(28)))

    idle_w = idle_power(power, NO_SAMPLES, [(-1, 13), (12, 26)])

    assert idle_w == Figure(61, pytest.approx(0.5880, abs=0.0001))


@pytest.mark.parametrize(
    ("power", "utilization", "reason"),
    [
        (series(*((t, 60) for t in range(9))), NO_SAMPLES, "shorter than 10 s"),
        (series(*((t, 60 if t % 2 else 300) for t in range(60))), NO_SAMPLES, "restless"),
        (series(*((t, 60) for t in range(60))), series(*((t, 0.4) for t in range(60))), "busy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_idle_power_rejects_short_variable_or_busy_window(power, utilization, reason):
    assert idle_power(power, utilization, [(0, 60)]) is None


def test_net_energy_subtracts_idle_and_combines_uncertainties():
    net = net_energy(Figure(6_000, 30), Figure(60, 2), 20)

    assert net.value == 4_800  # 6,000 J - 60 W x 20 s
    assert net.half_width == 50  # 30 J and 2 W x 20 s in quadrature


bursts = st.lists(st.tuples(st.floats(0.05, 3), st.floats(60, 400)), min_size=1, max_size=60)


def gpu_with_bursts(pieces):
    begins = np.cumsum([0, *(length for length, _ in pieces)])
    return NodeGpu(
        [
            *((float(t), watts) for t, (_, watts) in zip(begins, pieces, strict=False)),
            (float(begins[-1]), 80.0),
        ]
    )


@given(
    pieces=bursts,
    interval_s=st.floats(0.5, 15),
    phase_s=st.floats(0, 1),
    window=st.tuples(st.floats(5, 60), st.floats(0.5, 60)),
    data=st.data(),
)
def test_counter_energy_bound_covers_true_energy_for_any_scrapes(
    pieces, interval_s, phase_s, window, data
):
    gpu, (start_s, end_s) = gpu_with_bursts(pieces), (window[0], window[0] + window[1])
    times = np.arange(phase_s, end_s + 2 * interval_s, interval_s)
    ages_s = data.draw(st.lists(st.floats(-0.05, 0.4), min_size=len(times), max_size=len(times)))
    counts_j = np.maximum.accumulate(
        [gpu.energy_j(t - age) for t, age in zip(times, ages_s, strict=True)]
    )
    power = clean(times, np.array([gpu.power_w(t) for t in times]))

    bound = counter_energy(clean(times, counts_j), start_s, end_s, power_range(power, 400))

    true_j = gpu.energy_j(end_s) - gpu.energy_j(start_s)
    assert bound.low - 1e-6 <= true_j <= bound.high + 1e-6
    assert bound.low <= bound.value <= bound.high


@given(pieces=bursts, cut=st.floats(0.1, 0.9))
def test_energy_of_adjacent_windows_adds_up(pieces, cut):
    gpu = gpu_with_bursts(pieces)
    counter = series(*((t, gpu.energy_j(t)) for t in np.arange(0, 200, 1.0)))
    power = series(*((t, gpu.power_w(t)) for t in np.arange(0, 200, 1.0)))
    middle_s = 10 + 100 * cut

    whole, left, right = (
        trapezoid(power, *w).energy_j for w in ((10, 110), (10, middle_s), (middle_s, 110))
    )
    assert left + right == pytest.approx(whole)
    values = [
        counter_energy(counter, start_s, end_s, BOARD).value
        for start_s, end_s in ((10, 110), (10, middle_s), (middle_s, 110))
    ]
    assert values[1] + values[2] == pytest.approx(values[0])


@given(pieces=bursts, shift_s=st.integers(-1_000_000, 1_000_000))
def test_counter_energy_is_independent_of_start_time(pieces, shift_s):
    gpu = gpu_with_bursts(pieces)
    times = np.arange(0, 100, 1.0)
    energies = np.array([gpu.energy_j(t) for t in times])
    here = counter_energy(clean(times, energies), 10.5, 80.5, BOARD)
    there = counter_energy(
        clean(times + shift_s, energies + 12_345), 10.5 + shift_s, 80.5 + shift_s, BOARD
    )

    for a, b in ((here.value, there.value), (here.low, there.low), (here.high, there.high)):
        assert math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-2)

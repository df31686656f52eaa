"""Increase of a counter in arrays, equal to the rule for single samples."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.counter_arrays import counter_steps
from wattline.counters import CounterLimits

POWER = CounterLimits(most_rate=440.0, age_s=1.4)
"""A GPU that draws up to 440 W, whose values are up to 1.4 s old."""


def steps(*pairs, limits=POWER):
    t_s, value = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return counter_steps(t_s, value, limits)


def single_steps(t_s, value, limits):
    """Return position, increase and kind of each sample that counts, by `CounterLimits.step`."""
    found = []
    for at, (now_s, now) in enumerate(zip(t_s, value, strict=True)):
        if math.isnan(now):
            continue
        if not found:
            found.append((at, 0.0, "rise"))
            continue
        before = found[-1][0]
        step = limits.step(value[before], now, now_s - t_s[before])
        if step.kind != "late":
            found.append((at, step.increase, step.kind))
    return found


def as_rows(result):
    kinds = np.where(result.wrapped, "wrap", np.where(result.restarted, "restart", "rise"))
    return list(zip(result.kept.tolist(), result.increase.tolist(), kinds.tolist(), strict=True))


def test_steps_rising_counter_keeps_all_samples():
    assert as_rows(steps((0, 5), (1, 7), (2, 7), (3, 10))) == [
        (0, 0.0, "rise"),
        (1, 2.0, "rise"),
        (2, 0.0, "rise"),
        (3, 3.0, "rise"),
    ]


def test_steps_without_samples_are_empty():
    assert as_rows(steps()) == []
    assert as_rows(steps((0, math.nan))) == []


def test_steps_restart_adds_the_new_value():
    # 300 J, then 200 J since the restart, then 300 J
    result = steps((0, 1_000), (1, 1_300), (2, 200), (3, 500))

    assert result.increase.tolist() == [0.0, 300.0, 200.0, 300.0]
    assert result.restarted.tolist() == [False, False, True, False]


def test_steps_late_samples_are_left_out_until_the_counter_passes():
    # 49,000 J and 49,300 J are older than 50,000 J; then 900 J in 3 s
    result = steps((0, 49_700), (1, 50_000), (2, 49_000), (3, 49_300), (4, 50_900), (5, 51_000))

    assert result.kept.tolist() == [0, 1, 4, 5]
    assert result.increase.tolist() == [0.0, 300.0, 900.0, 100.0]
    assert not result.restarted.any()


def test_steps_restart_after_a_late_sample_counts_from_zero():
    result = steps((0, 50_000), (1, 49_000), (2, 400), (3, 700))

    assert result.kept.tolist() == [0, 2, 3]
    assert result.increase.tolist() == [0.0, 400.0, 300.0]
    assert result.restarted.tolist() == [False, True, False]


def test_steps_wrap_after_a_late_sample_counts_from_the_sample_before():
    # 5,000 W: 59,000 J can be no wrap of 65,536 J in 1 s, and 6,036 J since 60,000 J are one in
    # 2 s; then 200 J, and a restart with 100 J
    result = steps(
        (1_000, 60_000),
        (1_001, 59_000),
        (1_002, 500),
        (1_003, 700),
        (1_004, 100),
        limits=CounterLimits(65_536.0, 5_000.0),
    )

    assert as_rows(result) == [
        (0, 0.0, "rise"),
        (2, 6_036.0, "wrap"),
        (3, 200.0, "rise"),
        (4, 100.0, "restart"),
    ]


def test_steps_missing_value_is_counted_with_the_next():
    result = steps((0, 100), (1, math.nan), (2, 700))

    assert result.kept.tolist() == [0, 2]
    assert result.increase.tolist() == [0.0, 600.0]


def test_steps_several_wraps_add_the_range_each_time():
    # 100 J a sample with a range of 250 J: 0, 100, 200, 50, 150, 0, 100
    pairs = [(k, (100 * k) % 250) for k in range(7)]
    result = steps(*pairs, limits=CounterLimits(250.0, 100.0))

    assert result.increase.tolist() == [0.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0]
    assert np.flatnonzero(result.wrapped).tolist() == [3, 5]
    assert result.wrapped_amount(250.0).tolist() == [0.0, 0.0, 0.0, 250.0, 250.0, 500.0, 500.0]


@st.composite
def sampled_counters(draw):
    """Return times, values and limits of a counter that wraps, restarts and is read late or not."""
    range_ = draw(st.none() | st.floats(500, 70_000))
    events = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["read", "read", "read", "missing", "restart", "old", "rollback"]),
                st.floats(0.01, 120),
                st.floats(0, 500),
                st.floats(0, 3_000),
            ),
            max_size=40,
        )
    )
    t_s = 1_790_000_000.0
    count = draw(st.floats(0, 1e6))
    history = []
    times = []
    values = []
    for event, elapsed_s, rate, lost in events:
        t_s += elapsed_s
        count += elapsed_s * rate
        if event == "restart":
            count = draw(st.floats(0, 1_000))
        if event == "rollback":
            count = max(count - lost, 0.0)
        history.append(count if range_ is None else count % range_)
        value = history[-1]
        if event == "missing":
            value = math.nan
        if event == "old":
            value = history[-min(len(history), draw(st.integers(1, 5)))]
        times.append(t_s)
        values.append(value)
    limits = CounterLimits(
        range_,
        draw(st.just(math.inf) | st.floats(1, 1_000)),
        draw(st.just(0.0) | st.floats(0, 40)),
    )
    return times, values, limits


@given(sampled_counters())
def test_steps_equal_the_rule_for_single_samples_to_the_last_digit(counter):
    t_s, value, limits = counter

    result = counter_steps(np.array(t_s), np.array(value), limits)

    assert as_rows(result) == single_steps(t_s, value, limits)


@given(
    st.lists(st.floats(0, 1e6) | st.just(math.nan), max_size=30),
    st.none() | st.floats(1, 1e6),
    st.just(math.inf) | st.floats(0, 1e6),
)
def test_steps_equal_the_rule_for_any_values(value, range_, most_rate):
    limits = CounterLimits(range_, most_rate, 0.5)
    t_s = [float(second) for second in range(len(value))]

    result = counter_steps(np.array(t_s), np.array(value), limits)

    assert as_rows(result) == single_steps(t_s, value, limits)
    assert (result.increase >= 0.0).all()


@given(st.lists(st.floats(0, 500), min_size=1, max_size=50), st.floats(1_000, 300_000))
def test_steps_wrapping_counter_adds_up_to_the_amount(amounts, range_):
    true = np.concatenate([[range_ / 2], range_ / 2 + np.cumsum(amounts)])
    t_s = np.arange(len(true), dtype=np.float64)

    result = counter_steps(t_s, true % range_, CounterLimits(range_, 500.0 + 1e-6))

    assert result.increase.sum() == pytest.approx(math.fsum(amounts), abs=1e-6)


@given(st.lists(st.floats(0, 300), min_size=2, max_size=50), st.data())
def test_steps_late_samples_change_no_sum(amounts, data):
    """A counter with samples whose value is that of an earlier one; the last one is in time."""
    true = 1e6 + np.cumsum(amounts)
    ages = data.draw(st.lists(st.integers(0, 3), min_size=len(true) - 2, max_size=len(true) - 2))
    read = np.maximum(np.arange(len(true)) - np.array([0, *ages, 0]), 0)
    t_s = np.arange(len(true), dtype=np.float64)

    result = counter_steps(t_s, true[read])

    assert result.increase.sum() == pytest.approx(true[-1] - true[0], abs=1e-6)

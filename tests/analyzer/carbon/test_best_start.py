"""Start of least emissions, compared with brute force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analyzer.node import START_S
from wattline_analyzer.best_start.output import best_start_output, best_start_verdict
from wattline_analyzer.carbon.best_start import Forecast, NoStartError, Profile, starts
from wattline_analyzer.core.emissions import PastSlot

HOUR_S = 3_600.0
JOULES = 3.6e6
NOW_S = START_S // HOUR_S * HOUR_S
ONE_KWH_HOUR = Profile((HOUR_S,), (JOULES,), "given")


def hourly(*values, begin_s=NOW_S, made_s=NOW_S - 1_800, length_s=HOUR_S):
    slots = [
        PastSlot(begin_s + n * length_s, begin_s + (n + 1) * length_s, grams, "forecast")
        for n, grams in enumerate(values)
        if grams is not None
    ]
    return Forecast("gb", "GB", "average", tuple(slots), made_s)


def best_starts(forecast, run=ONE_KWH_HOUR, *, now_s=NOW_S, within_h=48, step_s=1_800):
    return starts(forecast, run, now_s, within_h * HOUR_S, step_s)


def test_best_start_is_hour_of_least_intensity():
    result = best_starts(hourly(200, 100, 300, 400))

    assert (result.now.mass_g, result.best.mass_g, result.worst.mass_g) == pytest.approx(
        (200, 100, 400)
    )
    assert (result.best.at_s, result.worst.at_s) == (NOW_S + HOUR_S, NOW_S + 3 * HOUR_S)
    assert result.saved_ratio == pytest.approx(0.5)
    assert result.clear


def test_best_start_run_over_two_slots_uses_both():
    result = best_starts(hourly(200, 100, 300), now_s=NOW_S + 1_800)

    assert result.now.mass_g == pytest.approx(150)  # half an hour at 200, half at 100


def test_best_start_late_power_starts_before_least_intensity():
    """0.1 kWh in the first hour and 0.9 kWh in the second: 20 + 90 g from now, 10 + 270 g an hour
    later.
    """
    late = Profile((HOUR_S, HOUR_S), (0.1 * JOULES, 0.9 * JOULES), "gpu")

    result = best_starts(hourly(200, 100, 300, 300), late)

    assert result.best.at_s == NOW_S
    assert [start.mass_g for start in result.every[::2]] == pytest.approx([110, 280, 300])


def test_best_start_below_5_percent_is_no_clear_difference():
    result = best_starts(hourly(100, 96, 104))

    assert result.saved_ratio == pytest.approx(0.04)
    assert not result.clear
    assert (
        best_start_verdict(result)
        == "no clear difference: the best start saves less than 5 % compared with now"
    )


def test_best_start_now_is_best_says_start_now():
    assert (
        best_start_verdict(best_starts(hourly(100, 200, 300)))
        == "start now: no later start is better"
    )


def test_best_start_large_energy_has_no_exponent():
    parts = best_start_output(
        best_starts(hourly(200, 100), Profile((HOUR_S,), (12_000 * JOULES,), "given"))
    ).parts

    assert any(part.startswith("12,000 kWh (given)") for part in parts if isinstance(part, str))


def test_best_start_after_end_of_forecast_is_not_included():
    result = best_starts(hourly(200, 100, 300))

    assert max(start.at_s for start in result.every) == NOW_S + 2 * HOUR_S
    assert result.cut_short
    assert any(
        "are not included" in part
        for part in best_start_output(result).parts
        if isinstance(part, str)
    )


@pytest.mark.parametrize("seconds", [0.5, 1.0, 2.0])
def test_best_start_of_short_run_is_inside_the_forecast(seconds):
    """A start at the end of the forecast would have no emissions."""
    result = best_starts(hourly(200, 100), Profile((seconds,), (JOULES,), "given"))

    assert (result.best.at_s, result.best.mass_g) == (NOW_S + HOUR_S, pytest.approx(100))


def test_best_start_forecast_that_covers_all_starts_is_not_cut():
    result = best_starts(hourly(*[100.0] * 4), within_h=2)

    assert not result.cut_short
    assert max(start.at_s for start in result.every) == NOW_S + 2 * HOUR_S


def test_best_start_excludes_starts_over_gap_of_forecast():
    result = best_starts(hourly(300, None, 200, 100), step_s=HOUR_S)

    assert [(start.at_s - NOW_S) / HOUR_S for start in result.every] == [0, 2, 3]


def test_best_start_now_outside_forecast_has_no_comparison():
    result = best_starts(hourly(None, 100, 300))

    assert (result.now, result.saved_ratio, result.clear) == (None, None, False)
    assert "a start now is outside the forecast" in best_start_verdict(result)


@pytest.mark.parametrize(
    ("forecast", "run", "message"),
    [
        (
            hourly(100, 100),
            Profile((3 * HOUR_S,), (JOULES,), "x"),
            "ends in 2.0 h, before a run of 3.0 h would",
        ),
        (hourly(100, begin_s=NOW_S - 3 * HOUR_S), ONE_KWH_HOUR, "ended 2.0 h ago"),
        (hourly(100, None, 100, None, 100), Profile((2 * HOUR_S,), (JOULES,), "x"), "has gaps"),
    ],
)
def test_best_start_forecast_without_any_start_is_rejected(forecast, run, message):
    with pytest.raises(NoStartError, match=message):
        best_starts(forecast, run)


QUARTERS = st.lists(st.one_of(st.none(), st.integers(0, 900)), min_size=1, max_size=24)
PARTS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 100)), min_size=1, max_size=5)


def minutes_of(values):
    return {
        n * 15 + k: grams for n, grams in enumerate(values) for k in range(15) if grams is not None
    }


@given(QUARTERS, PARTS, st.integers(0, 90))
def test_best_start_emissions_are_sums_over_minutes(values, parts, now_min):
    """Slots of 15 minutes, parts and starts at whole minutes: sums over minutes are exact."""
    intensities = minutes_of(values)
    run = Profile(
        tuple(60.0 * minutes for minutes, _ in parts),
        tuple(1e5 * joules for _, joules in parts),
        "x",
    )
    per_minute_j = [1e5 * joules / minutes for minutes, joules in parts for _ in range(minutes)]
    expected = {}
    for start in range(now_min, now_min + 301):
        if (start == now_min or start % 10 == 0) and all(
            start + n in intensities for n in range(len(per_minute_j))
        ):
            expected[start] = (
                sum(joules * intensities[start + n] for n, joules in enumerate(per_minute_j))
                / JOULES
            )

    if not any(grams is not None for grams in values):
        return
    try:
        result = starts(hourly(*values, length_s=900), run, NOW_S + 60 * now_min, 300 * 60, 600)
    except NoStartError:
        assert expected == {}
        return

    assert {
        round((start.at_s - NOW_S) / 60): start.mass_g for start in result.every
    } == pytest.approx(expected)
    assert result.best.mass_g == pytest.approx(min(expected.values()))
    assert result.worst.mass_g == pytest.approx(max(expected.values()))

"""Figures: sums, scaling, rounding, texts and JSON."""

import json
import math
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline import figures
from wattline.figures import (
    Figure,
    FigureFormatError,
    UnknownFigureError,
    sum_of_correlated,
    sum_of_independent,
    sum_of_one_job,
    unknown,
)

NO_SENSOR = unknown("GPU 0 has no sensor")

_numbers = st.floats(-1e12, 1e12)
_widths = st.floats(0, 1e12)
_limits = st.tuples(st.floats(-1e12, 0), st.floats(0, 1e12))
_rests = st.tuples(st.floats(-1e12, 0) | st.just(-math.inf), _widths | st.just(math.inf))
_ratios = st.floats(0, 1)


@st.composite
def _figures(draw: st.DrawFn) -> Figure:
    if draw(st.booleans()) and draw(st.booleans()):
        return Figure(None, covered_ratio=draw(_ratios), reason=draw(st.text(min_size=1)))
    half_width = draw(st.none() | _widths)
    skewed = draw(st.none() | _limits) if half_width is None else None
    rest = draw(st.none() | _rests)
    reason = "" if rest is None else draw(st.text(min_size=1))
    bias = draw(st.none() | _limits)
    return Figure(draw(_numbers), half_width, bias, rest, draw(_ratios), reason, skewed)


# States


def test_figure_state_follows_value_and_rest() -> None:
    assert Figure(312.0, 4.0).state == "known"
    assert Figure(312.0, 4.0, rest=(0.0, math.inf), reason="no sensor").state == "partial"
    assert NO_SENSOR.state == "unknown"


@pytest.mark.parametrize(
    "fields",
    [
        {"value": None},
        {"value": None, "half_width": 1.0, "reason": "no sensor"},
        {"value": None, "rest": (0.0, 1.0), "reason": "no sensor"},
        {"value": 1.0, "rest": (0.0, math.inf)},
        {"value": 1.0, "half_width": 1.0, "skewed": (-1.0, 2.0)},
    ],
)
def test_figure_that_contradicts_itself_is_refused(fields) -> None:
    with pytest.raises(ValueError, match="figure"):
        Figure(**fields)


def test_unknown_figure_has_no_number_and_no_limits() -> None:
    with pytest.raises(UnknownFigureError, match="GPU 0 has no sensor"):
        _ = NO_SENSOR.number
    with pytest.raises(UnknownFigureError, match="GPU 0 has no sensor"):
        _ = NO_SENSOR.limits
    assert NO_SENSOR.total_half_width is None
    assert NO_SENSOR.scaled(2.0) == NO_SENSOR


def test_limits_cover_random_error_and_rest() -> None:
    assert Figure(312.0, 4.0).limits == (308.0, 316.0)
    assert Figure(312.0, 4.0, bias=(-50.0, 50.0)).limits == (308.0, 316.0)
    assert Figure(312.0, 4.0, rest=(-20.0, 30.0), reason="gap").limits == (288.0, 346.0)
    assert Figure(3_480.0, skewed=(3_010.0, 3_950.0)).limits == (3_010.0, 3_950.0)
    assert (Figure(312.0, 4.0).low, Figure(312.0, 4.0).high) == (308.0, 316.0)


def test_factors_of_the_normal_distribution_have_its_quantiles() -> None:
    """95 % lie within 1.95996 standard deviations, half within 0.67449."""
    assert pytest.approx(NormalDist().inv_cdf(0.975), abs=5e-5) == figures.NORMAL_95
    assert pytest.approx(1 / NormalDist().inv_cdf(0.75), abs=5e-5) == figures.MAD_TO_SIGMA


def test_known_half_width_is_a_number_or_an_error() -> None:
    assert Figure(312.0, 4.0).known_half_width == 4.0
    with pytest.raises(UnknownFigureError, match="half-width of 312"):
        _ = Figure(312.0).known_half_width


def test_complete_figure_is_known_or_unknown() -> None:
    partial = Figure(312.0, 4.0, rest=(0.0, math.inf), reason="gap")

    assert Figure(312.0, 4.0).complete() == Figure(312.0, 4.0)
    assert partial.complete() == unknown("gap")
    assert NO_SENSOR.complete() == NO_SENSOR


def test_limits_without_random_error_are_unknown() -> None:
    assert (Figure(312.0).low, Figure(312.0).high) == (None, None)
    assert (NO_SENSOR.low, NO_SENSOR.high) == (None, None)
    with pytest.raises(UnknownFigureError, match="interval of 312"):
        _ = Figure(312.0).limits


def test_total_half_width_joins_random_error_and_sensor_accuracy() -> None:
    """The larger limit counts: √(3² + 4²) = 5."""
    assert Figure(100.0, 3.0, bias=(-1.0, 4.0)).total_half_width == 5.0
    assert Figure(100.0, 3.0).total_half_width == 3.0
    assert Figure(100.0).total_half_width is None


def test_total_half_width_without_random_error_is_unknown() -> None:
    """The sensor's accuracy is known to 6 J, so that it still decides the digits."""
    share = Figure(100.0, None, bias=(-6.0, 4.0))

    assert share.total_half_width is None
    assert share.known_error == 6.0
    assert figures.joules_text(share) == "100 J"
    assert figures.energy_of_one_text(share) == "100 J"
    assert figures.energy_parts(share) == ("100", "", "J")
    assert Figure(100.0).known_error is None


def test_relative_half_width_is_a_ratio_to_the_value() -> None:
    assert Figure(-100.0, 3.0, bias=(-1.0, 4.0)).relative_half_width == 0.03
    assert Figure(100.0, 0.0).relative_half_width == 0.0
    assert Figure(0.0, 3.0).relative_half_width is None
    assert Figure(100.0).relative_half_width is None
    assert NO_SENSOR.relative_half_width is None


# Scaling


def test_scaling_scales_every_limit() -> None:
    figure = Figure(10.0, 1.0, (-2.0, 3.0), (0.0, 5.0), 0.9, "gap")
    assert figure.scaled(2.0) == Figure(20.0, 2.0, (-4.0, 6.0), (0.0, 10.0), 0.9, "gap")
    assert figure.scaled(-2.0) == Figure(-20.0, 2.0, (-6.0, 4.0), (-10.0, -0.0), 0.9, "gap")
    assert Figure(10.0, skewed=(8.0, 13.0)).scaled(-1.0).limits == (-13.0, -8.0)


def test_scaling_lower_limit_by_zero_is_zero() -> None:
    assert Figure(10.0, 1.0, rest=(0.0, math.inf), reason="gap").scaled(0.0) == Figure(
        0.0, 0.0, rest=(0.0, 0.0), reason="gap"
    )


@given(st.lists(_figures(), max_size=6), st.sampled_from([2.0, 1_024.0]))
def test_sum_of_scaled_parts_equals_scaled_sum(parts: list[Figure], factor: float) -> None:
    """The factors are powers of two, by which products have no rounding error."""
    scaled_parts = [part.scaled(factor) for part in parts]
    assert sum_of_correlated(scaled_parts) == sum_of_correlated(parts).scaled(factor)


def test_symmetric_interval_contains_the_skewed_one() -> None:
    assert Figure(10.0, skewed=(9.0, 14.0)).symmetric() == Figure(10.0, 4.0)
    assert Figure(10.0, 4.0).symmetric() == Figure(10.0, 4.0)
    assert NO_SENSOR.symmetric() == NO_SENSOR


def test_part_has_relative_sensor_accuracy_of_whole() -> None:
    whole = Figure(200.0, 1.0, bias=(-10.0, 20.0))
    assert Figure(50.0, 0.5).with_accuracy_of(whole).bias == (-2.5, 5.0)
    assert Figure(50.0, 0.5).with_accuracy_of(Figure(200.0, 1.0)).bias is None
    assert Figure(50.0, 0.5).with_accuracy_of(NO_SENSOR) == Figure(50.0, 0.5)
    nothing = Figure(0.0, 1.0, bias=(-1.0, 1.0))
    assert Figure(50.0, 0.5).with_accuracy_of(nothing) == Figure(50.0, 0.5)
    assert NO_SENSOR.with_accuracy_of(whole) == NO_SENSOR


# Sums


@pytest.mark.parametrize("add", [sum_of_one_job, sum_of_correlated])
def test_sum_of_equal_errors_adds_half_widths(add) -> None:
    assert add([Figure(10.0, 3.0), Figure(20.0, 4.0)]) == Figure(30.0, 7.0)


def test_sum_of_independent_adds_squares_of_half_widths() -> None:
    assert sum_of_independent([Figure(10.0, 3.0), Figure(20.0, 4.0)]) == Figure(30.0, 5.0)


@pytest.mark.parametrize("add", [sum_of_correlated, sum_of_independent])
def test_sum_adds_limits_of_sensor_accuracy(add) -> None:
    parts = [Figure(10.0, 0.0, bias=(-1.0, 2.0)), Figure(20.0, 0.0, bias=(-3.0, 5.0))]
    assert add(parts).bias == (-4.0, 7.0)
    assert add([parts[0], Figure(20.0, 0.0)]).bias == (-1.0, 2.0)


@pytest.mark.parametrize("add", [sum_of_correlated, sum_of_independent])
def test_sum_with_unknown_half_width_has_none(add) -> None:
    assert add([Figure(10.0, 3.0), Figure(20.0)]) == Figure(30.0)


@pytest.mark.parametrize("add", [sum_of_correlated, sum_of_independent])
def test_sum_of_skewed_intervals_adds_their_ends(add) -> None:
    parts = [Figure(10.0, skewed=(9.0, 14.0)), Figure(20.0, skewed=(17.0, 23.0)), Figure(5.0, 1.0)]
    assert add(parts) == Figure(35.0, skewed=(30.0, 43.0))
    assert add([*parts, Figure(5.0)]) == Figure(40.0)


@pytest.mark.parametrize("add", [sum_of_correlated, sum_of_independent])
def test_sum_with_unknown_part_is_lower_limit(add) -> None:
    found = add([Figure(312.0, 4.0), NO_SENSOR])
    assert found == Figure(312.0, 4.0, None, (0.0, math.inf), 0.0, "GPU 0 has no sensor")
    assert figures.joules_text(found) == "at least 312 ± 4 J"


@pytest.mark.parametrize("add", [sum_of_correlated, sum_of_independent])
def test_sum_with_partial_part_has_its_rest(add) -> None:
    part = Figure(100.0, 3.0, rest=(0.0, 30.0), covered_ratio=0.8, reason="gap of 2 s")
    assert add([part, Figure(50.0, 0.0)]) == Figure(
        150.0, 3.0, None, (0.0, 30.0), 0.8, "gap of 2 s"
    )
    assert add([part, part]).rest == (0.0, 60.0)
    assert add([part, NO_SENSOR]).rest == (0.0, math.inf)
    assert add([part, NO_SENSOR]).reason == "GPU 0 has no sensor; gap of 2 s"


@pytest.mark.parametrize("add", [sum_of_correlated, sum_of_independent])
def test_sum_without_known_part_is_unknown(add) -> None:
    assert add([]) == unknown("nothing was measured")
    assert add([NO_SENSOR, NO_SENSOR]) == NO_SENSOR


@pytest.mark.parametrize("add", [sum_of_correlated, sum_of_independent])
@given(st.lists(_figures(), max_size=6), st.randoms())
def test_order_of_parts_changes_nothing(add, parts, random) -> None:
    shuffled = list(parts)
    random.shuffle(shuffled)
    assert add(shuffled) == add(parts)


# Products and ratios


def test_product_and_ratio_add_relative_half_widths() -> None:
    """10 ± 10 % and 4 ± 5 % are 40 and 2.5, ± 15 % each."""
    ten = Figure(10.0, 1.0)
    four = Figure(4.0, skewed=(3.9, 4.2))

    assert figures.product(ten, four).number == 40.0
    assert figures.product(ten, four).half_width == pytest.approx(6.0)
    assert figures.ratio(ten, four).number == 2.5
    assert figures.ratio(ten, four).half_width == pytest.approx(0.375)


@pytest.mark.parametrize("other", [Figure(4.0), Figure(4.0, bias=(-1.0, 1.0))])
def test_product_and_ratio_with_unknown_half_width_have_none(other) -> None:
    assert figures.product(Figure(10.0, 1.0), other) == Figure(40.0)
    assert figures.ratio(Figure(10.0, 1.0), other) == Figure(2.5)
    assert figures.ratio(Figure(0.0, 1.0), Figure(4.0, 0.2)) == Figure(0.0)


@pytest.mark.parametrize(
    ("calculate", "other", "rest"),
    [
        # 10 to 15 of 4: 40 to 60, and 2.5 to 3.75
        (figures.product, Figure(4.0, 0.2), (0.0, 20.0)),
        (figures.ratio, Figure(4.0, 0.2), (0.0, 1.25)),
        # 10 to 15 of 4 or more: 40 or more, and 0 to 3.75
        (figures.product, Figure(4.0, 0.2, rest=(0.0, math.inf), reason="b"), (0.0, math.inf)),
        (figures.ratio, Figure(4.0, 0.2, rest=(0.0, math.inf), reason="b"), (-2.5, 1.25)),
        # 10 to 15 of 0 to 4: no upper limit
        (figures.ratio, Figure(4.0, 0.2, rest=(-4.0, 0.0), reason="b"), (0.0, math.inf)),
    ],
)
def test_product_and_ratio_of_a_partial_figure_are_partial(calculate, other, rest) -> None:
    ten = Figure(10.0, 1.0, rest=(0.0, 5.0), covered_ratio=0.5, reason="a")

    found = calculate(ten, other)

    assert (found.state, found.covered_ratio) == ("partial", 0.5)
    assert found.rest == pytest.approx(rest)
    assert found.reason == ("a; b" if other.reason else "a")
    assert found.half_width == pytest.approx(0.15 * found.number)


def test_product_of_nothing_and_an_amount_without_a_limit_is_nothing() -> None:
    found = figures.product(Figure(0.0), Figure(4.0, rest=(0.0, math.inf), reason="a"))

    assert (found.number, found.rest) == (0.0, (0.0, 0.0))


def test_mean_power_of_a_partial_energy_is_a_lower_limit() -> None:
    """780 ± 8 J in 10 s."""
    energy = Figure(780.0, 8.0)
    assert figures.mean_power_text(energy, 10.0) == "mean 78.0 W"
    partial = Figure(780.0, 8.0, rest=(0.0, math.inf), reason="a")
    assert figures.mean_power_text(partial, 10.0) == "mean at least 78.0 W"
    assert figures.energy_ends_text(energy) == "772 to 788 J"
    assert figures.energy_ends_text(partial) == ""


def test_limits_are_rounded_outwards() -> None:
    """3,478.598 and 3,488.002 are 4.7 from the middle: two digits are tenths."""
    assert figures.bounded_energy_text(Figure(3_483.3, 4.702)) == "3,483.3 J (3,478.5 to 3,488.1)"


# JSON


def test_json_of_known_figure_has_two_fields() -> None:
    assert figures.to_json(Figure(312.5, 4.0), "energy", "joules") == {
        "energy_joules": 312.5,
        "energy_uncertainty_joules": 4.0,
    }
    assert figures.to_json(Figure(3.0), "emissions", "grams") == {
        "emissions_grams": 3.0,
        "emissions_uncertainty_grams": None,
    }


def test_json_of_unknown_figure_is_null_with_state_and_reason() -> None:
    assert figures.to_json(Figure(None, reason="no sensor"), "energy", "joules") == {
        "energy_joules": None,
        "energy_uncertainty_joules": None,
        "energy_state": "unknown",
        "energy_reason": "no sensor",
    }


def test_json_of_lower_limit_has_state_and_reason() -> None:
    figure = Figure(312.0, 4.0, rest=(0.0, math.inf), covered_ratio=0.5, reason="no sensor")
    assert figures.to_json(figure, "energy", "joules") == {
        "energy_joules": 312.0,
        "energy_uncertainty_joules": 4.0,
        "energy_covered_ratio": 0.5,
        "energy_state": "partial",
        "energy_reason": "no sensor",
    }


def test_json_limits_are_pairs_with_null_for_infinity() -> None:
    figure = Figure(10.0, bias=(-1.0, 2.0), rest=(-math.inf, 3.0), reason="gap", skewed=(6.0, 15.0))
    fields = figures.to_json(figure, "energy", "joules")
    assert fields["energy_limits_joules"] == [6.0, 15.0]
    assert fields["energy_sensor_limits_joules"] == [-1.0, 2.0]
    assert fields["energy_rest_limits_joules"] == [None, 3.0]


@given(_figures())
def test_json_and_back_is_the_same_figure(figure: Figure) -> None:
    text = json.dumps(figures.to_json(figure, "energy", "joules"), allow_nan=False)
    assert figures.from_json(json.loads(text), "energy", "joules") == figure


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "energy_joules: missing"),
        ({"energy_joules": "12"}, "energy_joules: not a finite number"),
        ({"energy_joules": True}, "energy_joules: not a finite number"),
        ({"energy_joules": math.nan}, "energy_joules: not a finite number"),
        (
            {"energy_joules": 1, "energy_uncertainty_joules": []},
            "energy_uncertainty_joules: not a finite number",
        ),
        (
            {"energy_joules": 1, "energy_sensor_limits_joules": [1]},
            "energy_sensor_limits_joules: not a pair of limits",
        ),
        (
            {"energy_joules": 1, "energy_sensor_limits_joules": [2, 1]},
            "energy_sensor_limits_joules: the lower limit is above the upper one",
        ),
        ({"energy_joules": 10**400}, "energy_joules: not a finite number"),
        (
            {"energy_joules": 1, "energy_uncertainty_joules": -1},
            "energy_uncertainty_joules: negative",
        ),
        (
            {"energy_joules": 1, "energy_covered_ratio": 1.5},
            "energy_covered_ratio: not between 0 and 1",
        ),
        (
            {"energy_joules": 1, "energy_covered_ratio": -0.5},
            "energy_covered_ratio: not between 0 and 1",
        ),
        (
            {"energy_joules": 1, "energy_sensor_limits_joules": [None, 2]},
            "energy_sensor_limits_joules: not a pair of finite limits",
        ),
        ({"energy_joules": None}, "energy_joules: a figure that is unknown needs a reason"),
        ({"energy_joules": None, "energy_reason": 1}, "energy_reason: not a text"),
        (
            {"energy_joules": None, "energy_reason": "no sensor"},
            "energy_state: 'known', but the figure is unknown",
        ),
        (
            {"energy_joules": 1, "energy_state": "partial"},
            "energy_joules: a figure that is partial needs a reason",
        ),
    ],
)
def test_json_of_no_figure_names_the_field(document, message) -> None:
    with pytest.raises(FigureFormatError) as caught:
        figures.from_json(document, "energy", "joules")
    assert str(caught.value) == message


def test_sum_of_skewed_partial_part_counts_its_rest_once() -> None:
    """10 (9 to 12) with 0 to 5 not measured, and 1 ± 1: 8 + 1 to 12 + 2 + 5."""
    parts = [Figure(10.0, skewed=(9.0, 12.0), rest=(0.0, 5.0), reason="late"), Figure(1.0, 1.0)]
    found = figures.sum_of_independent(parts)

    assert (found.number, found.skewed, found.rest) == (11.0, (9.0, 14.0), (0.0, 5.0))
    assert found.limits == (9.0, 19.0)


@pytest.mark.parametrize("half", [1e-200, 1e155, 1e300])
def test_sum_of_squares_of_extreme_half_widths_is_finite(half) -> None:
    found = figures.sum_of_independent([Figure(0.0, 3 * half), Figure(0.0, 4 * half)])

    assert found.half_width == pytest.approx(5 * half)


def test_sum_of_sums_states_each_reason_once() -> None:
    inner = figures.sum_of_independent([unknown("b"), unknown("a"), Figure(1.0)])
    found = figures.sum_of_independent([inner, unknown("a")])

    assert found.reason == "a; b"


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ((-3.0, math.inf), "100.0 J (-3.0 J or more not measured)"),
        ((-math.inf, 5.0), "100.0 J (+5.0 J or less not measured)"),
        ((-math.inf, math.inf), "100.0 J (any amount not measured)"),
        ((-3.0, 5.0), "100.0 J (-3.0 to +5.0 J not measured)"),
        ((0.0, math.inf), "at least 100.0 J"),
    ],
)
def test_partial_text_has_the_limits_of_the_rest(rest, expected) -> None:
    assert figures.energy_text(Figure(100.0, rest=rest, reason="late")) == expected


def test_bounded_text_without_upper_limit_is_a_lower_limit() -> None:
    energy_j = Figure(100.0, 2.0, rest=(0.0, math.inf), reason="late")

    assert figures.bounded_energy_text(energy_j) == "at least 100.0 ± 2.0 J"


# Texts


@pytest.mark.parametrize(
    ("value_j", "half_j", "expected"),
    [
        (950, 12, "950 ± 12 J"),
        (950, 4.2, "950 ± 4 J"),
        (3_599, None, "3,599 J"),
        (3_600, 36, "1.000 ± 0.010 Wh"),
        (12_345, 180, "3.43 ± 0.05 Wh"),
        (3.6e6, 3_600, "1.0000 ± 0.0010 kWh"),
        (7.2e9, 3.6e7, "2,000 ± 10 kWh"),
        (0, None, "0 J"),
        (0, 3, "0 ± 3 J"),
        (4.7, 3.2, "4.7 ± 3 J"),
        (6.4 * 3_600, 4 * 3_600, "6.4 ± 4 Wh"),
        (0.4, 30, "0.4 ± 30 J"),
        (0.3, 30, "0.3 ± 30 J"),
        (1_193, 6_100, "1,200 ± 6,000 J"),
        (297, 6_100, "300 ± 6,000 J"),
        (0.4, 6_100, "0 ± 6,000 J"),
        (14.39944 * 3.6e6, 10.0, "14.3994400 ± 0.0000028 kWh"),
        (1_234_567.0, 0.04, "342.935278 ± 0.000011 Wh"),
    ],
)
def test_energy_text_has_fitting_unit_and_digits(value_j, half_j, expected) -> None:
    assert figures.energy_text(Figure(value_j, half_j)) == expected


@pytest.mark.parametrize(
    ("value_j", "half_j", "expected"),
    [
        (-6.1, 76.6, "-10 ± 80 J"),
        (8.2, 16.5, "8 ± 17 J"),
        (4.7, 3.2, "5 ± 3 J"),
        (-0.4, 30, "0 ± 30 J"),
        (950, 12, "950 ± 12 J"),
        (12_345, 180, "3.43 ± 0.05 Wh"),
    ],
)
def test_energy_that_may_be_negative_has_digits_of_its_half_width(
    value_j, half_j, expected
) -> None:
    assert figures.energy_text(Figure(value_j, half_j), least_digits=False) == expected


def test_energy_text_is_rounded_to_random_error_and_sensor_accuracy() -> None:
    """3.7 J and 610 J are 610 J together, of which one digit is known."""
    read = Figure(6_160, 3.7, bias=(-180.0, 610.0))

    assert figures.energy_text(read) == "1.71 ± 0.17 Wh"
    assert figures.energy_text(read.scaled(0.5)) == "3,100 ± 300 J"
    assert figures.energy_text(read, half=False) == "1.71 Wh"
    assert figures.energy_of_one_text(read.scaled(1e-6), half=False) == "6.2 mJ"
    assert figures.random_error_text(read) == "± 0.0010 Wh (0.06 %)"
    assert figures.bias_text(read) == "-0.050 to +0.17 Wh (9.9 %)"
    assert figures.energy_parts(read) == ("1.71", "0.17", "Wh")


@pytest.mark.parametrize("value", [0.04, 3.08, 99.96, 1234.5, 12_345_678.0])
@pytest.mark.parametrize(
    ("half", "expected"),
    [
        (2.8e-6, "0.0000028"),
        (1.7e-4, "0.00017"),
        (0.28, "0.28"),
        (0.2949, "0.29"),
        (0.2951, "0.3"),
        (0.3, "0.3"),
        (0.96, "1.0"),
        (2.96, "3"),
        (9.96, "10"),
        (37.0, "40"),
        (610.0, "600"),
        (0.095, "0.10"),
        (0.295, "0.3"),
        (0.95, "1.0"),
        (1_450.0, "1,500"),
    ],
)
def test_half_width_has_the_same_digits_everywhere(value, half, expected) -> None:
    """Two digits from 10 to 29, else one; the value, the unit and the place do not matter."""
    figure = Figure(value, half)

    assert figures.number_text(figure).split(" ± ")[1] == expected
    assert figures.half_text(half) == expected
    assert figures.half_width_text(half, 0.0, value).startswith(f"± {expected} ") or value > 3_600


@pytest.mark.parametrize(("half", "expected"), [(0.0, "0"), (math.inf, "inf"), (math.nan, "nan")])
def test_half_width_without_digits(half, expected) -> None:
    assert figures.half_text(half) == expected


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (Figure(950.0, 12.0), "938 to 962 J"),
        (Figure(950.0, 4.2), "946 to 954 J"),
        (Figure(4.7, 3.2), "1.7 to 7.7 J"),
        (Figure(4.0, 12.0), "0.0 to 16.0 J"),
        (Figure(36_000.0, 72.0, bias=(-54.0, 96.0)), "9.97 to 10.03 Wh"),
        (Figure(-3.0, 2.96), "-6.0 to 0.0 J"),
        (Figure(-5.0, 3.0), "-8.0 to -2.0 J"),
        (Figure(-2.0, 2.5), "0.0 to 0.5 J"),
        (Figure(950.0), ""),
        (Figure(950.0, math.inf), ""),
        (Figure(950.0, bias=(-1.0, 1.0)), ""),
    ],
)
def test_ends_of_energy_are_those_of_its_rounded_text(figure, expected) -> None:
    """The ends of 950 ± 4 J are 946 and 954 J; √(72² + 96²) J = 120 J = 0.03 Wh."""
    assert figures.energy_ends_text(figure) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (figures.number_text(Figure(1_710, 170)), "1,710 ± 170"),
        (figures.number_text(Figure(1_710, 170), half=False), "1,710"),
        (figures.joules_text(Figure(36_000.0, 500.0)), "36,000 ± 500 J"),
        (figures.joules_text(Figure(36_000.0)), "36,000 J"),
        (figures.joules_text(Figure(2.5e9)), "2,500,000,000 J"),
        (figures.joules_text(Figure(0.0)), "0 J"),
        (figures.joules_text(Figure(0.0, 3.0)), "0 ± 3 J"),
        (figures.significant_text(-0.0), "0"),
        (
            figures.bounded_energy_text(Figure(3_480, skewed=(3_010, 3_950))),
            "3,480 J (3,010 to 3,950)",
        ),
        (figures.bounded_energy_text(Figure(12.345, 0.0)), "12.35 J (12.34 to 12.35)"),
        (figures.bounded_energy_text(Figure(0.0, 0.0)), "0.000 J (0.000 to 0.000)"),
        (figures.energy_of_one_text(Figure(0.0467, 0.0002)), "46.70 ± 0.20 mJ"),
        (figures.energy_of_one_text(Figure(0.0)), "0 J"),
        (figures.energy_of_one_text(Figure(2.5e-11)), "25.00 pJ"),
        (figures.energy_of_one_text(Figure(7_200, 36)), "2.000 ± 0.010 Wh"),
        (figures.small_energy_text(0.0467), "46.7 mJ"),
        (figures.small_energy_text(4.67e-5), "46.7 µJ"),
        (figures.small_energy_text(4.67e-8), "46.7 nJ"),
        (figures.small_energy_text(4.67e-11), "46.7 pJ"),
        (figures.small_energy_text(4.67e-14), "46.7 fJ"),
        (figures.small_energy_text(4.67e-17), "0.0467 fJ"),
        (figures.small_energy_text(7_234.0), "7,234 J"),
        (figures.small_energy_text(0.0), "0 J"),
        (figures.mass_text(Figure(0.3833, 0.0006)), "383.3 ± 0.6 mg CO₂eq"),
        (figures.mass_text(Figure(12_345, 100)), "12.35 ± 0.10 kg CO₂eq"),
        (figures.mass_text(Figure(2.5e6)), "2.500 t CO₂eq"),
        (figures.mass_text(Figure(1.0)), "1.000 g CO₂eq"),
        (figures.mass_text(Figure(999.5)), "999.5 g CO₂eq"),
        (figures.mass_text(Figure(1_000.0)), "1.000 kg CO₂eq"),
        (figures.mass_text(Figure(999_999.5)), "1,000.0 kg CO₂eq"),
        (figures.mass_text(Figure(1e6)), "1.000 t CO₂eq"),
        (figures.mass_text(Figure(5.0), 2_000.0, half=False), "0.005000 kg CO₂eq"),
        (figures.power_text(Figure(312.4, 3.0)), "312 ± 3 W"),
        (figures.power_text(Figure(9_999.4)), "9,999 W"),
        (figures.power_text(Figure(10_000.0)), "10.00 kW"),
        (figures.power_text(Figure(12_345, 20)), "12.345 ± 0.020 kW"),
        (figures.power_text(Figure(70.0312, 3.0), half=False), "70 W"),
        (figures.part_text(450.123, Figure(600.0, 1.5)), "450.1 J"),
        (figures.part_text(450.123, Figure(600.0)), "450.1 J"),
        (figures.mean_power_text(Figure(2_805.0, 1.8), 20.0), "mean 140.25 W"),
        (figures.mean_power_text(Figure(2_805.0, 140.0), 20.0), "mean 140 W"),
        (figures.power_text(Figure(12_345, 20), half=False), "12.345 kW"),
        (figures.money_text(Figure(5.0991e-5)), "0.00005099"),
        (figures.money_text(Figure(5.0991e-5, 4e-6)), "0.000051"),
        (figures.money_text(Figure(12.345)), "12.35"),
        (figures.proportional_text(123.456, Figure(1_000.0, 25.0)), "123"),
        (figures.proportional_text(123.456, Figure(1_000.0, 2.5)), "123.5"),
        (figures.proportional_text(123.456, Figure(1_000.0)), "123.5"),
        (figures.proportional_text(123.456, Figure(1_000.0, bias=(-25.0, 0.0))), "123"),
        (figures.joules_errors_text(Figure(6_160.0, 3.7)), ""),
        (
            figures.joules_errors_text(Figure(6_160.0, 3.7, bias=(-180.0, 610.0))),
            "± 4 J random, -180 to +610 J sensor accuracy",
        ),
        (
            figures.joules_errors_text(Figure(6_160.0, bias=(0.0, 610.0))),
            "0 to +610 J sensor accuracy",
        ),
        (figures.short_text(12_345.6), "12,346"),
        (figures.short_text(2.5), "2.5"),
        (figures.short_text(9_999.4), "9,999"),
        (figures.short_text(9_999.5), "10,000"),
        (figures.short_joules_text(420.5), "420.5 J"),
        (figures.short_joules_text(12_345.6), "12,346 J"),
        (figures.signed_joules_text(-1_234.0), "-1,200 J"),
        (figures.kilowatt_hours_text(3.6e6 * 1.811156), "1.81116 kWh"),
        (figures.significant_text(0.0467), "0.04670"),
        (figures.significant_text(1e-4), "0.0001000"),
        (figures.significant_text(1e9), "1.000e+09"),
        (figures.significant_text(2.5e9), "2.500e+09"),
        (figures.signed_text(-0.5), "-0.50"),
        (figures.signed_text(0.5), "+0.50"),
        (figures.signed_text(0.0), "0"),
        (figures.half_width_text(3.7, 370.0, 370.0), "± 4 J (1.0 %)"),
        (figures.half_width_text(0.05, 0.5, 0.5), "± 0.05 J (10 %)"),
        (figures.error_limits_text((-0.05, 0.05), 0.5, 0.5), "-0.050 to +0.050 J (10 %)"),
        (figures.error_limits_text((-3.0, 6.0), 0.0, 10.0), "-3.0 to +6.0 J"),
    ],
)
def test_figure_texts_have_units_and_digits(text, expected) -> None:
    assert text == expected


def test_texts_of_figures_that_are_not_known_say_so() -> None:
    gap = Figure(312.0, 4.0, rest=(-3.0, 20.0), reason="gap")
    least = Figure(0.5, rest=(0.0, math.inf), reason="no price at night")
    most = Figure(312.0, 4.0, rest=(0.0, math.inf), reason="gap").scaled(-1.0)

    assert figures.energy_text(gap) == "312 ± 4 J (-3.0 to +20 J not measured)"
    assert figures.number_text(gap) == "312 ± 4 (-3.0 to +20 not measured)"
    assert figures.joules_text(most) == "at most -312 ± 4 J"
    assert figures.money_text(least) == "at least 0.5000"
    assert figures.money_text(least.scaled(1e-4)) == "at least 0.00005000"
    assert figures.money_text(NO_SENSOR) == "unknown (GPU 0 has no sensor)"
    assert figures.energy_text(NO_SENSOR) == "unknown (GPU 0 has no sensor)"
    assert figures.mass_text(NO_SENSOR) == "unknown (GPU 0 has no sensor)"
    assert figures.random_error_text(NO_SENSOR) == ""

"""Quantities as text: units, digits and half-widths."""

import pytest

from wattline_analyzer.core import units
from wattline_analyzer.core.interval import Interval


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
        (4.7, 3.2, "4.7 ± 3.2 J"),
        (6.4 * 3_600, 4 * 3_600, "6.4 ± 4.0 Wh"),
        (0.4, 30, "0.4 ± 30.0 J"),
        (1_193, 6_100, "1,200 ± 6,000 J"),
        (297, 6_100, "300 ± 6,000 J"),
        (0.4, 6_100, "0 ± 6,000 J"),
        (14.39944 * 3.6e6, 10.0, "14.399440 ± 0.000003 kWh"),
        (1_234_567.0, 0.04, "342.93528 ± 0.00001 Wh"),
    ],
)
def test_energy_text_has_fitting_unit_and_digits(value_j, half_j, expected):
    assert units.energy(Interval(value_j, half_j)) == expected


@pytest.mark.parametrize(
    ("value_j", "half_j", "expected"),
    [
        (-6.1, 76.6, "-10 ± 80 J"),
        (8.2, 16.5, "8 ± 16 J"),
        (4.7, 3.2, "5 ± 3 J"),
        (-0.4, 30, "0 ± 30 J"),
        (950, 12, "950 ± 12 J"),
        (12_345, 180, "3.43 ± 0.05 Wh"),
    ],
)
def test_energy_that_may_be_negative_has_the_digits_of_its_half_width(value_j, half_j, expected):
    assert units.energy(Interval(value_j, half_j), least_digits=False) == expected


def test_energy_text_is_rounded_to_random_and_systematic_error():
    """3.7 J and 610 J are 610 J together, of which one digit is known."""
    read = Interval(6_160, 3.7, systematic=(-180.0, 610.0))

    assert (read.half, read.total_half) == (3.7, pytest.approx(610.0, abs=0.02))
    assert units.energy(read) == "1.71 ± 0.17 Wh"
    assert units.energy(read.scaled(0.5)) == "3,100 ± 300 J"
    assert units.energy(read, half=False) == "1.71 Wh"
    assert units.energy_per_unit(read.scaled(1e-6), "steps", half=False) == "6.2 mJ per step"
    assert (units.random_error(read), units.systematic_error(read)) == (
        "± 0.0010 Wh (0.060 %)",
        "-0.050 to +0.17 Wh (9.9 %)",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.energy_bound(Interval(3_480, limits=(3_010, 3_950))), "3,480 J (3,010 to 3,950)"),
        (
            units.energy_per_unit(Interval(0.0467, 0.0002), "generated_tokens"),
            "46.70 ± 0.20 mJ per generated token",
        ),
        (units.energy_per_unit(Interval(2.5e-11), "flop"), "25.00 pJ per flop"),
        (units.energy_per_unit(Interval(7_200, 36), "steps"), "2.000 ± 0.010 Wh per step"),
        (units.amount(812_345, "generated_tokens"), "812,345 generated tokens"),
        (units.amount(1.5e15, "flop"), "1,500 Tflop"),
        (units.amount(12_345.5, "images"), "12,346 images"),
        (units.amount(9_999.99, "images"), "10,000 images"),
        (units.amount(2.5, "epochs"), "2.5 epochs"),
        (units.rate(1.234e13, "flop"), "12.34 Tflop/s"),
        (units.rate(50, "requests"), "50.00 requests/s"),
        (units.mass(Interval(0.3833, 0.0006)), "383.3 ± 0.6 mg CO₂eq"),
        (units.mass(Interval(12_345, 100)), "12.35 ± 0.10 kg CO₂eq"),
        (units.power(Interval(12_345, 20)), "12.345 ± 0.020 kW"),
        (units.money(Interval(5.0991e-5)), "0.00005099"),
        (units.money(Interval(5.0991e-5, 4e-6)), "0.000051"),
        (units.money(Interval(12.345)), "12.35"),
        (units.duration(9.876), "9.88 s"),
        (units.duration(125.34), "2 min 5.3 s"),
        (units.duration(3_723), "1 h 2 min 3 s"),
        (units.percent(0.981), "98.1 %"),
        (units.percent(1), "100 %"),
    ],
)
def test_report_table_numbers_have_units(text, expected):
    assert text == expected

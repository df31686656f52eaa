"""Amounts, rates, durations and energies per unit as text."""

import pytest

from wattline.figures import Figure
from wattline_analyzer.core import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            units.energy_per_unit(Figure(0.0467, 0.0002), "generated_tokens"),
            "46.70 ± 0.20 mJ per generated token",
        ),
        (units.energy_per_unit(Figure(2.5e-11), "flop"), "25.00 pJ per flop"),
        (units.energy_per_unit(Figure(7_200, 36), "steps"), "2.000 ± 0.010 Wh per step"),
        (units.amount(812_345, "generated_tokens"), "812,345 generated tokens"),
        (units.amount(1.5e15, "flop"), "1,500 Tflop"),
        (units.amount(12_345.5, "images"), "12,346 images"),
        (units.amount(9_999.99, "images"), "10,000 images"),
        (units.amount(2.5, "epochs"), "2.5 epochs"),
        (units.rate(1.234e13, "flop"), "12.34 Tflop/s"),
        (units.rate(50, "requests"), "50.00 requests/s"),
        (units.duration(9.876), "9.88 s"),
        (units.duration(125.34), "2 min 5.3 s"),
        (units.duration(3_723), "1 h 2 min 3 s"),
        (units.percent(0.981), "98.1 %"),
        (units.percent(1), "100 %"),
    ],
)
def test_report_table_numbers_have_units(text, expected):
    assert text == expected

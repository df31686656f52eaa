"""Table of `analyzer usage`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wattline_analyzer.core.tables import Table
from wattline_analyzer.usage.fleet import Counts, FleetGroup, Means
from wattline_analyzer.usage.groups import fleet
from wattline_analyzer.usage.output import usage_output

GPU = ("gpu",)
BASIS = ("average", "actual")


COUNTS = Counts(
    devices={(("(no run)",), GPU): 100.0},
    unclaimed={},
    claimed={(("a",), GPU): 99.0},
    work={},
    working={},
    grams={(("a",), BASIS): 100.000001},
    device_grams={((), BASIS): 100.0},
    runs={(("a",), ()): 1.0},
    idle={},
    means=Means("raw samples", 0.0, 600.0, "server", 1, 1, 0),
)


def test_usage_emissions_that_round_to_zero_have_no_sign() -> None:
    parts = usage_output(fleet(("model",), "idle_shared", COUNTS), None, None).parts
    (table,) = (part for part in parts if isinstance(part, Table))
    emitted = [column.title for column in table.columns].index("g CO₂eq")

    assert [row[emitted].text for row in (*table.rows, *table.totals)] == [
        "100.00",
        "100.00",
        "0.00",
        "100.00",
    ]


def test_usage_emissions_of_a_part_of_the_energy_state_their_share() -> None:
    """An intensity was known for 22 J of 100 J."""
    counts = replace(COUNTS, device_grams={((), BASIS): 22.0}, emission_energy={"average": 22.0})

    output = usage_output(fleet(("model",), "idle_shared", counts), None, None)

    note = (
        "warning: emissions (average) are of 22 % of the devices' energy: no average carbon "
        "intensity was known"
    )
    assert any(isinstance(part, str) and note in part for part in output.parts)
    assert isinstance(output.document, Mapping)
    assert output.document["emissions_energy_ratio"] == {"average": 0.22}
    assert [
        row["emissions_average_energy_ratio"] for row in output.rows if row["row"] == "total"
    ] == [0.22]


def test_usage_energy_has_the_digits_of_its_half_width() -> None:
    """5,548.428 J are 0.00154123 kWh, and ± 13.87 J are 0.0000039 kWh or 0.25 %."""
    measured = FleetGroup(("a",), {"gpu": 5_548.428}, half_j=13.87)
    whole = replace(fleet(("model",), "idle_shared", COUNTS), groups=(measured,))

    (table,) = (part for part in usage_output(whole, None, None).parts if isinstance(part, Table))

    titles = [column.title for column in table.columns]
    (row,) = table.rows
    assert row[titles.index("kWh")].text == "0.001541"
    assert row[titles.index("± (95 %)")].text == "0.25 %"

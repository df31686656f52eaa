"""Table of `analyzer usage`."""

from __future__ import annotations

from analyzer.output.studies.usage import usage_output
from analyzer.output.table import Table
from analyzer.studies.fleet import Counts, Means
from analyzer.studies.fleet_groups import fleet

GPU = ("gpu",)
BASIS = ("average", "actual")


def test_usage_emissions_that_round_to_zero_have_no_sign() -> None:
    counts = Counts(
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

    parts = usage_output(fleet(("model",), "idle_shared", counts), None, None).parts
    (table,) = (part for part in parts if isinstance(part, Table))
    emitted = [column.title for column in table.columns].index("g CO₂eq")

    assert [row[emitted].text for row in (*table.rows, *table.totals)] == ["100.00", "100.00", "0.00", "100.00"]

"""Table and document of `analyzer usage`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.analyzer.usage.small_facts import gpu, owner, run_part, usage
from tests.analyzer.usage.test_sums import DEVICE, RUN
from wattline.figures import Figure
from wattline_analyzer.core.tables import CommandOutput, Table
from wattline_analyzer.usage.output import usage_output
from wattline_analyzer.usage.sums import Usage, UsageRow

BASIS = ("average", "actual")


def usage_with(*rows: UsageRow, total: UsageRow) -> Usage:
    return replace(usage([gpu(100.0)]), groups=rows, total=total)


def row(name: str, joules: float, **values: object) -> UsageRow:
    return UsageRow((name,), joules={"gpu": joules}, **values)


def table_of(output: CommandOutput) -> Table:
    (table,) = (part for part in output.parts if isinstance(part, Table))
    return table


def texts_of(output: CommandOutput, title: str) -> list[str]:
    table = table_of(output)
    at = [column.title for column in table.columns].index(title)
    return [cells[at].text for cells in table.rows]


def notes_of(output: CommandOutput) -> str:
    return "\n".join(part for part in output.parts if isinstance(part, str))


def test_usage_emissions_that_round_to_zero_have_no_sign() -> None:
    found = usage_with(
        row("a", 99.0, grams={BASIS: 100.12}),
        row("b", 1.0, grams={BASIS: -0.000001}),
        total=row("(total)", 100.0, grams={BASIS: 100.12}),
    )

    assert texts_of(usage_output(found, None, None), "g CO₂eq") == ["100.12", "0.00"]


def test_usage_energy_without_half_width_has_no_zeros_at_its_end() -> None:
    """2,808 J are 0.00078 kWh."""
    found = usage([gpu(2_808.0), owner(2_808.0, "ada")], by="user")

    assert texts_of(usage_output(found, None, None), "kWh") == ["0.00078"]


def test_usage_emissions_of_a_part_of_the_energy_are_a_warning() -> None:
    found = replace(
        usage_with(row("a", 99.0), total=row("(total)", 100.0, grams={BASIS: 22.0})),
        emission_shares={"average": 0.22},
    )

    output = usage_output(found, None, None)

    warning = "warning: emissions (average) are of 22 % of the devices' energy: no average carbon"
    assert warning in notes_of(output)
    assert isinstance(output.document, Mapping)
    assert output.document["emissions_energy_ratio"] == {"average": 0.22}


def test_usage_energy_has_the_digits_of_its_half_width() -> None:
    """5,548.428 J are 0.00154123 kWh, and ± 13.87 J are 0.0000039 kWh or 0.25 %."""
    found = usage_with(row("a", 5_548.428, half_j=13.87), total=row("(total)", 6_000.0))

    output = usage_output(found, None, None)

    assert texts_of(output, "kWh") == ["0.001541"]
    assert texts_of(output, "± (95 %)") == ["0.25 %"]


def test_usage_energy_that_is_not_all_measured_is_a_limit() -> None:
    cut = row("a", 3.6e6, is_cut=True, reasons={"n counts from 10:00:00": None})
    older = row("b", 1.8e6, hidden_j=40.0, reasons={"n: an owner was new": None})
    found = usage_with(cut, older, total=row("(total)", 6e6))

    assert texts_of(usage_output(found, None, None), "kWh") == ["≥ 1.00000", "≤ 0.50000"]


def test_usage_row_without_energy_is_unknown() -> None:
    device = replace(DEVICE, shares_j={"idle_shared": 0.0})
    found = usage([gpu(100.0)], [run_part(replace(RUN, devices=(device,)))])

    output = usage_output(found, None, None)

    assert texts_of(output, "kWh") == ["–"]
    assert isinstance(output.document, Mapping)
    (group,) = output.document["groups"]
    assert (group["energy_joules"], group["energy_state"]) == (None, "unknown")


def test_usage_names_rows_with_less_energy_than_their_runs() -> None:
    below = row("ada", 2_500.0, runs_j=3_000.0)
    found = replace(usage_with(below, total=row("(total)", 5_000.0)), by_owners=True)

    text = notes_of(usage_output(found, None, None))

    assert "have more energy than their counters by owner: ada (500.0 J)" in text


def test_usage_names_nodes_whose_parts_do_not_add_up() -> None:
    """+500 J on node a and -500 J on node b; the remainder of both is 0."""
    counters = [gpu(3_500.0), gpu(2_500.0, node="b")]
    found = usage(counters, [run_part(RUN), run_part(replace(RUN, run_id="r-2"), "b")])

    text = notes_of(usage_output(found, None, None))

    assert "remainder by node, above 1 %: a (+14 %), b (-20 %)" in text


def test_usage_columns_have_one_unit_each() -> None:
    rows = [
        row(name, joules, grams={BASIS: grams})
        for name, joules, grams in (("a", 9e6, 2_000.0), ("b", 1_800.0, 0.5))
    ]
    found = usage_with(*rows, total=row("(total)", 9_001_800.0))

    output = usage_output(found, None, None)

    assert texts_of(output, "kWh") == ["2.50000", "0.00050"]
    assert texts_of(output, "g CO₂eq") == ["2,000.0", "0.5"]
    assert Figure(9e6).scaled(1 / 3.6e6).value == 2.5

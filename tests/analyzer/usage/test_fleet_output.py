"""Output of a fleet whose runs started before the first scrape of their exporter."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from wattline_analyzer.core.tables import Cell, Table
from wattline_analyzer.usage.fleet import Counts, Means
from wattline_analyzer.usage.fleet_output import fleet_output
from wattline_analyzer.usage.groups import fleet

GPU, BASIS = ("gpu",), ("average", "actual")
COUNTS = Counts(
    devices={(("(no run)",), GPU): 7_500.0},
    unclaimed={(("(no run)",), GPU): 3_000.0},
    claimed={(("a",), GPU): 4_500.0},
    work={},
    working={},
    grams={},
    device_grams={((), BASIS): 1.0},
    runs={(("a",), ()): 1.0},
    idle={(("(no run)",), GPU): 3_000.0},
    means=Means("raw samples", 0.0, 600.0, "server", 1, 1, 0),
)


def small_fleet_text(counters_j):
    """Return the text of runs with 4,500 J and 3,000 J without a run; the devices' counters show
    `counters_j`.
    """
    result = fleet(
        ("model",), "idle_shared", replace(COUNTS, devices={(("(no run)",), GPU): counters_j})
    )
    shares = [result.share(group) for group in (*result.groups, *result.unattributed)]
    return shares, text_of(result)


def text_of(result):
    return "\n".join(part for part in fleet_output(result, 50).parts if isinstance(part, str))


def test_fleet_energy_beyond_counters_has_one_total_and_one_share():
    """The parts are 7,500 J, the counters 6,000 J: 60 % and 40 % of the parts."""
    shares, text = small_fleet_text(6_000.0)

    assert shares == [pytest.approx(0.6), pytest.approx(0.4)]
    assert "all runs and unattributed: 2.083 Wh (GPU 2.083 Wh)" in text
    assert "all devices, by their counters: 1.667 Wh, as in analyzer usage; see the warning" in text
    assert "energy of GPUs without a run: 3,000 J, 40.0 % of the energy of all GPUs" in text


def test_fleet_energy_of_counters_is_the_total_where_parts_agree():
    shares, text = small_fleet_text(7_500.0)

    assert shares == [pytest.approx(0.6), pytest.approx(0.4)]
    assert "all devices: 2.083 Wh (GPU 2.083 Wh)" in text
    assert "counters show" not in text


def test_fleet_emissions_state_what_running_runs_lack():
    _, text = small_fleet_text(7_500.0)

    assert "which lack the last 6 s of runs that go on at the end of the window" in text


def test_fleet_difference_that_rounds_to_zero_has_no_sign():
    """The parts are 7,500 J; a ten-millionth of it is 0.00001 %."""
    for counters_j in (7_500.0 * (1 + 1e-7), 7_500.0 * (1 - 1e-7)):
        assert (
            "the sum differs from the devices' counters by 0.00 %"
            in small_fleet_text(counters_j)[1]
        )
    assert (
        "the sum differs from the devices' counters by -0.50 %"
        in small_fleet_text(7_500 / 0.995)[1]
    )


def test_fleet_kinds_without_increase_have_no_emissions():
    """The devices used 7,500 J, and the counter of emissions did not rise: the intensity was
    unknown.
    """
    counts = replace(COUNTS, grams={(("a",), BASIS): 0.0}, device_grams={((), BASIS): 0.0})

    result = fleet(("model",), "idle_shared", counts)

    assert (result.device_grams, [group.grams for group in result.groups]) == ({}, [{}])
    assert "CO₂eq" not in text_of(result)


def test_fleet_run_with_unattributed_energy_has_none():
    """The counter of the attributed energy of the only run of b stayed at 0."""
    counts = replace(
        COUNTS, claimed={**COUNTS.claimed, (("b",), GPU): 0.0}, runs={(("b",), ()): 1.0}
    )

    (group,) = (
        one for one in fleet(("model",), "idle_shared", counts).groups if one.keys == ("b",)
    )

    assert (group.joules, group.runs) == ({}, 1)


def test_fleet_unmeasured_run_has_neither_energy_nor_share():
    counts = replace(
        COUNTS, runs={(("a",), ()): 1.0, (("b",), ()): 1.0}, work={(("b",), ("requests",)): 5.0}
    )

    output = fleet_output(fleet(("model",), "idle_shared", counts), 50)

    (table,) = (part for part in output.parts if isinstance(part, Table))
    titles = [column.title for column in table.columns]
    cells = {row[0].text: dict(zip(titles, row, strict=True)) for row in table.rows}
    assert [cells["b"][name].text for name in ("Energy", "Share")] == [Cell().text] * 2
    assert [row["energy_joules"] for row in output.rows if row["model"] == "b"] == [None]
    assert isinstance(output.document, Mapping)
    groups = [group for group in output.document["groups"] if group["model"] == "b"]
    assert [(group["energy_joules"], group["share_of_devices_ratio"]) for group in groups] == [
        (None, None)
    ]

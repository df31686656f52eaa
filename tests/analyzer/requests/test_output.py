"""Energies in the tables of requests."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest

from wattline.figures import Figure
from wattline_analyzer.requests.output import (
    groups_table,
    most_table,
    percentiles_table,
    share_text,
)
from wattline_analyzer.requests.table import RequestGroup
from wattline_exporter.requests.division.spans import RequestSpans
from wattline_exporter.requests.division.totals import EnergyPart


def report(joules, half_j):
    """Return a report of one group for each request."""
    counts = np.full(len(joules), 20.0)
    groups = [
        RequestGroup((f"toy-{k}b",), 1, 30.0, 30.0, 20.0, each, half, (EnergyPart(each, half),) * 3)
        for k, (each, half) in enumerate(zip(joules, half_j, strict=True))
    ]
    spans = RequestSpans(*[counts] * len(fields(RequestSpans)))
    table = SimpleNamespace(ids=[f"r{k}" for k in range(len(joules))], spans=spans)
    return SimpleNamespace(
        joules=np.array(joules),
        energies=SimpleNamespace(half_j=np.array(half_j)),
        groups=groups,
        by=["model"],
        table=table,
        price=None,
        grams_per_kwh=None,
    )


def test_group_energies_of_one_have_the_half_width_of_their_sum():
    """60 ± 6 J of 4 requests with 20 generated tokens; 30 ± 3 J of 15 tokens of prompts."""
    group = RequestGroup((), 4, 30.0, 15.0, 20.0, 60.0, 6.0, (), prefill=Figure(30.0, 3.0))

    assert group.per_request == Figure(15.0, 1.5)
    assert group.per_generated_token == Figure(pytest.approx(3.0), pytest.approx(0.3))
    assert group.per_prompt_token == Figure(pytest.approx(2.0), pytest.approx(0.2))


def test_group_without_generated_tokens_has_no_energy_per_token():
    group = RequestGroup((), 4, 30.0, 0.0, 0.0, 60.0, 6.0, (), prefill=Figure(30.0, 3.0))

    assert (group.per_generated_token, group.per_prompt_token) == (None, None)


@pytest.mark.parametrize(
    ("joules", "half_j", "expected"),
    [
        ([9_120.0, 38.2, 8.2], [400.0, 9.0, 16.5], ["9,100 ± 400 J", "38 ± 9 J", "8 ± 17 J"]),
        ([3.6e6, 38.2], [4e5, 9.0], ["1.00 ± 0.11 kWh", "0.0000106 ± 0.0000025 kWh"]),
    ],
    ids=["small", "large"],
)
def test_energies_of_requests_are_in_joules_below_a_megajoule(joules, half_j, expected):
    found = report(joules, half_j)

    assert [row[1].text for row in most_table(found, 3).rows] == expected
    assert [row[3].text for row in groups_table(found).rows] == expected
    assert [row[1].text for row in percentiles_table(found).rows] == expected


@pytest.mark.parametrize(
    ("percent", "half", "expected"),
    [
        (26.7, 1.3, "26.7 ± 1.3 %"),
        (26.7, 4.2, "27 ± 4 %"),
        (26.7, None, "26.7 %"),
        (0.0, None, "0.0 %"),
        (26.7, 30.0, "at most 26.7 %"),
        (98.2, 5.0, "98.2 % (93.2 to 100 %)"),
        (100.0, 5.0, "100.0 % (95.0 to 100 %)"),
    ],
)
def test_share_of_idle_energy_is_between_0_and_100_percent(percent, half, expected):
    share = Figure(percent / 100, None if half is None else half / 100)

    assert share_text(share) == expected

"""Half-widths of requests and groups, each contribution by hand: 1.96 standard errors."""

from __future__ import annotations

import numpy as np
import pytest

from wattline_exporter.requests.division.half_widths import (
    Energies,
    group_half_widths_j,
    half_widths_j,
    phase_half_widths_j,
)

MOST_J = 1e6


def energies_of(dynamic_j, floor_ratio=0.0, **parts):
    """Return energies above idle with some parts of their errors, and no other ones."""
    dynamic_j = np.array(dynamic_j)
    none = np.zeros(len(dynamic_j))
    names = (
        "idle_j",
        "scatter_j2",
        "meter_j2",
        "guessed_j",
        "beside_guesses_j",
        "known_idle_j",
        "limit_j",
    )
    columns = {
        "errors_j": np.zeros((4, len(dynamic_j))),
        "most_j": np.full(len(dynamic_j), MOST_J),
        **dict.fromkeys(names, none),
        **{name: np.array(part) for name, part in parts.items()},
    }
    return Energies(
        prefill_j=0.6 * dynamic_j, decode_j=0.4 * dynamic_j, floor_ratio=floor_ratio, **columns
    )


@pytest.mark.parametrize(
    ("parts", "half_j"),
    [
        ({"floor_ratio": 0.02}, 1.96 * 2.0),
        ({"floor_ratio": 0.04}, 1.96 * 4.0),
        ({"errors_j": [[1.0], [-2.0], [2.0], [0.0]]}, 1.96 * 3.0),
        ({"errors_j": [[0.0], [0.0], [0.0], [-5.0]]}, 1.96 * 5.0),
        ({"scatter_j2": [16.0]}, 1.96 * 4.0),
        ({"meter_j2": [9.0]}, 1.96 * 3.0),
        ({"guessed_j": [100.0]}, 1.96 * 12.0),
        ({"beside_guesses_j": [25.0]}, 1.96 * 6.0),
        ({"idle_j": [200.0], "known_idle_j": [200.0]}, 0.05 * 200.0),
        ({"limit_j": [7.0]}, 7.0),
        ({"meter_j2": [9.0], "scatter_j2": [16.0]}, 1.96 * 5.0),
        ({"meter_j2": [9.0], "limit_j": [7.0]}, 1.96 * 3.0 + 7.0),
        ({"limit_j": [7.0], "most_j": [2.0]}, 2.0),
    ],
)
def test_half_width_of_a_request_of_100_joules(parts, half_j):
    assert half_widths_j(energies_of([100.0], **parts)) == pytest.approx([half_j])


def test_half_width_of_a_guess_replaces_its_part_in_those_beside_it():
    """Of 100 J, all are of a guess; beside it, half of the energy of the server is."""
    found = half_widths_j(energies_of([100.0], guessed_j=[100.0], beside_guesses_j=[50.0]))

    assert found == pytest.approx([1.96 * 12.0])


def groups_of(dynamic_j, numbers, **parts):
    numbers = np.array(numbers)
    return energies_of(dynamic_j, **parts).by_group(numbers, int(numbers.max()) + 1)


@pytest.mark.parametrize(
    ("parts", "halves_j"),
    [
        ({"errors_j": [[3.0, -2.0, -1.0], [0.0] * 3, [0.0] * 3, [0.0] * 3]}, [1.96, 1.96]),
        ({"floor_ratio": 0.02}, [1.96 * 2.0, 1.96 * 2.0]),
        ({"scatter_j2": [4.0, 4.0, 4.0]}, [1.96 * 2.0, 1.96 * 2.0]),
        ({"meter_j2": [4.0, 5.0, 4.0]}, [1.96 * 3.0, 1.96 * 2.0]),
        ({"guessed_j": [100.0, 100.0, 0.0]}, [1.96 * 12.0, 0.0]),
        ({"beside_guesses_j": [25.0, 25.0, 25.0]}, [1.96 * 6.0, 1.96 * 6.0]),
        ({"known_idle_j": [60.0, 40.0, 10.0]}, [0.05 * 100.0, 0.05 * 10.0]),
        ({"limit_j": [3.0, 4.0, 5.0]}, [7.0, 5.0]),
        ({"limit_j": [300.0, 400.0, 5.0]}, [300.0, 5.0]),
    ],
)
def test_half_widths_of_groups_of_two_and_of_one(parts, halves_j):
    """100 J each; errors that move energy from one group to the other are those of the smaller one,
    and all of them together have 300 J.
    """
    groups = groups_of([100.0, 100.0, 100.0], [0, 0, 1], **parts)

    assert group_half_widths_j(groups) == pytest.approx(halves_j)


def test_half_width_of_all_requests_has_no_error_that_moves_energy():
    parts = {
        "floor_ratio": 0.02,
        "errors_j": [[3.0, -3.0], [0.0, 0.0], [0.0, 0.0], [1.0, -1.0]],
        "scatter_j2": [4.0, 4.0],
        "guessed_j": [100.0, 0.0],
        "meter_j2": [9.0, 16.0],
    }

    assert group_half_widths_j(groups_of([100.0, 80.0], [0, 0], **parts)) == pytest.approx(
        [1.96 * 5.0]
    )


def test_sums_of_groups_in_two_parts_equal_those_of_all():
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, 3, 20)
    columns = {"errors_j": rng.normal(size=(4, 20)), "meter_j2": rng.uniform(size=20)}
    dynamic_j = rng.uniform(10, 20, 20)

    whole = energies_of(dynamic_j, **columns).by_group(numbers, 3)
    parts = [
        energies_of(
            dynamic_j[part], **{name: each[..., part] for name, each in columns.items()}
        ).by_group(numbers[part], 3)
        for part in (slice(12), slice(12, None))
    ]

    assert group_half_widths_j(parts[0].plus(parts[1])) == pytest.approx(group_half_widths_j(whole))


def test_half_widths_of_phases():
    """Prefills of 200 J and decodes of 300 J: 5 % of prefill in both, 6 J of the fit, a limit of
    2 J, and 10 J of 500 J by the idle power.
    """
    errors_j = np.zeros((4, 2))
    errors_j[0] = 6.0, -6.0

    found = phase_half_widths_j(np.array([200.0, 300.0]), errors_j, np.array([2.0, 2.0]), 10.0)

    own_j = 2.0 + 1.96 * np.hypot(6.0, 0.05 * 200.0)
    assert found == pytest.approx((np.hypot(own_j, 4.0), np.hypot(own_j, 6.0)))

"""Set of hashes in an array, compared with a set."""

from __future__ import annotations

import numpy as np
import pytest

from wattline_exporter.requests.id_table import IdTable, is_first


def some(*numbers):
    return np.array(numbers, dtype=np.int64)


@pytest.mark.parametrize("size", [20, 500])
@pytest.mark.parametrize("low_bits", [10, 40])
def test_table_of_many_calls_has_what_a_set_has(low_bits, size):
    """With few random bits at their end, most hashes are far from the slot that these bits name."""
    rng, table, known = np.random.default_rng(1), IdTable(), set()
    for _ in range(10):
        hashes = np.unique(
            (rng.integers(1, 400, size) << 50) + rng.integers(0, 1 << low_bits, size)
        )
        is_known = [each in known for each in hashes.tolist()]

        assert table.contains(hashes).tolist() == is_known

        table.add(hashes[~np.array(is_known)])
        known.update(hashes.tolist())
        assert len(table) == len(known)
    assert table.contains(np.array(sorted(known))).all()


def test_table_with_hashes_of_one_slot_finds_each_one():
    hashes = some(*(1 + (number << 40) for number in range(20)), -(1 << 50) + 1)
    table = IdTable()

    table.add(hashes)

    assert table.contains(hashes).all()
    assert not table.contains(hashes + (1 << 60)).any()


def test_removed_hashes_are_not_found_and_others_stay():
    hashes = some(*(1 + (number << 40) for number in range(20)))
    table = IdTable()
    table.add(hashes)

    table.remove(some(*hashes[::2], 99))

    assert table.contains(hashes).tolist() == [False, True] * 10
    assert len(table) == 10


def test_first_of_equal_hashes_is_in_the_mask():
    assert is_first(some(3, 1, 3, 2, 1, 3)).tolist() == [True, True, False, True, False, False]
    assert is_first(some(3, 1, 2)).all()
    assert is_first(some()).tolist() == []

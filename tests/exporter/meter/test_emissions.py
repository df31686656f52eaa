"""Slots of carbon intensity that an interval spans."""

import pytest

from wattline_exporter.meter.emissions import split_over_slots
from wattline_exporter.sensors.readings import Slot


def slot(begin_s, grams, basis="average"):
    return Slot(begin_s, begin_s + 1_800, grams, "GB", "gb", basis, "forecast")


def lookup(*slots):
    return lambda at: tuple(s for s in slots if s.begin_s <= at < s.end_s)


def test_slots_short_interval_uses_the_slot_at_its_end():
    slots_at = lookup(slot(0, 100), slot(1_800, 200))

    assert [(share, s.grams_per_kwh) for share, s in split_over_slots(slots_at, 1_801.0, 2.0)] == [
        (1.0, 200)
    ]


def test_slots_long_interval_is_split_over_its_slots():
    # an hour that ends at 1 h 15 min: 15, 30 and 15 minutes
    slots_at = lookup(slot(0, 100), slot(1_800, 200), slot(3_600, 400))

    shares = [(share, s.grams_per_kwh) for share, s in split_over_slots(slots_at, 4_500.0, 3_600.0)]
    assert shares == [(0.25, 100), (0.5, 200), (0.25, 400)]


def test_slots_each_basis_is_split_separately():
    slots_at = lookup(
        slot(0, 100), slot(1_800, 200), slot(0, 500, "marginal"), slot(1_800, 700, "marginal")
    )

    shares = [
        (share, s.basis, s.grams_per_kwh)
        for share, s in split_over_slots(slots_at, 2_700.0, 1_800.0)
    ]
    assert sum(share for share, basis, _ in shares if basis == "average") == pytest.approx(1)
    assert (0.5, "marginal", 700) in shares


def test_slots_time_without_a_slot_is_left_out():
    slots_at = lookup(slot(1_800, 200))

    assert sum(share for share, _ in split_over_slots(slots_at, 2_700.0, 1_800.0)) == pytest.approx(
        0.5
    )

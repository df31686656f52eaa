"""Emissions of the energy meters, with carbon slots and a clock of the test."""

from dataclasses import replace

import pytest

from wattline_exporter.meter.counter_track import MAX_DEVICE_W
from wattline_exporter.meter.totals import LastPoll, MeterTotals
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.polling.meters import SavedTotals
from wattline_exporter.sensors.readings import ClockReading, Device, Poll, Slot

SAVED = LastPoll(49.0, 700.0, 48.8, 12.0)
GPU, CORE = Device("gpu", "GPU-0"), Device("core", "0")
AVERAGE = ("gpu", GPU.id, "average")
START_AT = 1_790_000_000.0
ACTUAL = Slot(START_AT + 10, START_AT + 1_000, 360.0, "GB", "gb", "average", "actual")
FORECAST = Slot(ACTUAL.end_s, ACTUAL.end_s + 1_000, 720.0, "GB", "gb", "average", "forecast")


class Node:
    """A GPU of 1,000 W, polled once a second, and the CPU's cores, whose energy is part of a
    package's.
    """

    def __init__(self, *slots: Slot) -> None:
        self.now_s = 0.0
        self.slots = slots
        self.live = LiveState(slots_at=self._slots_at, clock=self._clock)

    def _clock(self) -> ClockReading:
        return ClockReading(self.now_s, START_AT + self.now_s, self.now_s)

    def _slots_at(self, at: float) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.begin_s <= at < slot.end_s)

    def poll_at(self, now_s: float) -> None:
        self.now_s = now_s
        polls = [Poll(device, now_s, now_s, counter_j=1_000.0 * now_s) for device in (GPU, CORE)]
        self.live.energy.push(polls, 1.0)

    def exported(self) -> dict[tuple[str, str, str, str], float]:
        self.live.update(self.now_s)
        return dict(self.live.snapshot().emissions_grams)


def test_short_windows_are_restored_to_known_devices() -> None:
    node = Node()
    node.poll_at(20.0)

    node.live.energy.restore_short_windows({GPU, Device("gpu", "GPU-9")})

    assert node.live.energy.short_windows() == {GPU}
    assert set(node.live.energy.meters) == {GPU, CORE}


def test_emissions_start_at_zero_with_the_first_poll() -> None:
    node = Node(ACTUAL)
    node.poll_at(20.0)
    assert node.exported() == {(*AVERAGE, "actual"): 0.0}

    node.poll_at(21.0)  # 1,000 J at 360 g/kWh
    assert node.exported() == {(*AVERAGE, "actual"): 0.1}


def test_emissions_before_the_first_slot_are_absent() -> None:
    node = Node()
    for now_s in (20.0, 21.0):
        node.poll_at(now_s)
    assert node.exported() == {}

    node.slots = (ACTUAL,)  # the provider answers after the poll
    assert node.exported() == {(*AVERAGE, "actual"): 0.0}


def test_emissions_of_another_quality_start_at_zero_before_its_slot() -> None:
    node = Node(ACTUAL, FORECAST)
    node.poll_at(20.0)
    node.poll_at(FORECAST.begin_s - START_AT - 130)
    assert set(node.exported()) == {(*AVERAGE, "actual")}

    node.poll_at(FORECAST.begin_s - START_AT - 110)
    assert node.exported()[*AVERAGE, "forecast"] == 0.0


def test_restored_meter_keeps_the_power_limit_until_it_is_read_again() -> None:
    saved = SavedTotals(
        {GPU: MeterTotals(1_000.0, raw_j=1_000.0)}, saved_s=50.0, polls={GPU: SAVED}
    )
    live = LiveState(saved, slots_at=lambda _: ())

    assert live.energy.meter(GPU).most_w == 700.0


def test_last_poll_is_the_saved_one_until_this_exporter_polls() -> None:
    totals = {GPU: MeterTotals(1_000.0, raw_j=1_000.0)}
    live = LiveState(SavedTotals(totals, saved_s=50.0, polls={GPU: SAVED}), slots_at=lambda _: ())
    assert live.energy.last_polls() == {GPU: SAVED}

    live.energy.push([Poll(GPU, 51.0, 51.2, counter_j=1_100.0)])
    # the counter's update interval is not known yet: at most 1 s before the call at 51 s
    assert live.energy.last_polls() == {GPU: LastPoll(51.2, 700.0, pytest.approx(50.0))}


def test_last_poll_of_another_boot_is_forgotten() -> None:
    saved = SavedTotals({GPU: MeterTotals(1_000.0)}, saved_s=None, polls={GPU: SAVED})

    assert LiveState(saved, slots_at=lambda _: ()).energy.last_polls() == {}


def test_restored_meter_whose_limit_was_unknown_takes_the_first_one() -> None:
    saved = SavedTotals({GPU: MeterTotals(1_000.0, raw_j=1_000.0)}, saved_s=50.0)
    unknown = LiveState(saved, slots_at=lambda _: ()).energy.last_polls()[GPU]
    live = LiveState(replace(saved, polls={GPU: unknown}), slots_at=lambda _: ())

    assert live.energy.meter(GPU).max_w == MAX_DEVICE_W

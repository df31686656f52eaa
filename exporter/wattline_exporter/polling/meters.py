"""Energy meters, power and emissions of all devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from wattline.counters import CounterTotal
from wattline.figures import JOULES_PER_KWH
from wattline_exporter.meter.counter_track import MAX_DEVICE_W
from wattline_exporter.meter.emissions import EmissionKey, SlotLookup, split_over_slots
from wattline_exporter.meter.meter import LIMIT_MARGIN, DeviceMeter
from wattline_exporter.meter.totals import ZERO_TOTALS, LastPoll, MeterTotals
from wattline_exporter.sensors.exported_counters import SeriesKey
from wattline_exporter.sensors.nvml.schedule import FAST_S
from wattline_exporter.sensors.readings import ClockReading, Component, Device, Poll, Slot

SLOW_S = 1.0
RAPL_UPDATE_S = 0.001
UNKNOWN_LIMIT_W = MAX_DEVICE_W / LIMIT_MARGIN
_LEAD_S = 120.0
"""Time before a slot at which its emissions are exported as 0, so that scrapers have a sample
before the first rise.
"""


@dataclass(frozen=True, slots=True)
class SavedTotals:
    """Totals of the previous exporter on this state folder, saved at `saved_s`; None after a
    reboot.
    """

    totals: Mapping[Device, MeterTotals] = field(default_factory=dict)
    emissions: Mapping[EmissionKey, float] = field(default_factory=dict)
    counters: Mapping[SeriesKey, CounterTotal] = field(default_factory=dict)
    saved_s: float | None = None
    polls: Mapping[Device, LastPoll] = field(default_factory=dict)


class PowerSample(NamedTuple):
    """Power of a GPU at one poll (CLOCK_BOOTTIME)."""

    uuid: str
    t_s: float
    power_w: float


class EnergyMeters:
    """Meters of all devices, fed with polls. `slots_at` returns the carbon intensities in force."""

    def __init__(
        self, saved: SavedTotals, slots_at: SlotLookup, clock: Callable[[], ClockReading]
    ) -> None:
        self.meters = {device: _restored_meter(device, saved) for device in saved.totals}
        self.emissions_grams = dict(saved.emissions)
        self.power_w: dict[Device, float] = {}
        """Mean power between the last two polls."""
        self.polled: set[Device] = set()
        """Devices that were polled at least once by this process."""
        self.slots_at = slots_at
        self._clock = clock
        self._saved_polls = {} if saved.saved_s is None else dict(saved.polls)
        self._power_samples: list[PowerSample] = []
        self._period_s = SLOW_S

    def set_period(self, period_s: float) -> None:
        """Set the period at which GPUs are polled from now on."""
        self._period_s = period_s
        for device, meter in self.meters.items():
            if device.kind == "gpu":
                meter.period_s = self._gpu_period_s(meter)

    def _gpu_period_s(self, meter: DeviceMeter) -> float:
        """Return the polling period of a GPU: one without a counter is always polled fast."""
        return self._period_s if self._period_s <= FAST_S or meter.has_counter else FAST_S

    def expect_new_counters(self) -> None:
        """Expect that the energy counters of all GPUs start from 0, as after a restart of the
        driver.
        """
        for device, meter in self.meters.items():
            meter.counter_restarts = device.kind == "gpu"

    def meter(self, device: Device) -> DeviceMeter:
        """Return the device's meter, a new one if it has none."""
        meter = self.meters.get(device)
        if meter is None:
            meter = self.meters[device] = _new_meter(device, ZERO_TOTALS, None)
        return meter

    def short_windows(self) -> set[Device]:
        """Return the devices whose instantaneous power shows the load between two updates."""
        return {device for device, meter in self.meters.items() if meter.windows.shows_shape}

    def restore_short_windows(self, devices: Iterable[Device]) -> None:
        """Note the devices for which an earlier exporter found this."""
        for device in devices:
            if device in self.meters:
                self.meters[device].windows.was_short = True

    def push(self, polls: Iterable[Poll], period_s: float | None = None) -> None:
        """Add polls that were received now; `period_s` is the polling period of devices other than
        GPUs.
        """
        now_at = self._clock().at
        for poll in polls:
            self._push(poll, period_s, now_at)

    def _push(self, poll: Poll, period_s: float | None, now_at: float) -> None:
        device = poll.device
        meter = self.meters.get(device) or self.meter(device)
        last = meter.latest
        if period_s is not None:
            meter.period_s = period_s
        added_j = meter.push(poll)
        power_w = meter.display_w
        if device.kind == "gpu":
            meter.period_s = self._gpu_period_s(meter)
            if power_w is not None:
                self._power_samples.append(PowerSample(device.id, poll.after_s, power_w))
        self.polled.add(device)
        if last is None:
            self._start_emissions(device, self.slots_at(now_at))
        latest = meter.latest
        if last is None or latest is None or latest.after_s <= last.after_s:
            return
        elapsed_s = latest.after_s - last.after_s
        if not (latest.counter_j is None and power_w is None):
            self.power_w[device] = added_j / elapsed_s
        if added_j > 0 and (component := device.component):
            self._add_emissions(device, component, added_j, now_at, elapsed_s)

    def _add_emissions(
        self, device: Device, component: Component, joules: float, now_at: float, elapsed_s: float
    ) -> None:
        """Add the emissions of energy used evenly over the last `elapsed_s`, at the carbon
        intensity of each slot.
        """
        grams = self.emissions_grams
        for share, slot in split_over_slots(self.slots_at, now_at, elapsed_s):
            key = (component, device.id, slot.basis, slot.quality)
            grams[key] = grams.get(key, 0.0) + share * joules / JOULES_PER_KWH * slot.grams_per_kwh

    def start_emissions(self) -> None:
        """Add emissions of 0 for the carbon intensities in force now and in two minutes, where
        there are none yet.
        """
        now_at = self._clock().at
        slots = (*self.slots_at(now_at), *self.slots_at(now_at + _LEAD_S))
        for device in self.polled:
            self._start_emissions(device, slots)

    def _start_emissions(self, device: Device, slots: Iterable[Slot]) -> None:
        if component := device.component:
            for slot in slots:
                self.emissions_grams.setdefault(
                    (component, device.id, slot.basis, slot.quality), 0.0
                )

    def energies(self) -> Iterator[tuple[Device, float, float]]:
        """Yield each device that runs can have, its energy in joules, and the time of its last
        poll.
        """
        for device, meter in self.meters.items():
            if meter.latest and device.component:
                yield device, meter.totals.energy_j, meter.latest.after_s

    def last_polls(self) -> dict[Device, LastPoll]:
        """Return the last poll of each device that this exporter or the one before it polled."""
        polls = {}
        for device, meter in self.meters.items():
            last = meter.last_poll()
            saved = self._saved_polls.get(device)
            if last and saved and last.t_s <= saved.t_s:
                last = saved
            if last:
                polls[device] = last
        return polls

    def drain_power_samples(self) -> Collection[PowerSample]:
        """Return the GPUs' power samples since the last call, and forget them."""
        drained = self._power_samples
        self._power_samples = []
        return drained


def _restored_meter(device: Device, saved: SavedTotals) -> DeviceMeter:
    """Return a meter that continues from the last poll of the previous exporter."""
    if saved.saved_s is None or device not in saved.polls:
        return _new_meter(device, saved.totals[device], saved.saved_s)
    last = saved.polls[device]
    meter = _new_meter(device, saved.totals[device], min(last.t_s, saved.saved_s))
    if (
        last.most_w < UNKNOWN_LIMIT_W
    ):  # else the bound of a running run's energy would fall once the limit is read
        meter.max_w = LIMIT_MARGIN * last.most_w
    return meter


def _new_meter(device: Device, totals: MeterTotals, polled_s: float | None) -> DeviceMeter:
    last = (
        Poll(device, polled_s, polled_s, counter_j=totals.raw_j) if polled_s is not None else None
    )
    if device.kind == "gpu":
        return DeviceMeter(totals, last=last)
    return DeviceMeter(totals, last=last, update_s=RAPL_UPDATE_S)

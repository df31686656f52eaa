"""Polls of a device, and meters that receive them."""

from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.sensors.readings import Device, Poll

GPU = Device("gpu", "GPU-0")
PACKAGE = Device("package", "0")


def poll(t, counter_j=None, instant_w=None, *, average_w=None, range_j=None, device=GPU):
    return Poll(device, t, t, counter_j, instant_w, average_w, range_j)


def meter_of(polls, **options):
    meter = DeviceMeter(**options)
    for one in polls:
        meter.push(one)
    return meter


def counter_polls(watts, times):
    """Return polls of a constant power and of a counter without delay."""
    return [poll(t, counter_j=watts * t, instant_w=watts) for t in times]

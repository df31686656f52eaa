"""Polls of a device, and the line that they make."""

from exporter.energy.meter import DeviceMeter
from exporter.model import Device, Poll

GPU = Device("gpu", "GPU-0")
PACKAGE = Device("package", "0")


def poll(t, counter_j=None, power_w=None, *, average_w=None, range_j=None, device=GPU):
    return Poll(device, t, t, counter_j, power_w, average_w, range_j)


def line_of(polls, **options):
    line = DeviceMeter(**options)
    for one in polls:
        line.push(one)
    return line


def counted(watts, times):
    """Polls of a counter that moves with the power itself, and of that power."""
    return [poll(t, counter_j=watts * t, power_w=watts) for t in times]

"""Sensor of the CPU and memory use of the node."""

from __future__ import annotations

from collections.abc import Sequence

from wattline_exporter.sensors.readings import Source
from wattline_exporter.sensors.registry import NoOptions, SensorContext, SensorKind


def _find(_options: NoOptions, context: SensorContext) -> Sequence[Source]:
    from wattline_exporter.sensors.host.usage import HostSource  # psutil, not for --help

    return [HostSource(context.own_pids)]


SENSOR = SensorKind(
    name="host",
    help="Read CPU and memory use of the node.",
    period_s=5.0,
    find=_find,
    position=3,
)

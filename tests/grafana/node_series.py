"""Synthetic series of a node's exporter, host and carbon intensity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric

PACKAGE_W, DRAM_W = 100.0, 20.0
G_PER_KWH = 200.0
ExportedValue = Callable[[float], float | None]


def exporter_series(end_s: float) -> Iterator[tuple[Metric, dict[str, str], ExportedValue | float]]:
    """Yield metric, labels and values; the carbon provider fails 900 s before the end."""
    yield from _exporter(end_s)
    yield from _host(end_s)
    yield from _carbon()
    yield from _requests(end_s)


def _exporter(end_s: float) -> Iterator[tuple[Metric, dict[str, str], ExportedValue | float]]:
    yield m.BUILD_INFO, {"version": "0.1.0"}, 1.0
    yield m.STATE_UP, {}, 1.0
    for source in ("nvml", "rapl", "host", "carbon"):
        yield (
            m.SOURCE_UP,
            {"source": source},
            lambda t, s=source: float(s != "carbon" or t < end_s - 900),
        )
        yield m.SOURCE_READ_TIMESTAMP, {"source": source}, lambda t: t - 0.4
        yield (
            m.SOURCE_READS,
            {"source": source, "outcome": "ok"},
            lambda t: 10 * (t - end_s + 4_000),
        )
        yield (
            m.SOURCE_READS,
            {"source": source, "outcome": "late"},
            lambda t: max(t - end_s + 900, 0.0) / 60,
        )
    for role, cores, used in (("exporter", 0.02, 60e6), ("nvml_worker", 0.01, 35e6)):
        yield m.PROCESS_CPU, {"role": role}, lambda t, c=cores: c * (t - end_s + 4_000)
        yield m.PROCESS_MEMORY, {"role": role}, used


def _host(end_s: float) -> Iterator[tuple[Metric, dict[str, str], ExportedValue | float]]:
    for zone, watts in (("package", PACKAGE_W), ("core", 70.0), ("dram", DRAM_W)):
        yield m.CPU_POWER, {"package": "0", "zone": zone}, watts
        yield (
            m.CPU_ENERGY,
            {"package": "0", "zone": zone},
            lambda t, w=watts: w * (t - end_s + 4_000),
        )
    yield m.HOST_CPU_UTILIZATION, {}, lambda t: 0.3 + 0.1 * math.sin(t / 300)
    yield m.HOST_MEMORY_USED, {}, 128e9
    yield m.HOST_MEMORY_TOTAL, {}, 512e9


def _carbon() -> Iterator[tuple[Metric, dict[str, str], ExportedValue | float]]:
    where = {"region": "GB", "provider": "gb", "basis": "average"}
    yield m.CARBON_INTENSITY, where | {"quality": "actual"}, G_PER_KWH
    yield (
        m.CARBON_FETCHED_TIMESTAMP,
        {"provider": "gb", "basis": "average"},
        lambda t: t // 600 * 600,
    )
    for hours in range(1, 25):
        intensity = G_PER_KWH + 80 * math.sin(hours / 24 * 2 * math.pi)
        yield m.CARBON_FORECAST, where | {"horizon_hours": str(hours)}, round(intensity, 1)


def _requests(end_s: float) -> Iterator[tuple[Metric, dict[str, str], ExportedValue | float]]:
    """Five requests in 10 s: one up to 100 J, two up to 250 J, one up to 500 J, 80 W together; one
    without energy.
    """
    where = {"model": "llama-70b", "role": "", "user": "ann"}
    for edge, per_second in (("100.0", 0.1), ("250.0", 0.3), ("500.0", 0.4), ("+Inf", 0.4)):
        yield (
            m.REQUEST_ENERGY_BUCKET,
            where | {"le": edge},
            lambda t, r=per_second: r * (t - end_s + 4_000),
        )
    yield m.REQUEST_ENERGY_TOTAL, where, lambda t: 80 * (t - end_s + 4_000)
    yield m.REQUEST_ENERGY_COUNT, where, lambda t: 0.4 * (t - end_s + 4_000)
    yield m.REQUESTS, where, lambda t: 0.5 * (t - end_s + 4_000)
    yield m.REQUESTS_REJECTED, {"reason": "late"}, lambda t: 0.01 * (t - end_s + 4_000)

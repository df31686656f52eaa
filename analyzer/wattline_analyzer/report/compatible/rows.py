"""Readings of a run as rows in time, for files of other tools.

Rows are the scrapes of the first GPU during the run, plus start and end with the values of the
adjacent scrape. Values without a scrape nearby are NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline_analyzer.core.devices import ReportDevice
from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.sample_table import SampleTable, samples
from wattline_analyzer.core.samples import GAP_FACTOR, FloatArray, Samples, median_spacing_s

MIB = 2**20
_GAUGES: dict[str, tuple[Metric, Mapping[str, str], float]] = {
    "power_w": (m.GPU_POWER, {}, 1.0),
    "power_limit_w": (m.GPU_POWER_LIMIT, {"kind": "enforced"}, 1.0),
    "utilization_percent": (m.GPU_UTILIZATION, {"engine": "gpu"}, 100.0),
    "memory_utilization_percent": (m.GPU_UTILIZATION, {"engine": "memory"}, 100.0),
    "memory_used_mib": (m.GPU_MEMORY_USED, {}, 1 / MIB),
    "temperature_celsius": (m.GPU_TEMPERATURE, {"sensor": "gpu"}, 1.0),
    "fan_percent": (m.GPU_FAN, {}, 100.0),
    "graphics_clock_mhz": (m.GPU_CLOCK, {"domain": "graphics"}, 1e-6),
    "memory_clock_mhz": (m.GPU_CLOCK, {"domain": "memory"}, 1e-6),
}
_LEAST_REACH_S = 2.0


def times(report: Report, table: SampleTable) -> FloatArray:
    """Return Unix times of the rows; empty without GPU power."""
    for device in report.gpus:
        power = samples(table, m.GPU_POWER, instance=device.instance, uuid=device.device)
        end_s = (
            report.ended_at_s
            if report.ended_at_s is not None
            else float(power.t[-1])
            if len(power)
            else 0.0
        )
        inside = power.t[(power.t > report.started_at_s) & (power.t < end_s)]
        if len(inside):
            return np.concatenate([[report.started_at_s], inside, [end_s]])
    return np.empty(0)


def readings(table: SampleTable, device: ReportDevice, at_s: FloatArray) -> dict[str, FloatArray]:
    """Return a value per time, by name with unit."""
    at_s = np.clip(at_s, at_s[1], at_s[-2])
    where = {"instance": device.instance, "uuid": device.device}
    return {
        name: near(samples(table, metric, **where, **labels), at_s) * factor
        for name, (metric, labels, factor) in _GAUGES.items()
    }


def near(series: Samples, at_s: FloatArray) -> FloatArray:
    """Return the nearest sample of each time; NaN if it is more than 2.5 scrape intervals away."""
    if not len(series):
        return np.full(len(at_s), np.nan)
    after = np.clip(np.searchsorted(series.t, at_s), 0, len(series) - 1)
    before = np.maximum(after - 1, 0)
    closer = np.where(
        np.abs(series.t[before] - at_s) <= np.abs(series.t[after] - at_s), before, after
    )
    reach_s = max(GAP_FACTOR * (median_spacing_s(series) or 0.0), _LEAST_REACH_S)
    values: FloatArray = np.where(
        np.abs(series.t[closer] - at_s) <= reach_s, series.value[closer], np.nan
    )
    return values


def work(report: Report, table: SampleTable, unit: str, at_s: FloatArray) -> FloatArray:
    """Return work since the start of the run, interpolated between scrapes, of all instances; NaN
    if unknown.
    """
    total = np.zeros(len(at_s))
    for instance in report.instances:
        done = samples(table, m.RUN_WORK, run_id=report.run_id, instance=instance, unit=unit)
        if not len(done):
            return np.full(len(at_s), np.nan)
        known_at_s = done.t if report.ended_at_s is None else np.minimum(done.t, report.ended_at_s)
        total += np.interp(at_s, [report.started_at_s, *known_at_s], [0.0, *done.value])
    return total


def local(unix_s: float) -> datetime:
    """Return the local time without zone, as these tools write it."""
    return datetime.fromtimestamp(unix_s).astimezone().replace(tzinfo=None)


def text(value: float | None, digits: int = 6) -> str:
    """Return the number as text; empty if unknown."""
    return (
        ""
        if value is None or not np.isfinite(value)
        else f"{value:.{digits}f}".rstrip("0").rstrip(".")
    )

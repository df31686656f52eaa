"""Charts of the HTML page: lines, ranges of values, devices and time window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from analyzer.model.devices import Device
from analyzer.model.report import Report
from analyzer.model.samples import RunFrames, Samples, clean
from analyzer.output.lines import Points, with_neighbors

Kind = Literal["line", "second", "limit", "slot"]


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line; `device` is its position in the legend, None for lines of several devices."""

    name: str
    kind: Kind
    points: Points
    device: int | None = None


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Minimum, median and maximum of a line during the run."""

    name: str
    minimum: float
    median: float | None
    maximum: float


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart; `description` is its text alternative."""

    key: str
    title: str
    unit: str
    description: str
    lines: tuple[ChartLine, ...]
    ranges: tuple[ValueRange, ...] = ()
    note: str = ""


def legend_devices(report: Report) -> tuple[Device, ...]:
    return report.gpus or tuple(device for device in report.devices if device.component == "cpu")


def time_window_s(report: Report) -> tuple[float, float]:
    """Return the time window of the charts, in seconds since the start of the run."""
    pad_s = max(0.08 * report.duration_s, 2.0)
    return -pad_s, report.duration_s + pad_s


def device_gaps(report: Report, frames: RunFrames, device: Device) -> list[tuple[float, float]] | None:
    """Return gaps in the device's power, in seconds since the start of the run; None where its samples show them."""
    exact = frames.exact.get((device.instance, device.device))
    if exact is None:
        return None
    return [(gap.start_s - report.started_at_s, gap.end_s - report.started_at_s) for gap in exact.gaps]


def window_samples(rows: pd.DataFrame, report: Report) -> Samples:
    t_s = rows["t"].to_numpy(np.float64) - report.started_at_s
    return with_neighbors(clean(t_s, rows["value"].to_numpy(np.float64)), *time_window_s(report))

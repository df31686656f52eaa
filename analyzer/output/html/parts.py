"""What the page's charts are made of, and which devices and which time they show. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from analyzer.model.report import Device, Report
from analyzer.model.samples import RunFrames, Samples, clean
from analyzer.output.html.lines import Points, reaching

Kind = Literal["line", "second", "limit", "slot"]


@dataclass(frozen=True, slots=True)
class Line:
    """`device` is a position in the legend, None for what belongs to no one device."""

    name: str
    kind: Kind
    points: Points
    device: int | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """What a line showed while the run was on."""

    name: str
    least: str
    median: str
    most: str


@dataclass(frozen=True, slots=True)
class Chart:
    """`words` says what a reader who cannot see the chart would miss."""

    key: str
    title: str
    unit: str
    words: str
    lines: tuple[Line, ...]
    ranges: tuple[Range, ...] = ()
    note: str = ""


def shown(report: Report) -> tuple[Device, ...]:
    """The devices of the legend."""
    return report.gpus or tuple(device for device in report.devices if device.component == "cpu")


def window_s(report: Report) -> tuple[float, float]:
    """What the charts show, in seconds since the run's begin."""
    pad_s = max(0.08 * report.duration_s, 2.0)
    return -pad_s, report.duration_s + pad_s


def gaps_of(report: Report, frames: RunFrames, device: Device) -> list[tuple[float, float]] | None:
    """Where the device's power was not read, in seconds since the run's begin; None where its samples tell."""
    exact = frames.exact.get((device.instance, device.device))
    if exact is None:
        return None
    return [(gap.start_s - report.started_at_s, gap.end_s - report.started_at_s) for gap in exact.gaps]


def in_window(rows: pd.DataFrame, report: Report) -> Samples:
    t_s = rows["t"].to_numpy(np.float64) - report.started_at_s
    return reaching(clean(t_s, rows["value"].to_numpy(np.float64)), *window_s(report))

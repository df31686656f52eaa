"""Charts of the HTML page: power, temperature, clocks, utilization and memory of each device over
time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline.figures import significant_text
from wattline_analyzer.core import units
from wattline_analyzer.core.recorded_run import RecordedRun
from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.sample_table import SampleTable, rows_of
from wattline_analyzer.core.samples import Samples, rests_s
from wattline_analyzer.core.tables import Column, Table, figure_columns, number_cell, text_cell
from wattline_analyzer.report.chart import (
    Chart,
    ChartLine,
    Kind,
    Resolution,
    ValueRange,
    device_gaps,
    legend_devices,
    line_points,
    window_samples,
)
from wattline_analyzer.report.html.step_charts import carbon_chart, power_limit_lines

_POINTS_OF_ALL = 150_000
_POINTS = (200, 1_600)
"""Minimum and maximum of points of one line."""
_MOST_LIMITS = 4
"""Power limits that the text alternative names."""


@dataclass(frozen=True, slots=True)
class _Measure:
    """One kind of line: its samples, and its name among the lines of the chart."""

    metric: Metric
    labels: dict[str, str]
    name: str = ""
    kind: Kind = "line"


@dataclass(frozen=True, slots=True)
class _Plan:
    """One chart; a value times `factor` is in the chart's unit."""

    key: str
    title: str
    unit: str
    factor: float
    decimals: int
    measures: tuple[_Measure, ...]
    note: str = ""


_POWER = _Plan("power", "Power", "W", 1.0, 2, (_Measure(m.GPU_POWER, {}),))
_CPU_POWER = _Plan("power", "Power", "W", 1.0, 2, (_Measure(m.CPU_POWER, {"zone": "package"}),))
_PLANS = (
    _Plan(
        "temperature",
        "Temperature",
        "°C",
        1.0,
        1,
        (_Measure(m.GPU_TEMPERATURE, {"sensor": "gpu"}),),
    ),
    _Plan(
        *("clocks", "Clocks", "MHz", 1e-6, 1),
        (
            _Measure(m.GPU_CLOCK, {"domain": "sm"}, "SM"),
            _Measure(m.GPU_CLOCK, {"domain": "memory"}, "memory", "second"),
        ),
        "Solid: streaming multiprocessors (SM); dotted: memory.",
    ),
    _Plan(
        *("utilization", "Utilization", "%", 100.0, 1),
        (
            _Measure(m.GPU_UTILIZATION, {"engine": "gpu"}, "GPU"),
            _Measure(m.GPU_UTILIZATION, {"engine": "memory"}, "memory", "second"),
        ),
        "Solid: share of time with a kernel running; dotted: share of time with memory being read "
        "or written.",
    ),
    _Plan("memory", "Memory in use", "GiB", 2.0**-30, 2, (_Measure(m.GPU_MEMORY_USED, {}),)),
)


def report_charts(report: Report, recorded: RecordedRun, sensors: SampleTable) -> list[Chart]:
    """Return the charts that have samples. `sensors` is the table of
    `wattline_analyzer.core.runs.samples`.
    """
    plans = _PLANS if report.gpus else ()
    lines = len(legend_devices(report)) * (1 + sum(len(plan.measures) for plan in plans))
    points = int(np.clip(_POINTS_OF_ALL / max(lines, 1), *_POINTS))
    with_sensors = replace(recorded, raw=sensors)
    power = _power_chart(report, recorded, points)
    others = (_device_chart(plan, report, with_sensors, points) for plan in plans)
    found = [power, *(chart for chart in others if chart.lines)]
    return [*found, carbon_chart(report)] if report.carbon_slots else found


def chart_table(chart: Chart) -> Table:
    """Return minimum, median and maximum of each line of a chart during the run."""
    titles = (f"Minimum, {chart.unit}", f"Median, {chart.unit}", f"Maximum, {chart.unit}")
    rows = [
        [
            text_cell(one.name),
            *(number_cell(value) for value in (one.minimum, one.median, one.maximum)),
        ]
        for one in chart.ranges
    ]
    return Table(
        f"{chart.title} during the run",
        [Column("Device", text=True), *figure_columns(*titles)],
        rows,
    )


def _power_chart(report: Report, recorded: RecordedRun, points: int) -> Chart:
    chart = _device_chart(_POWER if report.gpus else _CPU_POWER, report, recorded, points)
    caps = tuple(power_limit_lines(report, recorded))
    text = chart.description if chart.lines else "No power samples of this run were found."
    text += "".join(f" {_limit_text(cap)}" for cap in caps)
    note = "Dashed: enforced power limit." if caps else ""
    return replace(chart, description=text, lines=(*chart.lines, *caps), note=note)


def _limit_text(cap: ChartLine) -> str:
    """Return `Power limit: 400.0, then 350.0 W.`"""
    steps = [significant_text(value) for value in cap.points[1] if value is not None]
    changes = [step for before, step in pairwise(["", *steps]) if step != before]
    more = " and more" if len(changes) > _MOST_LIMITS else ""
    return f"{cap.name[0].upper()}{cap.name[1:]}: {', then '.join(changes[:_MOST_LIMITS])} W{more}."


def _device_chart(plan: _Plan, report: Report, recorded: RecordedRun, points: int) -> Chart:
    found: dict[tuple[int, int], tuple[ChartLine, list[ValueRange]]] = {}
    for second, measure in enumerate(plan.measures):
        of_all = rows_of(recorded.raw, measure.metric, **measure.labels)
        for position, device in enumerate(legend_devices(report)):
            key = "uuid" if device.component == "gpu" else "package"
            rows = rows_of(of_all, measure.metric, **{key: device.device}, instance=device.instance)
            series = window_samples(rows, report)
            if len(series):
                name = f"{device.label}, {measure.name}" if measure.name else device.label
                name = units.marked(name, device.estimated)
                scaled = Samples(series.t, series.value * plan.factor)
                least_s = rests_s(device.instance, untagged=report.untagged)
                resolution = Resolution(points, plan.decimals)
                line = line_points(
                    scaled, resolution, device_gaps(report, recorded, device), least_s
                )
                during = series.between(0, report.duration_s)
                ranges = list(_ranges(name, during, plan.factor, downsampled=bool(recorded.exact)))
                found[position, second] = ChartLine(name, measure.kind, line, position), ranges
    lines = [found[key][0] for key in sorted(found)]
    ranges = [one for key in sorted(found) for one in found[key][1]]
    description = _description(plan, lines, ranges, report)
    return Chart(
        plan.key, plan.title, plan.unit, description, tuple(lines), tuple(ranges), plan.note
    )


def _ranges(
    name: str, series: Samples, factor: float, *, downsampled: bool
) -> Iterator[ValueRange]:
    """Yield the range of a line; downsampled series keep extremes and have no median."""
    if len(series):
        values = series.value * factor
        median = None if downsampled else float(np.median(values))
        yield ValueRange(name, float(values.min()), median, float(values.max()))


def _description(
    plan: _Plan, lines: list[ChartLine], ranges: list[ValueRange], report: Report
) -> str:
    devices = {line.device: line.name.partition(",")[0] for line in lines}
    names = f"{len(devices)} devices" if len(devices) != 1 else next(iter(devices.values()))
    values = [value for line in lines for value in line.points[1] if value is not None]
    if not ranges or not values:
        return f"{plan.title} of {names}, in {plan.unit}."
    low, high = (significant_text(float(x)) for x in (min(values), max(values)))
    return (
        f"{plan.title} of {names} over {units.duration(report.duration_s)}: from {low} to "
        f"{high} {plan.unit}."
    )

"""What the page's charts show: lines of each device over the time of the run, and each chart in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd

from analyzer.model.report import Report
from analyzer.model.samples import RunFrames, Samples, of, rests_s
from analyzer.output import units
from analyzer.output.html.lines import Fineness, drawn
from analyzer.output.html.parts import Chart, Kind, Line, Range, gaps_of, in_window, shown
from analyzer.output.html.steps import carbon, limits
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric

_POINTS_OF_ALL = 150_000
_POINTS = (200, 1_600)
"""Of one line: the least and the most."""
_TOLD = 4


@dataclass(frozen=True, slots=True)
class _Measure:
    """One kind of line: the samples it is drawn of, and what it is called beside others of its chart."""

    metric: Metric
    labels: dict[str, str]
    name: str = ""
    kind: Kind = "line"


@dataclass(frozen=True, slots=True)
class _Plan:
    """A value times `factor` is in the chart's unit."""

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
    _Plan("temperature", "Temperature", "°C", 1.0, 1, (_Measure(m.GPU_TEMPERATURE, {"sensor": "gpu"}),)),
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
        "Solid: share of the time in which a kernel ran; dotted: in which memory was read or written.",
    ),
    _Plan("memory", "Memory in use", "GB", 1e-9, 2, (_Measure(m.GPU_MEMORY_USED, {}),)),
)


def charts(report: Report, frames: RunFrames, sensors: pd.DataFrame) -> list[Chart]:
    """Those of which there are samples. `sensors` is the frame of `analyzer.sources.runs.samples`."""
    plans = _PLANS if report.gpus else ()
    lines = len(shown(report)) * (1 + sum(len(plan.measures) for plan in plans))
    points = int(np.clip(_POINTS_OF_ALL / max(lines, 1), *_POINTS))
    seen = replace(frames, raw=sensors)
    found = [_power(report, frames, points), *(_of_devices(plan, report, seen, points) for plan in plans)]
    found = [found[0], *(chart for chart in found[1:] if chart.lines)]
    return [*found, carbon(report)] if report.carbon_slots else found


def _power(report: Report, frames: RunFrames, points: int) -> Chart:
    chart = _of_devices(_POWER if report.gpus else _CPU_POWER, report, frames, points)
    caps = tuple(limits(report, frames))
    words = chart.words if chart.lines else "No power samples of this run were found."
    words += "".join(f" {_limit_words(cap)}" for cap in caps)
    note = "Dashed: the power limit in force." if caps else ""
    return replace(chart, words=words, lines=(*chart.lines, *caps), note=note)


def _limit_words(cap: Line) -> str:
    """`Power limit: 400.0, then 350.0 W.`"""
    steps = [units.number(value) for value in cap.points[1] if value is not None]
    changes = [step for before, step in pairwise(["", *steps]) if step != before]
    more = " and more" if len(changes) > _TOLD else ""
    return f"{cap.name[0].upper()}{cap.name[1:]}: {', then '.join(changes[:_TOLD])} W{more}."


def _of_devices(plan: _Plan, report: Report, frames: RunFrames, most: int) -> Chart:
    found: dict[tuple[int, int], tuple[Line, list[Range]]] = {}
    for second, measure in enumerate(plan.measures):
        of_all = of(frames.raw, measure.metric, **measure.labels)
        for position, device in enumerate(shown(report)):
            key = "uuid" if device.component == "gpu" else "package"
            rows = of(of_all, measure.metric, **{key: device.device}, instance=device.instance)
            series = in_window(rows, report)
            if len(series):
                name = f"{device.label}, {measure.name}" if measure.name else device.label
                name = units.marked(name, device.estimated)
                scaled = Samples(series.t, series.value * plan.factor)
                least_s = rests_s(device.instance, untagged=report.untagged)
                points = drawn(scaled, Fineness(most, plan.decimals), gaps_of(report, frames, device), least_s)
                during = series.between(0, report.duration_s)
                in_run = list(_ranges(name, during, plan.factor, thinned=bool(frames.exact)))
                found[position, second] = Line(name, measure.kind, points, position), in_run
    lines = [found[key][0] for key in sorted(found)]
    ranges = [one for key in sorted(found) for one in found[key][1]]
    words = _words(plan, lines, ranges, report)
    return Chart(plan.key, plan.title, plan.unit, words, tuple(lines), tuple(ranges), plan.note)


def _ranges(name: str, series: Samples, factor: float, *, thinned: bool) -> Iterator[Range]:
    """Samples that are left of a long run have its lowest and highest, and tell no median."""
    if len(series):
        values = series.value * factor
        middle = "" if thinned else units.number(float(np.median(values)))
        yield Range(name, units.number(float(values.min())), middle, units.number(float(values.max())))


def _words(plan: _Plan, lines: list[Line], ranges: list[Range], report: Report) -> str:
    devices = {line.device: line.name.partition(",")[0] for line in lines}
    many = f"{len(devices)} devices" if len(devices) != 1 else next(iter(devices.values()))
    values = [value for line in lines for value in line.points[1] if value is not None]
    if not ranges or not values:
        return f"{plan.title} of {many}, in {plan.unit}."
    low, high = (units.number(float(x)) for x in (min(values), max(values)))
    return f"{plan.title} of {many} over {units.duration(report.duration_s)}: from {low} to {high} {plan.unit}."

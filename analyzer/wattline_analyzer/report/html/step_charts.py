"""Phases, power limits and carbon intensity slots of the HTML page's charts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from wattline.contract import metrics as m
from wattline.figures import significant_text
from wattline_analyzer.core import units
from wattline_analyzer.core.phases import PhaseSpan, run_phase_spans
from wattline_analyzer.core.recorded_run import RecordedRun
from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.sample_table import rows_of
from wattline_analyzer.report.chart import (
    Chart,
    ChartLine,
    Points,
    Resolution,
    line_points,
    window_samples,
)

_MOST_SPANS = 120
"""Spans of phases that are shaded at most."""
_STEPS = 200


def phase_spans(report: Report, recorded: RecordedRun) -> list[PhaseSpan]:
    """Return the times of the phases from the start of the run, by the first instance; of very many
    the longest.
    """
    instance = min(report.instances)
    found = [
        PhaseSpan(span.phase, span.start_s - report.started_at_s, span.end_s - report.started_at_s)
        for span in run_phase_spans(recorded.scrapes, instance)
    ]
    longest = sorted(found, key=lambda span: span.start_s - span.end_s)[:_MOST_SPANS]
    return [
        PhaseSpan(span.phase, round(max(span.start_s, 0.0), 2), round(span.end_s, 2))
        for span in sorted(longest, key=lambda span: span.start_s)
    ]


def power_limit_lines(report: Report, recorded: RecordedRun) -> Iterator[ChartLine]:
    """Yield one line for all GPUs with the same limits over time."""
    same: defaultdict[tuple[Any, ...], list[str]] = defaultdict(list)
    steps: dict[tuple[Any, ...], Points] = {}
    for device in report.gpus:
        rows = rows_of(
            recorded.raw,
            m.GPU_POWER_LIMIT,
            uuid=device.device,
            instance=device.instance,
            kind="enforced",
        )
        series = window_samples(rows, report)
        times, values = line_points(
            series, Resolution(_STEPS, 1), gaps=()
        )  # a limit stays in force between samples
        if times:
            key = (*(round(t) for t in times), *values)  # nodes are scraped at different times
            same[key].append(device.label)
            steps.setdefault(key, (times, values))
    for key, labels in same.items():
        name = (
            f"limit, {', '.join(labels[:4])}{' …' if len(labels) > 4 else ''}"
            if len(same) > 1
            else "power limit"
        )
        yield ChartLine(name, "limit", steps[key])


def carbon_chart(report: Report) -> Chart:
    """Return the intensity of each slot, once per region."""
    slots: defaultdict[str, dict[float, tuple[float, float]]] = defaultdict(dict)
    for slot in report.carbon_slots:
        name = f"{slot.region}, {slot.basis}" if slot.region else slot.basis
        begin_s, end_s = (round(t_s - report.started_at_s, 2) for t_s in (slot.start_s, slot.end_s))
        slots[name][begin_s] = (end_s, slot.grams_per_kwh)
    lines = []
    for name, by_begin in slots.items():
        times: list[float] = []
        values: list[float | None] = []
        for begin_s, (end_s, intensity) in sorted(by_begin.items()):
            if times and begin_s > times[-1]:  # no slot covers this time
                times.append(begin_s)
                values.append(None)
            times += [begin_s, end_s]
            values += [round(intensity, 2)] * 2
        lines.append(ChartLine(name, "slot", (times, values)))
    grams = [slot.grams_per_kwh for slot in report.carbon_slots]
    description = (
        f"Carbon intensity of {len(report.carbon_slots)} slots over "
        f"{units.duration(report.duration_s)}: "
        f"from {significant_text(min(grams))} to {significant_text(max(grams))} g/kWh."
    )
    note = "The table of slots has the emissions of each."
    return Chart("carbon", "Carbon intensity", "g/kWh", description, tuple(lines), (), note)

"""Phases, power limits and carbon intensity slots of the HTML page's charts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from analyzer.energy import phases as phase_times
from analyzer.model.report import Report
from analyzer.model.samples import RunFrames, median_spacing_s, rows_of, samples
from analyzer.output import units
from analyzer.output.chart import Chart, ChartLine, Points, Resolution, line_points, window_samples
from exporter.contract import metrics as m

_MOST_SPANS = 120
"""Spans of phases that are shaded at most."""
_STEPS = 200


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    phase: str
    start_s: float
    end_s: float


def phase_spans(report: Report, frames: RunFrames) -> list[PhaseSpan]:
    """Return when each phase was active, from the first instance that reports it; of very many spans the longest."""
    found: list[PhaseSpan] = []
    resolution_s = 0.0
    for phase in report.phases:
        rows = rows_of(frames.ledger, m.RUN_PHASE_SECONDS, run_id=frames.run_id, phase=phase.name)
        for instance in sorted(rows["instance"].unique())[:1]:
            seconds = samples(rows, m.RUN_PHASE_SECONDS, instance=instance)
            spacing_s = median_spacing_s(seconds) or 0.0
            active = _joined(phase_times.active_spans(seconds), 0.5 * spacing_s)
            found += [
                PhaseSpan(phase.name, begin - report.started_at_s, end - report.started_at_s) for begin, end in active
            ]
            resolution_s = max(resolution_s, spacing_s)
    found.sort(key=lambda span: (span.start_s, span.end_s))
    if report.ended_at_s is not None:
        found = _in_time(found, report, resolution_s)
    longest = sorted(found, key=lambda span: span.start_s - span.end_s)[:_MOST_SPANS]
    return [
        PhaseSpan(span.phase, round(max(span.start_s, 0.0), 2), round(span.end_s, 2))
        for span in sorted(longest, key=lambda span: span.start_s)
    ]


def _in_time(spans: list[PhaseSpan], report: Report, resolution_s: float) -> list[PhaseSpan]:
    """Place the spans one before the other, backwards from the end of the run.

    The exporter updates a phase seconds late, once its energy is final, and all phases at the end of the run. So the
    length of a phase is known better than its time; the part that no sample showed belongs to its last span.
    """
    left_s = {phase.name: phase.duration_s for phase in report.phases}
    for span in spans:
        left_s[span.phase] -= span.end_s - span.start_s
    placed: list[PhaseSpan] = []
    for span, after in zip(reversed(spans), [None, *reversed(spans)], strict=False):
        pause_s = after.start_s - span.end_s if after else 0.0
        pause_s = pause_s if pause_s > resolution_s else 0.0
        end_s = placed[-1].start_s - pause_s if placed else min(span.end_s, report.duration_s)
        length_s = span.end_s - span.start_s + max(left_s.pop(span.phase, 0.0), 0.0)
        placed.append(PhaseSpan(span.phase, end_s - length_s, end_s))
    return placed[::-1]


def _joined(stretches: Iterable[tuple[float, float]], resolution_s: float) -> list[tuple[float, float]]:
    """Join stretches whose pause is below the resolution of the samples."""
    found: list[tuple[float, float]] = []
    for begin_s, end_s in stretches:
        goes_on = bool(found) and begin_s - found[-1][1] <= resolution_s
        found.append((found.pop()[0] if goes_on else begin_s, end_s))
    return found


def power_limit_lines(report: Report, frames: RunFrames) -> Iterator[ChartLine]:
    """Yield one line for all GPUs with the same limits over time."""
    same: defaultdict[tuple[Any, ...], list[str]] = defaultdict(list)
    steps: dict[tuple[Any, ...], Points] = {}
    for device in report.gpus:
        rows = rows_of(frames.raw, m.GPU_POWER_LIMIT, uuid=device.device, instance=device.instance, kind="enforced")
        series = window_samples(rows, report)
        times, values = line_points(series, Resolution(_STEPS, 1), gaps=())  # a limit stays in force between samples
        if times:
            key = (*(round(t) for t in times), *values)  # nodes are scraped at different times
            same[key].append(device.label)
            steps.setdefault(key, (times, values))
    for key, labels in same.items():
        name = f"limit, {', '.join(labels[:4])}{' …' if len(labels) > 4 else ''}" if len(same) > 1 else "power limit"
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
        f"Carbon intensity of {len(report.carbon_slots)} slots over {units.duration(report.duration_s)}: "
        f"from {units.number(min(grams))} to {units.number(max(grams))} g/kWh."
    )
    note = "The table of slots has the emissions of each."
    return Chart("carbon", "Carbon intensity", "g/kWh", description, tuple(lines), (), note)

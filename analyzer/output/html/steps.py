"""What the page's charts show in steps: phases, power limits, slots of carbon intensity. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from analyzer.energy import phases as phase_times
from analyzer.model.report import Report
from analyzer.model.samples import RunFrames, median_spacing_s, of, samples
from analyzer.output import units
from analyzer.output.html.lines import Fineness, Points, drawn
from analyzer.output.html.parts import Chart, Line, in_window
from exporter.contract import metrics as m

_SPANS = 120
"""Of phases; more would be a smear."""
_STEPS = 200


@dataclass(frozen=True, slots=True)
class Span:
    phase: str
    start_s: float
    end_s: float


def spans(report: Report, frames: RunFrames) -> list[Span]:
    """When each phase was on, on the first instance that tells; the longest where there are very many."""
    found: list[Span] = []
    unseen_s = 0.0
    for phase in report.phases:
        rows = of(frames.ledger, m.RUN_PHASE_SECONDS, run_id=frames.run_id, phase=phase.name)
        for instance in sorted(rows["instance"].unique())[:1]:
            seconds = samples(rows, m.RUN_PHASE_SECONDS, instance=instance)
            spacing_s = median_spacing_s(seconds) or 0.0
            mine = _joined(phase_times.stretches(seconds), 0.5 * spacing_s)
            found += [Span(phase.name, begin - report.started_at_s, end - report.started_at_s) for begin, end in mine]
            unseen_s = max(unseen_s, spacing_s)
    found.sort(key=lambda span: (span.start_s, span.end_s))
    if report.ended_at_s is not None:
        found = _in_time(found, report, unseen_s)
    longest = sorted(found, key=lambda span: span.start_s - span.end_s)[:_SPANS]
    return [
        Span(span.phase, round(max(span.start_s, 0.0), 2), round(span.end_s, 2))
        for span in sorted(longest, key=lambda span: span.start_s)
    ]


def _in_time(found: list[Span], report: Report, unseen_s: float) -> list[Span]:
    """Set one before the other, back from the run's end.

    The exporter tells of a phase once its energy is settled, seconds later, and at the run's end of all that was left
    at once. So how long a phase was on is known better than when: what it has more than was seen is of its last span.
    """
    left_s = {phase.name: phase.duration_s for phase in report.phases}
    for span in found:
        left_s[span.phase] -= span.end_s - span.start_s
    placed: list[Span] = []
    for span, after in zip(reversed(found), [None, *reversed(found)], strict=False):
        pause_s = after.start_s - span.end_s if after else 0.0
        pause_s = pause_s if pause_s > unseen_s else 0.0
        end_s = placed[-1].start_s - pause_s if placed else min(span.end_s, report.duration_s)
        length_s = span.end_s - span.start_s + max(left_s.pop(span.phase, 0.0), 0.0)
        placed.append(Span(span.phase, end_s - length_s, end_s))
    return placed[::-1]


def _joined(stretches: Iterable[tuple[float, float]], unseen_s: float) -> list[tuple[float, float]]:
    """A pause that is shorter than what the samples tell is none."""
    found: list[tuple[float, float]] = []
    for begin_s, end_s in stretches:
        goes_on = bool(found) and begin_s - found[-1][1] <= unseen_s
        found.append((found.pop()[0] if goes_on else begin_s, end_s))
    return found


def limits(report: Report, frames: RunFrames) -> Iterator[Line]:
    """A line for all GPUs whose limits were the same throughout."""
    same: defaultdict[tuple[Any, ...], list[str]] = defaultdict(list)
    steps: dict[tuple[Any, ...], Points] = {}
    for device in report.gpus:
        rows = of(frames.raw, m.GPU_POWER_LIMIT, uuid=device.device, instance=device.instance, kind="enforced")
        series = in_window(rows, report)
        times, values = drawn(series, Fineness(_STEPS, 1), gaps=())  # a limit holds while nobody looks
        if times:
            key = (*(round(t) for t in times), *values)  # nodes are not scraped at the same moment
            same[key].append(device.label)
            steps.setdefault(key, (times, values))
    for key, labels in same.items():
        whose = f"limit, {', '.join(labels[:4])}{' …' if len(labels) > 4 else ''}" if len(same) > 1 else "power limit"
        yield Line(whose, "limit", steps[key])


def carbon(report: Report) -> Chart:
    """The slots' intensities; nodes of one region show the same, once."""
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
            if times and begin_s > times[-1]:  # no slot was in force
                times.append(begin_s)
                values.append(None)
            times += [begin_s, end_s]
            values += [round(intensity, 2)] * 2
        lines.append(Line(name, "slot", (times, values)))
    grams = [slot.grams_per_kwh for slot in report.carbon_slots]
    words = (
        f"Carbon intensity of {len(report.carbon_slots)} slots over {units.duration(report.duration_s)}: "
        f"from {units.number(min(grams))} to {units.number(max(grams))} g/kWh."
    )
    note = "Each slot with its grams stands in the table below."
    return Chart("carbon", "Carbon intensity", "g/kWh", words, tuple(lines), (), note)

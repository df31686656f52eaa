"""Phases of a run: their times by the ledger, and measurable energies."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.power_sensors import sensor_window
from wattline.figures import Figure
from wattline_analyzer.core.devices import ReportDevice
from wattline_analyzer.core.recorded_run import RunScrapes
from wattline_analyzer.core.run_report import Finding, ReportPhase
from wattline_analyzer.core.sample_table import SampleTable, last, rows_of, samples
from wattline_analyzer.core.samples import Samples, clean, median_spacing_s
from wattline_analyzer.core.timeline import Window

FEWEST_UPDATES = 10
_USUAL_UPDATE_S = 0.1
_LEAST_RISE = 1e-6
_SLACK_S = 1e-9
_CLOCK_TOLERANCE_S = 5.0
"""Time before the start of the run in which no phase can have begun; see
`wattline_analyzer.report.clock`.
"""


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """Uninterrupted time of a phase, in Unix seconds."""

    phase: str
    start_s: float
    end_s: float


def run_phase_spans(scrapes: RunScrapes, instance: str) -> tuple[PhaseSpan, ...]:
    """Return the spans of all phases on one instance in time order, by the node's clock.

    A phase lasts until the next one starts or the run ends, so the exported starts determine the
    spans. A start that no sample has, since the phase started again before the next one, leaves a
    gap: no span is longer than the seconds of its phase. Exporters without starts export the
    seconds of a phase some seconds late; the spans are then placed backwards from the end.
    """
    window = scrapes.windows.get(instance)
    if window is None:
        return ()
    rows = rows_of(scrapes.times, m.RUN_PHASE_START, instance=instance)
    starts = sorted(
        {
            (round(value_s, 3), phase)
            for value_s, phase in zip(rows.value.tolist(), rows.texts("phase"), strict=True)
        }
    )
    seconds = rows_of(scrapes.times, m.RUN_PHASE_SECONDS, instance=instance)
    if not starts:
        return _spans_of_seconds(seconds, window)
    ends_s = [*(start_s for start_s, _ in starts[1:]), max(window.end_s, starts[-1][0])]
    most_s = (
        {row.labels["phase"]: row.value for row in last(seconds, m.RUN_PHASE_SECONDS)}
        if window.ended
        else {}
    )
    return tuple(
        PhaseSpan(phase, start_s, min(end_s, start_s + most_s.get(phase, math.inf)))
        for (start_s, phase), end_s in zip(starts, ends_s, strict=True)
    )


def _spans_of_seconds(rows: SampleTable, window: Window) -> tuple[PhaseSpan, ...]:
    found: list[PhaseSpan] = []
    resolution_s = 0.0
    for phase in rows.distinct("phase"):
        seconds = samples(rows, m.RUN_PHASE_SECONDS, phase=phase)
        spacing_s = median_spacing_s(seconds) or 0.0
        resolution_s = max(resolution_s, spacing_s)
        active = _joined(active_spans(seconds), 0.5 * spacing_s)
        if active and active[0][0] >= window.start_s - _CLOCK_TOLERANCE_S:
            found += [PhaseSpan(phase, start_s, end_s) for start_s, end_s in active]
    found.sort(key=lambda span: (span.start_s, span.end_s))
    if not window.ended:
        return tuple(found)
    totals_s = {row.labels["phase"]: row.value for row in last(rows, m.RUN_PHASE_SECONDS)}
    return tuple(_placed(found, totals_s, window.end_s, resolution_s))


def _placed(
    found: Sequence[PhaseSpan], totals_s: Mapping[str, float], end_s: float, resolution_s: float
) -> list[PhaseSpan]:
    """Return the spans one before the other, backwards from the end of the run.

    The length of a phase is known better than its time; the part that no sample showed belongs to
    its last span.
    """
    left_s = dict(totals_s)
    for span in found:
        left_s[span.phase] -= span.end_s - span.start_s
    placed: list[PhaseSpan] = []
    for span, after in zip(reversed(found), [None, *reversed(found)], strict=False):
        pause_s = after.start_s - span.end_s if after else 0.0
        pause_s = pause_s if pause_s > resolution_s else 0.0
        until_s = placed[-1].start_s - pause_s if placed else min(span.end_s, end_s)
        length_s = span.end_s - span.start_s + max(left_s.pop(span.phase, 0.0), 0.0)
        placed.append(PhaseSpan(span.phase, until_s - length_s, until_s))
    return placed[::-1]


def _joined(
    stretches: Iterable[tuple[float, float]], resolution_s: float
) -> list[tuple[float, float]]:
    """Join stretches whose pause is below the resolution of the samples."""
    found: list[tuple[float, float]] = []
    for start_s, end_s in stretches:
        continues = bool(found) and start_s - found[-1][1] <= resolution_s
        found.append((found.pop()[0] if continues else start_s, end_s))
    return found


def active_spans(seconds: Samples) -> list[tuple[float, float]]:
    """Return the spans in which a phase was active, in the time of the samples.

    `seconds` is `wattline_run_phase_seconds_total` of one phase. It rises by 1 per second of the
    active phase, but may be exported some seconds late: a rise by more than the time between two
    samples began before the first one. A span that starts between two samples ends at the second
    one.
    """
    found: list[tuple[float, float]] = []
    if not len(seconds):
        return found
    times = seconds.t
    values = seconds.value
    if values[0] > _LEAST_RISE:
        found.append((float(times[0] - values[0]), float(times[0])))
    for position in range(1, len(times)):
        rise_s = float(values[position] - values[position - 1])
        if rise_s <= _LEAST_RISE:
            continue
        before_s = float(times[position - 1])
        now_s = float(times[position])
        if found and found[-1][1] >= before_s:
            found[-1] = (found[-1][0], max(found[-1][1], min(before_s + rise_s, now_s)))
        else:
            found.append((max(now_s - rise_s, found[-1][1]) if found else now_s - rise_s, now_s))
    return found


def phase_span(spans: Iterable[PhaseSpan], phase: str) -> tuple[float, float] | None:
    """Return the phase's first start and last end; None if it was never active."""
    own = [span for span in spans if span.phase == phase]
    return (own[0].start_s, own[-1].end_s) if own else None


def rise_limits(
    counter: Samples,
    moments: tuple[float, float],
    points: tuple[tuple[float, float], ...] = (),
    age_s: float = 0.0,
) -> Figure:
    """Return the rise of a counter between two moments, with its limits: the samples before and
    after each moment.

    `points` are additional known pairs (t, value). The counter is constant before the first and
    after the last value. A sample may be older than its time by `age_s`.
    """
    more_t = np.array([t for t, _ in points])
    more_value = np.array([value for _, value in points])
    line = clean(np.concatenate([more_t, counter.t]), np.concatenate([more_value, counter.value]))
    if not len(line):
        return Figure(0.0, 0.0)
    begin, end = np.interp(moments, line.t, line.value)
    latest = line.value[np.maximum(np.searchsorted(line.t, moments, "right") - 1, 0)]
    oldest_s = np.maximum.accumulate(line.t - age_s * ~np.isin(line.t, more_t))
    following = line.value[np.minimum(np.searchsorted(oldest_s, moments, "left"), len(line) - 1)]
    limits = max(float(latest[1] - following[0]), 0.0), float(following[1] - latest[0])
    return Figure(float(end - begin), skewed=limits)


def measurable_phases(
    phases: Sequence[ReportPhase], devices: Sequence[ReportDevice], working: Collection[str] = ()
) -> tuple[tuple[ReportPhase, ...], list[Finding]]:
    """Return the phases without GPU energies of those shorter than ten sensor updates, and a
    finding about them.

    Below ten updates the uncertainty of start and end is most of the energy. Where some phases are
    `working`, a missing energy of the others is no finding.
    """
    least_s = {"gpu": shortest_phase_s(devices)}
    kept = tuple(_measurable(phase, least_s) for phase in phases)
    refused = [
        before for before, after in zip(phases, kept, strict=True) if before.energy != after.energy
    ]
    missed = [phase for phase in refused if not working or phase.name in working]
    if not missed:
        return kept, []
    longest_s = max(phase.duration_s for phase in missed)
    named = ", ".join(phase.name for phase in missed)
    text = (
        f"no GPU energy for the phase{'s' if len(missed) > 1 else ''} {named} (at most "
        f"{longest_s:.2f} s): the sensor "
        f"updates every {least_s['gpu'] / FEWEST_UPDATES:g} s, and below {FEWEST_UPDATES} updates "
        "start and end "
        "dominate the uncertainty; "
        f"make such phases {least_s['gpu']:g} s or longer, or repeat them within one phase"
    )
    return kept, [Finding("note", "phase_too_short", "", text)]


def shortest_phase_s(devices: Sequence[ReportDevice]) -> float:
    """Return the shortest phase with a GPU energy: ten updates of the slowest sensor among the
    GPUs.
    """
    windows = [
        sensor_window(device.name, device.architecture)
        for device in devices
        if device.component == "gpu"
    ]
    updates_s = (window.update_s if window else _USUAL_UPDATE_S for window in windows)
    return FEWEST_UPDATES * max(updates_s, default=_USUAL_UPDATE_S)


def _measurable(phase: ReportPhase, least_s: Mapping[str, float]) -> ReportPhase:
    known = {
        component: energy
        for component, energy in phase.energy.items()
        if phase.duration_s >= least_s.get(component, 0.0) - _SLACK_S
    }
    return replace(phase, energy=known)

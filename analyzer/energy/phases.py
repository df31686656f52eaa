"""Phases of a run: active times from their counters of seconds, and measurable energies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from analyzer.model.devices import MeasuredDevice
from analyzer.model.report import Finding, RunPhase
from analyzer.model.samples import Samples, clean
from exporter.contract.power_sensors import sensor_window

FEWEST_UPDATES = 10
_USUAL_UPDATE_S = 0.1
_LEAST_RISE = 1e-6
_SLACK_S = 1e-9


def active_spans(seconds: Samples) -> list[tuple[float, float]]:
    """Return the spans in which a phase was active, in the time of the samples.

    `seconds` is `wattline_run_phase_seconds_total` of one phase. It rises by 1 per second of the active phase, but may
    be exported some seconds late: a rise by more than the time between two samples began before the first one. A span
    that starts between two samples ends at the second one.
    """
    found: list[tuple[float, float]] = []
    if not len(seconds):
        return found
    times, values = seconds.t, seconds.value
    if values[0] > _LEAST_RISE:
        found.append((float(times[0] - values[0]), float(times[0])))
    for position in range(1, len(times)):
        rise_s = float(values[position] - values[position - 1])
        if rise_s <= _LEAST_RISE:
            continue
        before_s, now_s = float(times[position - 1]), float(times[position])
        if found and found[-1][1] >= before_s:
            found[-1] = (found[-1][0], max(found[-1][1], min(before_s + rise_s, now_s)))
        else:
            found.append((max(now_s - rise_s, found[-1][1]) if found else now_s - rise_s, now_s))
    return found


def phase_span(seconds: Samples) -> tuple[float, float] | None:
    """Return the phase's first start and last end; None if it was never active."""
    spans = active_spans(seconds)
    return (spans[0][0], spans[-1][1]) if spans else None


def rise_between(counter: Samples, moments: tuple[float, float], points: tuple[tuple[float, float], ...] = ()) -> float:
    """Return the rise of a counter between two moments, interpolated between samples.

    `points` are additional known pairs (t, value). The counter is constant before the first and after the last value.
    """
    more_t, more_value = np.array([t for t, _ in points]), np.array([value for _, value in points])
    line = clean(np.concatenate([more_t, counter.t]), np.concatenate([more_value, counter.value]))
    if not len(line):
        return 0.0
    begin, end = np.interp(moments, line.t, line.value)
    return float(end - begin)


def measurable_phases(
    phases: Sequence[RunPhase], devices: Sequence[MeasuredDevice], working: Collection[str] = ()
) -> tuple[tuple[RunPhase, ...], list[Finding]]:
    """Return the phases without GPU energies of those shorter than ten sensor updates, and a finding about them.

    Below ten updates the uncertainty of start and end is most of the energy. Where some phases are `working`, a
    missing energy of the others is no finding.
    """
    least_s = {"gpu": shortest_phase_s(devices)}
    kept = tuple(_measurable(phase, least_s) for phase in phases)
    refused = [before for before, after in zip(phases, kept, strict=True) if before.energy != after.energy]
    missed = [phase for phase in refused if not working or phase.name in working]
    if not missed:
        return kept, []
    longest_s = max(phase.duration_s for phase in missed)
    named = ", ".join(phase.name for phase in missed)
    text = (
        f"no GPU energy for the phase{'s' if len(missed) > 1 else ''} {named} (at most {longest_s:.2f} s): the sensor "
        f"updates every {least_s['gpu'] / FEWEST_UPDATES:g} s, and below {FEWEST_UPDATES} updates start and end "
        "dominate the uncertainty; "
        f"make such phases {least_s['gpu']:g} s or longer, or repeat them within one phase"
    )
    return kept, [Finding("note", "phase_too_short", "", text)]


def shortest_phase_s(devices: Sequence[MeasuredDevice]) -> float:
    """Return the shortest phase with a GPU energy: ten updates of the slowest sensor among the GPUs."""
    windows = [sensor_window(device.name, device.architecture) for device in devices if device.component == "gpu"]
    updates_s = (window.update_s if window else _USUAL_UPDATE_S for window in windows)
    return FEWEST_UPDATES * max(updates_s, default=_USUAL_UPDATE_S)


def _measurable(phase: RunPhase, least_s: Mapping[str, float]) -> RunPhase:
    known = {
        component: energy
        for component, energy in phase.energy.items()
        if phase.duration_s >= least_s.get(component, 0.0) - _SLACK_S
    }
    return replace(phase, energy=known)

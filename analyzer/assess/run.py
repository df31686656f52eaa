"""From a run's frames to its report. Pure.

The headline is the ledger's figure: the exporter marked the run's begin and end on the sensor's own energy line, which
no scrape can do as well. The analyzer's own figure from raw samples stands beside it as a check.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from analyzer.assess import imported, supplied
from analyzer.carbon import checks as carbon_quality
from analyzer.carbon import emissions as carbon
from analyzer.carbon import intensity
from analyzer.energy import calibration, clock, devices, short_phases
from analyzer.energy.checks import Finding
from analyzer.model import timeline
from analyzer.model.interval import Interval, total, total_limits
from analyzer.model.report import Device, Phase, Report, Work
from analyzer.model.samples import RunFrames, last, of
from analyzer.model.user_inputs import NOTHING, Given
from exporter.contract import metrics as m

COMPONENTS = ("gpu", "cpu", "dram")
_WHOLE = 0.99
"""Phases that take more of a run than this are the run: its interval is the narrower one."""
_SLIVER = 0.01
"""So small a part of the work was reported a moment late, after the end of the phase in which it was done."""
_LEVELS = ("bad", "warning", "note")


class NoEnergyError(Exception):
    """The run is there, but none of its devices has an energy, or none its begin."""


def assess(frames: RunFrames, given: Given = NOTHING) -> Report:
    """Raises NoEnergyError, and CalibrationError where what is given fits none of the GPUs."""
    frames, findings = without_aliases(frames)
    frames, windows, clock_findings = clock.judged(frames, timeline.windows(frames))
    found, device_findings = devices.assess_devices(frames, windows)
    if not found:
        raise NoEnergyError(f"no {m.RUN_ENERGY.selector(run_id=frames.run_id)} at {frames.source}")
    worked = {
        row.labels["phase"] for row in last(frames.ledger, m.RUN_PHASE_WORK, run_id=frames.run_id) if row.value > 0
    }
    report, phase_findings = short_phases.without_energy(_measured(frames, windows, found), worked)
    emissions = carbon.counted(frames, report.energy, report.estimated)
    if given.grams_per_kwh is not None:
        emissions += carbon.from_energy(report.energy, given.grams_per_kwh, report.estimated)
    report = replace(
        report,
        work=tuple(_work(frames, report)),
        emissions=tuple(emissions),
        carbon_slots=tuple(_slots(frames, windows, report)),
    )
    report = supplied.completed(report, frames, windows, given)
    report = calibration.applied(report, given.calibrations) if given.calibrations else report
    about_carbon = carbon_quality.findings(frames, report, windows)
    about_carbon += supplied.findings(report, given)
    about_run = [*_run_findings(report), *imported.findings(report), *findings, *clock_findings, *phase_findings]
    about_run += calibration.findings(report, given.calibrations) if given.calibrations else []
    return replace(report, findings=ordered([*about_run, *device_findings, *about_carbon]))


def _slots(frames: RunFrames, windows: Mapping[str, timeline.Window], report: Report) -> list[intensity.CarbonSlot]:
    gpu_energy_j = {
        instance: math.fsum(device.energy.value for device in report.gpus if device.instance == instance)
        for instance in report.instances
    }
    lines = devices.energy_lines(frames, list(report.devices))
    windows_s = {instance: (window.start_s, window.end_s) for instance, window in windows.items()}
    return intensity.slots(frames.raw, gpu_energy_j, lines, windows_s)


def _measured(frames: RunFrames, windows: Mapping[str, timeline.Window], found: list[Device]) -> Report:
    """The report without work, emissions and findings, which need the rest of it."""
    gpus = [device for device in found if device.component == "gpu"]
    ended = all(window.ended for window in windows.values())
    info = last(frames.ledger, m.RUN_INFO, run_id=frames.run_id)
    labels = {name: text for row in info for name, text in row.labels.items()}
    outcomes = [row.labels["outcome"] for row in last(frames.ledger, m.RUN_OUTCOME, run_id=frames.run_id)]
    results = last(frames.ledger, m.RUN_RESULT, run_id=frames.run_id)
    return Report(
        run_id=frames.run_id,
        source=frames.source,
        workload=labels.get("workload", ""),
        labels={name.removeprefix("label_"): text for name, text in labels.items() if name.startswith("label_")},
        instances=tuple(sorted(windows)),
        simulated=any(device.name.startswith(devices.SIMULATED) for device in gpus),
        outcome=next((outcome for outcome in ("failed", "interrupted", "ok") if outcome in outcomes), None),
        started_at_s=min(window.start_s for window in windows.values()),
        ended_at_s=max(window.end_s for window in windows.values()) if ended else None,
        duration_s=clock.duration_s(windows),
        devices=tuple(found),
        energy=_by_component(found),
        own=total_limits(d.own for d in gpus if d.own) if gpus and all(d.own for d in gpus) else None,
        integral_j=_sum_known([device.integral_j for device in gpus]),
        net=total(d.net for d in gpus if d.net) if gpus and all(d.net for d in gpus) else None,
        work=(),
        phases=tuple(_phases(frames, {device.component for device in found if device.estimated})),
        results={row.labels["name"]: row.value for row in results},
        emissions=(),
        carbon_slots=(),
        findings=(),
    )


def _by_component(found: list[Device]) -> dict[str, Interval]:
    return {
        component: total(device.energy for device in found if device.component == component)
        for component in COMPONENTS
        if any(device.component == component for device in found)
    }


def _sum_known(values: Iterable[float | None]) -> float | None:
    """None where one is not known, or there is none."""
    parts = list(values)
    known = [part for part in parts if part is not None]
    return math.fsum(known) if known and len(known) == len(parts) else None


def _work(frames: RunFrames, report: Report) -> list[Work]:
    """Each instance counts the contributors that reported to it, so work adds over instances."""
    amounts: defaultdict[str, float] = defaultdict(float)
    for row in last(frames.ledger, m.RUN_WORK, run_id=frames.run_id):
        amounts[row.labels["unit"]] += row.value
    done_in: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in last(frames.ledger, m.RUN_PHASE_WORK, run_id=frames.run_id):
        done_in[row.labels["unit"]][row.labels["phase"]] += row.value
    return [_work_of(report, unit, amount, done_in[unit]) for unit, amount in sorted(amounts.items())]


def _work_of(report: Report, unit: str, amount: float, done_in: Mapping[str, float]) -> Work:
    """What was warm-up, or loading, is no part of the energy of a token: where all of the work was done in phases that
    are known, its energy and its rate are those of these phases. While a run is on, its phases lag behind its work.
    """
    ended = report.ended_at_s is not None
    slivers = _slivers(done_in, amount)
    phases = [p for p in report.phases if ended and done_in.get(p.name, 0.0) > 0 and p.name not in slivers]
    duration_s, energy = report.duration_s, report.headline
    component = next(iter(report.energy), "")
    known = math.isclose(math.fsum(done_in.values()), amount, rel_tol=1e-6) and all(
        component in p.energy for p in phases
    )
    in_phases_s = math.fsum(phase.duration_s for phase in phases)
    if phases and known and in_phases_s < _WHOLE * report.duration_s:
        duration_s, energy = in_phases_s, total(phase.energy[component] for phase in phases)
    else:
        phases = []
    return Work(
        unit,
        amount,
        amount / duration_s if duration_s > 0 else None,
        energy.scaled(1 / amount) if energy and amount > 0 else None,
        tuple(phase.name for phase in phases),
    )


def _slivers(done_in: Mapping[str, float], amount: float) -> set[str]:
    """The phases of least work, as many as have no more than a sliver of it together."""
    found, left = set(), _SLIVER * amount
    for name, done in sorted(done_in.items(), key=lambda item: item[1]):
        left -= done
        if left < 0:
            break
        found.add(name)
    return found


def _phases(frames: RunFrames, estimated: AbstractSet[str]) -> list[Phase]:
    """In the order in which they were first seen; a phase on several instances lasts as long as on the slowest.

    `estimated` components have no interval: a model's error is not that of a sensor.
    """
    every = of(frames.ledger, m.RUN_PHASE_SECONDS, run_id=frames.run_id).sort_values(["t", "phase"])
    seconds = dict.fromkeys(every["phase"], 0.0)
    for row in last(frames.ledger, m.RUN_PHASE_SECONDS, run_id=frames.run_id):
        seconds[row.labels["phase"]] = max(row.value, seconds[row.labels["phase"]])
    parts: defaultdict[str, defaultdict[str, list[Interval]]] = defaultdict(lambda: defaultdict(list))
    halves_j = {
        (row.instance, row.labels["phase"], row.labels["component"]): row.value
        for row in last(frames.ledger, m.RUN_PHASE_ENERGY_UNCERTAINTY, run_id=frames.run_id)
        if row.labels["component"] not in estimated
    }
    for row in last(frames.ledger, m.RUN_PHASE_ENERGY, run_id=frames.run_id):
        phase, component = row.labels["phase"], row.labels["component"]
        parts[phase][component].append(Interval(row.value, halves_j.get((row.instance, phase, component))))
    return [
        Phase(name, duration_s, {component: total(energies) for component, energies in parts[name].items()})
        for name, duration_s in seconds.items()
    ]


def _run_findings(report: Report) -> list[Finding]:
    findings = []
    if report.simulated:
        names = sorted({device.name for device in report.gpus})
        text = f"SIMULATED hardware ({', '.join(names)}): the figures show that the path works, not what a GPU draws"
        findings.append(Finding("warning", "simulated", "", text))
    if report.ended_at_s is None:
        text = "the run's end has not been seen: the figures are those of its last scrape"
        findings.append(Finding("warning", "not_ended", "", text))
    if report.outcome in ("failed", "interrupted"):
        findings.append(Finding("warning", "outcome", "", f"the run {report.outcome}: its work may not be whole"))
    return findings


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """The worst first; a text that holds for several devices stands once, with all of them as its subject."""
    subjects: dict[Finding, list[str]] = {}
    for finding in sorted(findings, key=lambda finding: _LEVELS.index(finding.level)):
        subjects.setdefault(replace(finding, subject=""), []).append(finding.subject)
    return tuple(replace(finding, subject=", ".join(filter(None, names))) for finding, names in subjects.items())


def without_aliases(frames: RunFrames) -> tuple[RunFrames, list[Finding]]:
    """One exporter scraped under two addresses looks like two nodes: only the first is counted.

    It has the same GPUs, or where it has none, began the run at the same microsecond. The nodes of an untagged range
    have been told apart already.
    """
    if frames.untagged:
        return frames, []
    rows = last(frames.ledger, m.RUN_GPU_INFO, run_id=frames.run_id)
    marks = [(row.instance, row.labels["uuid"]) for row in rows]
    begun = last(frames.ledger, m.RUN_START, run_id=frames.run_id)
    marks += [(row.instance, repr(row.value)) for row in begun if row.instance not in dict(marks)]
    owner: dict[str, str] = {}
    aliases = {
        instance: first for instance, mark in sorted(marks) if (first := owner.setdefault(mark, instance)) != instance
    }
    findings = [
        Finding(
            "warning",
            "alias",
            alias,
            f"has the same GPUs or begin as {first}, so it is the same node and is not counted again",
        )
        for alias, first in aliases.items()
    ]
    return replace(frames, ledger=frames.ledger[~frames.ledger["instance"].isin(list(aliases))]), findings

"""Phases too short for their energy to be told: below ten updates of the sensor, their edges are most of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from analyzer.energy.checks import Finding
from analyzer.model.report import Phase, Report
from exporter.contract.power_sensors import sensor_window

FEWEST_UPDATES = 10
_USUAL_S = 0.1
_SLACK = 1e-9


def without_energy(report: Report, worked: Collection[str] = ()) -> tuple[Report, list[Finding]]:
    """The report without the energies of phases that are too short, and why.

    Where some phases have `worked`, the others are what is around the work, and theirs is missed by nobody.
    """
    least_s = {"gpu": FEWEST_UPDATES * _update_s(report)}
    phases = tuple(_judged(phase, least_s) for phase in report.phases)
    refused = [before for before, after in zip(report.phases, phases, strict=True) if before.energy != after.energy]
    missed = [phase for phase in refused if not worked or phase.name in worked]
    if not missed:
        return replace(report, phases=phases), []
    longest_s = max(phase.duration_s for phase in missed)
    named = ", ".join(phase.name for phase in missed)
    text = (
        f"no GPU energy is told of the phase{'s' if len(missed) > 1 else ''} {named} (at most {longest_s:.2f} s): the "
        f"sensor updates each {_update_s(report):g} s, and below {FEWEST_UPDATES} updates a phase's begin and end are "
        f"most of it; make such phases {least_s['gpu']:g} s or longer, or repeat them within one phase"
    )
    return replace(report, phases=phases), [Finding("note", "phase_too_short", "", text)]


def _update_s(report: Report) -> float:
    """Of the slowest sensor among the run's GPUs."""
    seen = [sensor_window(gpu.name, gpu.architecture) for gpu in report.gpus]
    return max((one.update_s if one else _USUAL_S for one in seen), default=_USUAL_S)


def _judged(phase: Phase, least_s: Mapping[str, float]) -> Phase:
    known = {
        component: energy
        for component, energy in phase.energy.items()
        if phase.duration_s >= least_s.get(component, 0.0) - _SLACK
    }
    return replace(phase, energy=known)

"""Energies of an imported run: its file's counters, else the integral of power."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from wattline.contract import metrics as m
from wattline_analyzer.core.integrate import SENSOR_S
from wattline_analyzer.core.samples import GAP_FACTOR
from wattline_analyzer.importers.content import FileContent, FileRun, UnreadableError
from wattline_analyzer.importers.series import ImportedGpu, ImportedSeries
from wattline_analyzer.importers.spool import StoredSamples, merge_by_time


@dataclass(frozen=True, slots=True)
class RunDeviceEnergy:
    """Energy of one device over a run; for an integral, `covered_ratio` is the part of the run with
    samples.
    """

    component: str
    device: str
    energy_j: float
    method: str
    half_j: float | None = None
    covered_ratio: float | None = None
    spacing_s: float | None = None
    max_w: float | None = None


def counted_energies(
    file_run: FileRun, gpus: Sequence[ImportedGpu], content: FileContent
) -> dict[tuple[str, str], RunDeviceEnergy]:
    """Return the energies of the file's own counters. Raises UnreadableError for two energies of
    one device.
    """
    found: dict[tuple[str, str], RunDeviceEnergy] = {}
    for energy in file_run.energies:
        key = energy.component, _device(energy.device, gpus)
        if key in found:
            raise UnreadableError(
                f"cannot import {content.path}: {key[0].upper()} {energy.device} has two energies; "
                "write one energy for each device"
            )
        found[key] = RunDeviceEnergy(*key, energy.energy_j, energy.method, energy.half_j)
    return found


def _device(named: str, gpus: Sequence[ImportedGpu]) -> str:
    return next((gpu.uuid for gpu in gpus if named in (gpu.index, gpu.uuid)), named)


def powers_of(
    series: Sequence[ImportedSeries], gpus: Sequence[ImportedGpu]
) -> dict[tuple[str, str], StoredSamples]:
    uuids = {gpu.uuid for gpu in gpus}
    found = {}
    for one in series:
        if one.metric is m.GPU_POWER and one.labels["uuid"] in uuids:
            found["gpu", one.labels["uuid"]] = one.samples
        elif one.metric is m.CPU_POWER:
            component = "dram" if one.labels["zone"] == "dram" else "cpu"
            found[component, one.labels["package"]] = one.samples
    return found


def integrate_power(
    key: tuple[str, str], power: StoredSamples, file_run: FileRun
) -> RunDeviceEnergy | None:
    """Return the energy from power samples, None if fewer than two samples touch the run."""
    start_s = file_run.start_s
    end_s = file_run.end_s
    whole_s = power.spacing_s
    if whole_s is None:
        return None
    spacing_s = power.spacing_between_s(start_s, end_s) or whole_s
    found = power.integral(
        start_s, end_s, max(GAP_FACTOR * whole_s, GAP_FACTOR * spacing_s, SENSOR_S)
    )
    if found.covered_s <= 0:
        return None
    return RunDeviceEnergy(
        *key,
        found.energy_j,
        "integral",
        covered_ratio=min(found.covered_s / (end_s - start_s), 1.0),
        spacing_s=spacing_s,
        max_w=power.highest(start_s, end_s),
    )


def phase_energies(
    file_run: FileRun, powers: Mapping[tuple[str, str], StoredSamples]
) -> dict[str, dict[str, float]]:
    """Return joules by phase and component; phases without full coverage by samples are left out.

    The energy of a phase that occurs several times is the sum.
    """
    sums: dict[str, dict[str, float]] = {}
    uncovered: set[tuple[str, str]] = set()
    for phase in file_run.phases:
        for key, power in powers.items():
            span = replace(file_run, start_s=phase.start_s, end_s=phase.end_s)
            found = integrate_power(key, power, span) if phase.end_s > phase.start_s else None
            if found is None or (found.covered_ratio or 0.0) < 0.99:
                uncovered.add((phase.name, key[0]))
                continue
            by_component = sums.setdefault(phase.name, {})
            by_component[key[0]] = by_component.get(key[0], 0.0) + found.energy_j
    return {
        name: {
            component: joules
            for component, joules in parts.items()
            if (name, component) not in uncovered
        }
        for name, parts in sums.items()
    }


def wall_energy(series: Sequence[ImportedSeries], file_run: FileRun) -> RunDeviceEnergy | None:
    """Return the sum of the wall meters' energies; logs that follow each other count as one meter.

    The covered ratio is the lowest of all meters.
    """
    walls = sorted(
        (one for one in series if one.metric is m.HWMON_POWER), key=lambda one: one.samples.ends_s
    )
    meters: list[list[ImportedSeries]] = []
    for one in walls:
        before = (logs for logs in meters if logs[-1].samples.ends_s[1] < one.samples.ends_s[0])
        meter = next(before, None)
        if meter is None:
            meters.append(meter := [])
        meter.append(one)
    found = [
        integrate_power(
            ("wall", ""), merge_by_time([log.samples for log in logs]).samples, file_run
        )
        for logs in meters
    ]
    known = [one for one in found if one is not None]
    if not known:
        return None
    ratios = [0.0 if one is None else one.covered_ratio or 0.0 for one in found]
    names = ", ".join(one.labels["sensor"] for one in walls)
    device = f"sum of {names}" if len(walls) > 1 else names
    return replace(
        known[0],
        device=device,
        energy_j=math.fsum(one.energy_j for one in known),
        covered_ratio=min(ratios),
    )

"""Energy, attributed energy and power of each device, and energy by phase."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from wattline.contract.api import MAX_PHASES
from wattline_analyzer.core import units
from wattline_analyzer.core.devices import ReportDevice
from wattline_analyzer.core.integrate import IDLE_SECONDS
from wattline_analyzer.core.phases import FEWEST_UPDATES, shortest_phase_s
from wattline_analyzer.core.run_report import FORMAT_LABEL, Report
from wattline_analyzer.core.tables import (
    ABSENT,
    Cell,
    Column,
    Table,
    Value,
    bound_cell,
    duration_cell,
    energy_cell,
    joules_cell,
    power_cell,
    ratio_cell,
    text_cell,
    watts_cell,
)
from wattline_analyzer.report.devices import POLICIES

_INTERVAL = ", 95 % CI"
_COLUMNS = (
    Column("Instance", "instance", text=True),
    Column("Component", "component", text=True),
    Column("Device ID", "device", text=True),
    Column("Device", "label", text=True, whole=True),
    Column("Name", "name", text=True),
    Column(f"Energy{_INTERVAL}", "energy_joules", "uncertainty"),
    Column("From raw samples", "raw_samples_energy_joules", "bounds"),
    Column("Integral of power", "integrated_energy_joules"),
    Column("Idle power", "idle_power_watts", "uncertainty"),
    Column("Net of idle", "net_of_idle_energy_joules", "uncertainty"),
    Column("Mean power", "mean_power_watts", "uncertainty"),
    Column("Peak power", "max_power_watts"),
    Column("Power limit", "power_limit_watts"),
    Column("Covered", "covered_ratio"),
    Column("Shared", "shared_with_other_runs", text=True),
    Column("Method", "energy_method", text=True),
    Column("Estimate", "estimate", text=True),
    Column("Divided", "divided", text=True),
    *(Column(policy, f"attributed_energy_{policy}_joules") for policy in POLICIES),
)
_ENERGY = (
    *(
        "label",
        "energy_joules",
        "raw_samples_energy_joules",
        "integrated_energy_joules",
        "covered_ratio",
    ),
    "energy_method",
)
_POWER = (
    *("label", "mean_power_watts", "max_power_watts", "power_limit_watts", "idle_power_watts"),
    *("net_of_idle_energy_joules", "name"),
)
_LEAST_REST_S = 0.005
"""Shorter times outside the phases are rounding."""
_ATTRIBUTED = (
    "label",
    "energy_joules",
    *(f"attributed_energy_{policy}_joules" for policy in POLICIES),
)


def device_records(report: Report) -> list[dict[str, Value]]:
    """Return one record per device for JSON and CSV."""
    return _table(report.devices).records()


def energy_table(report: Report) -> Table:
    of_component = {
        name: [one for one in report.devices if one.component == name] for name in report.energy
    }
    sums = {name: energy for name, energy in report.energy.items() if len(of_component[name]) > 1}
    largest_j = units.largest(
        [
            *sums.values(),
            *(
                value
                for one in report.devices
                for value in (one.energy, one.from_raw_samples, one.integral_j)
            ),
        ]
    )
    totals = [
        [
            text_cell(f"{name.upper()}, total"),
            energy_cell(energy, largest_j, estimated=name in report.estimated),
            bound_cell(report.energies.from_raw_samples if name == "gpu" else None, largest_j),
            joules_cell(report.energies.integral_j if name == "gpu" else None, largest_j),
            *(Cell(), Cell()),
        ]
        for name, energy in sums.items()
    ]
    note = (
        "Energy: ledger of the exporter, ± half-width of the 95 % CI. From raw samples: lower and "
        "upper bound for "
        "counters that are updated every 0.1 s."
    )
    if FORMAT_LABEL in report.labels:
        note = (
            "Energy: computed from the imported file; the 95 % CI of an integral is for power that "
            "changes between "
            "samples."
        )
    if report.untagged:
        note = (
            "Energy: raw samples of an untagged range; the bounds allow for the age of each sample."
        )
    if all(device.energy.half_width is None for device in report.devices):
        note = note.replace(", ± half-width of the 95 % CI", "")
    table = _table(report.devices, largest_j).select("Energy by device", _ENERGY, (note,))
    return replace(table, totals=totals)


def attribution_table(report: Report) -> Table | None:
    """Return the run's part of devices that other runs used as well."""
    divided = [device for device in report.devices if device.divided]
    if not divided:
        return None
    notes = [f"{policy}: {meaning}." for policy, meaning in POLICIES.items()]
    table = _table(divided, units.largest(device.energy for device in divided))
    return table.select("Energy attributed to the run", _ATTRIBUTED, notes)


def power_table(report: Report) -> Table:
    table = _table(report.devices, units.largest(device.net for device in report.devices))
    return table.select("Power by device", _POWER, list(_unknown_idle(report)))


def _unknown_idle(report: Report) -> Iterator[str]:
    """Yield why the idle power of GPUs is unknown; a finding says so for untagged ranges."""
    lacking = [gpu for gpu in report.gpus if gpu.idle_power_w is None and not report.untagged]
    shared = ", ".join(gpu.label for gpu in lacking if gpu.shared)
    busy = ", ".join(gpu.label for gpu in lacking if not gpu.shared)
    if shared:
        yield f"Idle power of {shared} is unknown: other runs used it at the same time."
    if busy:
        yield (
            f"Idle power of {busy} is unknown: no {IDLE_SECONDS:.0f} idle seconds in a row were "
            "sampled right before or after the run."
        )


def _table(devices: Sequence[ReportDevice], largest_j: float | None = None) -> Table:
    """Return every column; energies in the unit that fits `largest_j`."""
    known = any(device.energy.half_width is not None for device in devices)
    columns = [
        one if known else replace(one, title=one.title.removesuffix(_INTERVAL)) for one in _COLUMNS
    ]
    return Table("Devices", columns, [_row(device, largest_j) for device in devices])


def _row(device: ReportDevice, largest_j: float | None) -> list[Cell]:
    methods = ", ".join(device.methods)
    idle = device.idle_power_w
    shared = "shared" if device.component == "gpu" else "whole node"
    energy = energy_cell(device.energy, largest_j, estimated=device.estimated)
    return [
        *(
            text_cell(text)
            for text in (
                device.instance,
                device.component,
                device.device,
                device.label,
                device.name,
            )
        ),
        replace(energy, note=shared if device.shared else ""),
        bound_cell(device.from_raw_samples, largest_j),
        joules_cell(device.integral_j, largest_j),
        power_cell(idle, shows_half=False),
        energy_cell(device.net, largest_j, least_digits=False),
        power_cell(device.mean_power_w, estimated=device.estimated),
        watts_cell(device.max_power_w),
        watts_cell(device.power_limit_w),
        ratio_cell(device.covered_ratio),
        _flag(device.shared),
        text_cell(methods) if methods else Cell(),
        _flag(device.estimated),
        _flag(device.divided),
        *(
            joules_cell(device.attributed_j.get(policy), largest_j, estimated=device.estimated)
            for policy in POLICIES
        ),
    ]


def _flag(value: bool) -> Cell:
    return Cell("yes" if value else "no", value)


def phase_table(report: Report) -> Table | None:
    if not report.phases:
        return None
    columns = [
        Column("Phase", text=True),
        Column("Duration"),
        *(Column(f"Energy, {component.upper()}") for component in report.energy),
    ]
    largest_j = {
        name: units.largest(phase.energy.get(name) for phase in report.phases)
        for name in report.energy
    }
    rows = [
        [
            text_cell(phase.name),
            duration_cell(phase.duration_s),
            *(
                energy_cell(
                    phase.energy.get(name), largest_j[name], estimated=name in report.estimated
                )
                for name in report.energy
            ),
        ]
        for phase in report.phases
    ]
    return Table("Phases", columns, rows, notes=tuple(_phase_notes(report)))


def _phase_notes(report: Report) -> Iterator[str]:
    """Yield why energies are absent, and the time outside the phases."""
    least_s = shortest_phase_s(report.devices)
    absent = [
        (phase, name)
        for phase in report.phases
        for name in report.energy
        if name not in phase.energy
    ]
    too_short = [name == "gpu" and phase.duration_s < least_s for phase, name in absent]
    if any(too_short):
        yield (
            f"{ABSENT}: shorter than {least_s:g} s, which is {FEWEST_UPDATES} updates of the "
            "GPU's sensor."
        )
    if not all(too_short):
        yield (
            f"{ABSENT}{' in other rows' if any(too_short) else ''}: the exporter recorded no "
            "energy."
        )
    is_full = len(report.phases) >= MAX_PHASES
    rest_s = report.duration_s - math.fsum(phase.duration_s for phase in report.phases)
    if rest_s >= _LEAST_REST_S and report.ended_at_s is None:
        yield (
            f"Not in any phase yet: {units.duration(rest_s)}; the exporter counts phases 6 s "
            "later than energy."
        )
    elif rest_s >= _LEAST_REST_S:
        limit = (
            f" A run has at most {MAX_PHASES} phases; further ones are not counted."
            if is_full
            else ""
        )
        yield f"Not in any phase: {units.duration(rest_s)} of the run.{limit}"

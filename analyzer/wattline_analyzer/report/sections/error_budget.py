"""Uncertainty budget and calibrated energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from wattline.contract.work import unit_of_one
from wattline.figures import Figure, error_limits_text, half_width_text
from wattline_analyzer.core import units
from wattline_analyzer.core.devices import CalibratedGpu, ReportDevice, UncertaintyBudget
from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.tables import (
    Cell,
    Column,
    Table,
    energy_cell,
    energy_per_unit_cell,
    figure_columns,
    text_cell,
)
from wattline_analyzer.report import error_budget as budget

_ADVICE = {
    "sensor": (
        "Largest part: sensor error. It is the same in every run on a GPU, so comparisons on one "
        "GPU are more accurate "
        "than this. With a reference meter it can be corrected (--calibration)."
    ),
    "aliasing": "Largest part: aliasing between load and sensor. Repeat the run with random start "
    "delays.",
    "gaps": "Largest part: gaps between samples. Log without interruption, or use an energy "
    "counter.",
    "sampling": "Largest part: sampling interval. Sample faster, or run longer.",
    "edges": "Largest part: start and end of the run. Run longer, or average repeats.",
}
_CALIBRATED = (
    "Largest part: residual of the calibration. It is the same in every run on a GPU, so "
    "comparisons on one GPU are "
    "more accurate than this."
)

_TITLES = (
    *(
        "Start/end, 95 % CI",
        "Sampling, 95 % CI",
        "Combined, 95 % CI",
        "Gaps",
        "Sensor",
        "Aliasing, at most",
    ),
)


def budget_table(report: Report) -> Table | None:
    """Return the random parts, with a 95 % CI, and the parts that have limits only."""
    known = [
        (device.label, report.budgets[device.key])
        for device in report.devices
        if device.key in report.budgets
    ]
    if not known:
        return None
    whole = _all_gpus(report)
    lines = [*known, *([("GPUs, total", whole)] if whole and len(report.gpus) > 1 else [])]
    notes: list[str] = []
    if report.simulated:
        notes.append("Simulated sensors have no error.")
    advice = _advice(report)
    if advice:
        notes.append(advice)
    largest_j = [
        units.largest(parts) for parts in zip(*(_sizes_j(one) for _, one in lines), strict=True)
    ]
    columns = [Column("Device", text=True, whole=True), *figure_columns(*_TITLES)]
    rows = [[text_cell(name), *_cells(one, largest_j)] for name, one in lines]
    table = Table("Uncertainty budget", columns, rows, notes=notes).without_empty_columns()
    if len(table.columns) == 1:
        return None
    return replace(
        table, notes=[*_column_notes([column.title for column in table.columns]), *notes]
    )


def _column_notes(titles: Sequence[str]) -> list[str]:
    """Return which columns are random errors with a 95 % CI, and which are limits."""
    random = [title.removesuffix(", 95 % CI") for title in titles if title.endswith(", 95 % CI")]
    limits = [
        title.removesuffix(", at most")
        for title in titles
        if title in ("Gaps", "Sensor", _TITLES[-1])
    ]
    notes = [f"Random errors, with a 95 % CI: {', '.join(random)}."] if random else []
    return notes + ([f"Limits outside the 95 % CI: {', '.join(limits)}."] if limits else [])


def _all_gpus(report: Report) -> UncertaintyBudget | None:
    known = [report.budgets[gpu.key] for gpu in report.gpus if gpu.key in report.budgets]
    return budget.total_budget(known) if known and len(known) == len(report.gpus) else None


def _overall(report: Report) -> UncertaintyBudget | None:
    return _all_gpus(report) or next(iter(report.budgets.values()), None)


def _advice(report: Report) -> str | None:
    """Return how to reduce the largest part; a calibrated sensor is not sent to calibration
    again.
    """
    overall = _overall(report)
    if overall is None or overall.largest is None:
        return None
    return (
        _CALIBRATED
        if overall.largest == "sensor" and overall.residual_j is not None
        else _ADVICE[overall.largest]
    )


def _sizes_j(one: UncertaintyBudget) -> tuple[float | None, ...]:
    """Return the size of each part, in the order of the columns."""
    gaps_j, sensor_j = (
        None if limits is None else units.largest(limits) for limits in (one.gaps_j, one.sensor_j)
    )
    sensor_j = sensor_j if one.residual_j is None else one.residual_j
    return one.edges_j, one.sampling_j, one.random_j, gaps_j, sensor_j, one.aliasing_j


def _cells(one: UncertaintyBudget, largest_j: Sequence[float]) -> list[Cell]:
    edges_j, sampling_j, random_j, gaps_j, sensor_j, aliasing_j = largest_j
    calibrated = _half_cell(one.residual_j, one.energy_j, sensor_j, ", calibrated")
    return [
        _half_cell(one.edges_j, one.energy_j, edges_j),
        _half_cell(one.sampling_j, one.energy_j, sampling_j),
        _half_cell(
            None if None in (one.edges_j, one.sampling_j) else one.random_j, one.energy_j, random_j
        ),
        _limits_cell(one.gaps_j, one.energy_j, gaps_j),
        _limits_cell(one.sensor_j, one.energy_j, sensor_j)
        if one.residual_j is None
        else calibrated,
        _half_cell(one.aliasing_j, one.energy_j, aliasing_j),
    ]


def _half_cell(half_j: float | None, energy_j: float, largest_j: float, remark: str = "") -> Cell:
    """Return `± 12 J (0.4 %)`."""
    if half_j is None:
        return Cell()
    return Cell(f"{half_width_text(half_j, energy_j, largest_j)}{remark}", half_j, "J")


def _limits_cell(limits_j: tuple[float, float] | None, energy_j: float, largest_j: float) -> Cell:
    """Return `-180 to +380 J (8 %)`, sorted by the limit that is farther from zero."""
    if limits_j is None:
        return Cell()
    text = error_limits_text(limits_j, energy_j, largest_j)
    return Cell(text, max(map(abs, limits_j)), "J", low=limits_j[0], high=limits_j[1])


def calibration_table(report: Report) -> Table | None:
    """Return the energy as read, which stays the headline, and the calibrated energy."""
    found = report.calibrated
    if found is None:
        return None
    calibrated = [(gpu, found.gpus[gpu.key]) for gpu in report.gpus if gpu.key in found.gpus]
    read = report.energy.get("gpu")
    both = (read, found.energy) if found.energy and read and len(calibrated) > 1 else ()
    largest_j = units.largest(
        [*both, *(value for gpu, one in calibrated for value in (gpu.energy, one.energy))]
    )
    rows = [_calibration_row(gpu, one, largest_j) for gpu, one in calibrated]
    if both:
        rows.append(
            [text_cell("GPUs, total"), *(energy_cell(one, largest_j) for one in both), *_blank()]
        )
    for unit, energy in found.per_unit.items():
        read_each = next(work.energy_per_unit for work in report.work if work.unit == unit)
        rows.append([text_cell(f"per {unit_of_one(unit)}"), *_each(read_each, energy), *_blank()])
    columns = [
        *(Column("Device", text=True, whole=True), *figure_columns("As read", "Calibrated")),
        *(
            Column(title, text=True)
            for title in ("Gain, offset", "Residual uncertainty", "Reference")
        ),
    ]
    note = (
        "All other figures of this report are as read. Calibrated = (energy - offset × time) / "
        "gain."
    )
    return Table("Calibrated energy", columns, rows, notes=(note,))


def _blank() -> list[Cell]:
    return [Cell("")] * 3


def _each(read: Figure | None, calibrated: Figure) -> list[Cell]:
    largest_j = units.largest([read, calibrated])
    return [energy_per_unit_cell(one, largest_j) for one in (read, calibrated)]


def _calibration_row(gpu: ReportDevice, calibrated: CalibratedGpu, largest_j: float) -> list[Cell]:
    used = calibrated.calibration
    residual = (
        "unknown" if used.uncertainty_percent is None else f"± {used.uncertainty_percent:g} %"
    )
    return [
        text_cell(gpu.label),
        energy_cell(gpu.energy, largest_j),
        energy_cell(calibrated.energy, largest_j),
        *map(text_cell, (f"{used.gain:g}, {used.offset_w:+g} W", residual, used.source)),
    ]


def budget_record(report: Report) -> dict[str, Any]:
    """Return the uncertainty budget for the JSON document."""
    overall = _overall(report)
    return {
        "devices": [
            {"device": key.device, "instance": key.instance, **_record(budget)}
            for key, budget in report.budgets.items()
        ],
        "gpu": _record(whole) if (whole := _all_gpus(report)) else None,
        "largest_part": overall.largest if overall else None,
        "advice": _advice(report),
    }


def _record(one: UncertaintyBudget) -> dict[str, float | None]:
    gaps_j = one.gaps_j or (None, None)
    sensor_j = one.sensor_j or (None, None)
    return {
        "edges_uncertainty_joules": one.edges_j,
        "sampling_uncertainty_joules": one.sampling_j,
        "random_uncertainty_joules": one.random_j,
        "gaps_low_joules": gaps_j[0],
        "gaps_high_joules": gaps_j[1],
        "sensor_low_joules": sensor_j[0],
        "sensor_high_joules": sensor_j[1],
        "aliasing_limit_joules": one.aliasing_j,
        "calibration_residual_joules": one.residual_j,
    }


def calibration_record(report: Report) -> dict[str, Any] | None:
    """Return the calibrated energy for the JSON document."""
    calibrated = report.calibrated
    if calibrated is None:
        return None
    energy = Column("", "energy_joules", "uncertainty")
    return {
        **energy.record(energy_cell(calibrated.energy)),
        "energy_per_unit": {
            unit: energy.record(energy_cell(each)) for unit, each in calibrated.per_unit.items()
        },
        "devices": [
            {
                "device": key.device,
                "instance": key.instance,
                "gain": one.calibration.gain,
                "offset_watts": one.calibration.offset_w,
                "uncertainty_percent": one.calibration.uncertainty_percent,
                "source": one.calibration.source,
                **energy.record(energy_cell(one.energy)),
            }
            for key, one in calibrated.gpus.items()
        ],
    }

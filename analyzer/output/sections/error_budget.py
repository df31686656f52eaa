"""The error budget and the calibrated energy, as parts of the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analyzer.energy import error_budget as budget
from analyzer.energy.error_budget import Budget
from analyzer.model.interval import Interval
from analyzer.model.report import Device, Report
from analyzer.output import units
from analyzer.output.keys import quantity
from analyzer.output.sections.base import Section

_ADVICE = {
    "sensor": (
        "its sensor's own error is the largest part: it is the same in every run on a card, so that comparisons on one "
        "card are surer than this; against an external meter it can be taken off (--calibration)"
    ),
    "aliasing": "that the load's period may fool the sensor is the largest part: repeat at random delays",
    "gaps": "what was not sampled is the largest part: keep the log going, or read a counter, which bridges gaps",
    "sampling": "what happened between samples is the largest part: sample faster, or run longer",
    "edges": "the run's begin and end are the largest part: run longer, or repeat and average",
}
_CALIBRATED = (
    "what the calibration leaves uncertain is the largest part: it is the same in every run on a card, so that "
    "comparisons on one card are surer than this"
)
_COLUMNS = ("device", "edges, 95 %", "sampling, 95 %", "both, 95 %", "gaps", "sensor", "aliasing, at most")


def budget_section(report: Report) -> Section | None:
    """The random parts, whose interval is 95 %, apart from limits and from what is systematic."""
    known = [(device.label, device.budget) for device in report.devices if device.budget]
    if not known:
        return None
    whole = _whole(report)
    rows = [*known, *([("GPUs together", whole)] if whole and len(report.gpus) > 1 else [])]
    note = "edges and sampling are random; gaps, sensor and aliasing have limits, which no interval holds"
    if report.simulated:
        note += "; simulated sensors have no error of their own"
    advice = _advice(report)
    of = _Largest(*(units.largest(parts) for parts in zip(*(_parts(one) for _, one in rows), strict=True)))
    columns, cells = _filled(_COLUMNS, [(name, *_row(one, of)) for name, one in rows])
    return Section("How sure", columns, cells, f"{note}; {advice}" if advice else note)


def _filled(
    columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Without the columns in which nothing stands."""
    kept = [at for at in range(len(columns)) if any(row[at] != "–" for row in rows)]
    return tuple(columns[at] for at in kept), tuple(tuple(row[at] for at in kept) for row in rows)


def _whole(report: Report) -> Budget | None:
    known = [gpu.budget for gpu in report.gpus if gpu.budget]
    return budget.total(known) if known and len(known) == len(report.gpus) else None


def _judged(report: Report) -> Budget | None:
    return _whole(report) or next((device.budget for device in report.devices if device.budget), None)


def _advice(report: Report) -> str | None:
    """On the largest part; a card that was held against a meter already is not sent there again."""
    found = _judged(report)
    if found is None or found.largest is None:
        return None
    return _CALIBRATED if found.largest == "sensor" and found.residual_j is not None else _ADVICE[found.largest]


@dataclass(frozen=True, slots=True)
class _Largest:
    """Of each column, in joules: what its unit is chosen by."""

    edges_j: float
    sampling_j: float
    random_j: float
    gaps_j: float
    sensor_j: float
    aliasing_j: float


def _parts(one: Budget) -> tuple[float | None, ...]:
    """As of `_Largest`."""
    gaps_j, sensor_j = (None if limits is None else units.largest(limits) for limits in (one.gaps_j, one.sensor_j))
    sensor_j = sensor_j if one.residual_j is None else one.residual_j
    return one.edges_j, one.sampling_j, one.random_j, gaps_j, sensor_j, one.aliasing_j


def _row(one: Budget, of: _Largest) -> tuple[str, ...]:
    return (
        _either(one.edges_j, one.energy_j, of.edges_j),
        _either(one.sampling_j, one.energy_j, of.sampling_j),
        "–" if None in (one.edges_j, one.sampling_j) else _either(one.random_j, one.energy_j, of.random_j),
        _limits(one.gaps_j, one.energy_j, of.gaps_j),
        _limits(one.sensor_j, one.energy_j, of.sensor_j)
        if one.residual_j is None
        else f"{_either(one.residual_j, one.energy_j, of.sensor_j)}, calibrated",
        _either(one.aliasing_j, one.energy_j, of.aliasing_j),
    )


def _either(part_j: float | None, energy_j: float, of_j: float) -> str:
    """`± 12 J (0.4 %)`."""
    if part_j is None:
        return "–"
    unit, joules = units.energy_unit(of_j)
    return f"± {_two_digits(part_j / joules)} {unit}{_percent(part_j, energy_j)}"


def _limits(limits_j: tuple[float, float] | None, energy_j: float, of_j: float) -> str:
    """`-180 to +380 J`."""
    if limits_j is None:
        return "–"
    unit, joules = units.energy_unit(of_j)
    low, high = (f"{_signed(limit / joules)}" for limit in limits_j)
    widest_j = max(limits_j, key=abs)
    return f"{low} to {high} {unit}{_percent(widest_j, energy_j)}"


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{_two_digits(abs(value))}" if value else "0"


def _percent(part_j: float, energy_j: float) -> str:
    return f" ({_two_digits(100 * abs(part_j) / energy_j)} %)" if energy_j > 0 else ""


def _two_digits(value: float) -> str:
    """No error is known to more."""
    if value <= 0:
        return "0"
    decimals = 1 - math.floor(math.log10(value))
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def calibrated_section(report: Report) -> Section | None:
    """A second figure: the headline stays what was read."""
    cards = [gpu for gpu in report.gpus if gpu.calibrated]
    if not cards:
        return None
    found = report.calibrated
    read = report.energy.get("gpu")
    both = (read, found.energy) if found and found.energy and read and len(cards) > 1 else ()
    of = units.largest([*both, *(value for gpu in cards for value in (gpu.energy, gpu.calibrated))])
    rows = [_card(gpu, of) for gpu in cards]
    if both:
        rows.append(("GPUs together", *(units.energy(one, of) for one in both), "", "", ""))
    for unit, energy in (found.per_unit if found else {}).items():
        of_work = next(work.energy_per_unit for work in report.work if work.unit == unit)
        each = units.largest([of_work, energy])
        was = _joules_each(of_work, unit, each) if of_work else "–"
        rows.append((f"per {units.singular(unit)}", was, _joules_each(energy, unit, each), "", "", ""))
    columns = ("device", "as read", "calibrated", "gain, offset", "left uncertain", "source")
    note = "all other figures of this report are as read; calibrated: (energy - offset × time) / gain"
    return Section("Calibrated energy", columns, tuple(rows), note)


def _joules_each(energy: Interval, unit: str, of: float) -> str:
    return units.energy_per_unit(energy, unit, of).partition(" per ")[0]


def _card(gpu: Device, of: float) -> tuple[str, ...]:
    card, energy = gpu.calibration, gpu.calibrated
    if card is None or energy is None:
        return (gpu.label, units.energy(gpu.energy, of), "–", "", "", "")
    left = "not known" if card.uncertainty_percent is None else f"± {card.uncertainty_percent:g} %"
    how = f"{card.gain:g}, {card.offset_w:+g} W"
    return (gpu.label, units.energy(gpu.energy, of), units.energy(energy, of), how, left, card.source or "–")


def budget_data(report: Report) -> dict[str, Any]:
    """For the JSON document."""
    found = _judged(report)
    return {
        "devices": [
            {"device": device.device, "instance": device.instance, **_data(device.budget)}
            for device in report.devices
            if device.budget
        ],
        "gpu": _data(whole) if (whole := _whole(report)) else None,
        "largest_part": found.largest if found else None,
        "advice": _advice(report),
    }


def _data(one: Budget) -> dict[str, float | None]:
    gaps_j, sensor_j = one.gaps_j or (None, None), one.sensor_j or (None, None)
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


def calibrated_data(report: Report) -> dict[str, Any] | None:
    found = report.calibrated
    if found is None:
        return None
    return {
        **quantity(found.energy, "energy", "joules"),
        "energy_per_unit": {unit: quantity(energy, "energy", "joules") for unit, energy in found.per_unit.items()},
        "devices": [
            {
                "device": gpu.device,
                "instance": gpu.instance,
                "gain": gpu.calibration.gain,
                "offset_watts": gpu.calibration.offset_w,
                "uncertainty_percent": gpu.calibration.uncertainty_percent,
                "source": gpu.calibration.source,
                **quantity(gpu.calibrated, "energy", "joules"),
            }
            for gpu in report.gpus
            if gpu.calibration
        ],
    }

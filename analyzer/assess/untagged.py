"""What a report of an untagged range says besides: which figures are of a part of it, and its findings. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from analyzer.assess.boundaries import GENERATED, PROMPT, TOTAL
from analyzer.assess.run import ordered
from analyzer.carbon.sci import widened as unsure
from analyzer.energy.checks import Finding
from analyzer.model.interval import Interval
from analyzer.model.report import Device, Report

_FAR = 0.2
_JUDGED_FROM = 1_000
"""So many samples in a range make the integral of scraped power a check of the counter; of few it is off by itself."""


def told(
    report: Report, findings: tuple[Finding, ...], cut: AbstractSet[tuple[str, str]], spacing_s: float | None
) -> Report:
    """`cut` are devices, by instance and name, whose samples end within the range: the bound over all of it is none."""
    few = spacing_s is None or report.duration_s < _JUDGED_FROM * spacing_s
    kept = [one for one in report.findings if not (few and one.code == "counter_integral_apart")]
    devices = tuple(
        replace(device, own=None) if (device.instance, device.device) in cut else device for device in report.devices
    )
    partly = {device.component for device in report.devices if (device.instance, device.device) in cut}
    work = _work_findings(partly) if report.work and partly else []
    work += [found for device in devices if few and spacing_s and (found := _implausible(device, spacing_s))]
    report = _without_units(report, partly) if partly else report
    return replace(
        report,
        devices=devices,
        own=None if cut else report.own,
        untagged=True,
        findings=ordered([*kept, *findings, *work]),
    )


def widened(report: Report, limits: Mapping[str, tuple[float, float]]) -> Report:
    """The energy of a unit is as unsure as the energy, and as the work, which the servers' scrapes limit."""
    both = [limits[unit] for unit in (GENERATED, PROMPT) if unit in limits]
    limits = {**limits, TOTAL: (math.fsum(low for low, _ in both), math.fsum(high for _, high in both))}
    amounts = {one.unit: one.amount for boundary in report.boundaries for one in boundary.work}
    amounts |= {one.unit: one.amount for one in report.work}

    def of(unit: str, joules: Interval) -> Interval:
        return unsure(joules, amounts[unit], limits.get(unit)) if unit in amounts else joules

    return replace(
        report,
        work=tuple(
            replace(one, energy_per_unit=of(one.unit, one.energy_per_unit)) if one.energy_per_unit else one
            for one in report.work
        ),
        boundaries=tuple(
            replace(
                one,
                work=tuple(replace(each, energy_per_unit=of(each.unit, each.energy_per_unit)) for each in one.work),
            )
            for one in report.boundaries
        ),
        sci=tuple(replace(one, limits=limits) for one in report.sci),
        calibrated=replace(
            report.calibrated, per_unit={unit: of(unit, joules) for unit, joules in report.calibrated.per_unit.items()}
        )
        if report.calibrated
        else None,
    )


def _without_units(report: Report, partly: AbstractSet[str]) -> Report:
    """The work is that of all of the range: over the energy of a part of it a unit would come out too cheap."""
    wrong = {one.name for one in report.boundaries if partly & set(one.components)}
    found = replace(
        report,
        boundaries=tuple(replace(one, work=()) if one.name in wrong else one for one in report.boundaries),
        sci=tuple(replace(one, amounts=()) if one.boundary in wrong else one for one in report.sci),
    )
    if next(iter(report.energy), "") not in partly:
        return found
    calibrated = replace(report.calibrated, per_unit={}) if report.calibrated else None
    work = tuple(replace(one, energy_per_unit=None) for one in report.work)
    return replace(found, work=work, calibrated=calibrated)


def _implausible(device: Device, spacing_s: float) -> Finding | None:
    """A counter that stands still, or is in another unit: its energy is further from the integral of scraped power than
    four times the standard deviation of a mean of so many samples, each between nothing and the highest.
    """
    if device.integral_j is None or not device.max_power_w or not {"counter"} & set(device.methods):
        return None
    apart_j = abs(device.energy.value - device.integral_j)
    by_chance_j = 2 * device.max_power_w * math.sqrt(device.duration_s * spacing_s)
    if apart_j <= max(_FAR * max(device.energy.value, device.integral_j), by_chance_j):
        return None
    text = (
        f"its counter rose by {device.energy.value:.0f} J, and power as it was scraped makes {device.integral_j:.0f} "
        "J, which the scrape interval does not explain: the counter stands still, is not supported or in another "
        "unit; do not use this energy, and see whether another exporter has the card (--schema)"
    )
    return Finding("bad", "counter_implausible", device.label, text)


def _work_findings(partly: AbstractSet[str]) -> list[Finding]:
    names = " and ".join(name.upper() for name in sorted(partly))
    text = (
        f"the work is that of all of the range, the energy of {names} that of a part of it: no energy per unit is "
        "told; choose --start and --end within the samples"
    )
    return [Finding("warning", "units_uncovered", "", text)]

"""Report of a time range without a run: partial figures, uncertainty of the work, findings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from wattline.figures import Figure
from wattline_analyzer.core.emissions import Sci, widened_by_amount
from wattline_analyzer.core.run_report import (
    Boundary,
    BoundaryUnitEnergy,
    Calibrated,
    Finding,
    Report,
    Work,
    ordered_findings,
)
from wattline_analyzer.report.boundaries import GENERATED, PROMPT, TOTAL

_JUDGED_FROM = 1_000
"""With fewer samples the error of the integral of scraped power is too large to check a counter
with it.
"""


@dataclass(frozen=True, slots=True)
class RangeQuality:
    """Quality of a range's samples.

    `cut` are the devices, by instance and name, whose samples end within the range; `spacing_s` is
    the longest median spacing of a device. `work_limits` are the limits of the work by unit, from
    the servers' scrapes.
    """

    findings: tuple[Finding, ...]
    cut: AbstractSet[tuple[str, str]]
    spacing_s: float | None
    work_limits: Mapping[str, tuple[float, float]]


def range_report(report: Report, quality: RangeQuality) -> Report:
    """Return the report without figures that the samples of the range do not support."""
    few = quality.spacing_s is None or report.duration_s < _JUDGED_FROM * quality.spacing_s
    partial = frozenset(
        device.component
        for device in report.devices
        if (device.instance, device.device) in quality.cut
    )
    devices = tuple(
        replace(device, from_raw_samples=None)
        if (device.instance, device.device) in quality.cut
        else device
        for device in report.devices
    )
    named = {
        finding.subject for finding in quality.findings if finding.code == "counter_implausible"
    }
    apart = [one for one in report.findings if one.code == "counter_integral_apart"]
    kept = [one for one in report.findings if not (one in apart and (few or one.subject in named))]
    found = [*kept, *quality.findings]
    if report.work and partial:
        found.append(_uncovered_work(partial))
    if few and quality.spacing_s:
        found += [
            _coarse(one.subject, quality.spacing_s) for one in apart if one.subject not in named
        ]
    units = _Units(report, quality.work_limits, partial)
    whole_range = None if quality.cut else report.energies.from_raw_samples
    return replace(
        report,
        energies=replace(report.energies, devices=devices, from_raw_samples=whole_range),
        work=units.work(),
        boundaries=units.boundaries(),
        sci=units.sci(),
        calibrated=report.calibrated
        and Calibrated(report.calibrated.gpus, report.calibrated.energy, units.calibrated()),
        findings=ordered_findings(found),
    )


class _Units:
    """Energies per unit with the uncertainty of the work.

    The work covers the whole range. The energy of a part of the range per unit would be too low, so
    that the units of `partial` components are left out.
    """

    def __init__(
        self, report: Report, limits: Mapping[str, tuple[float, float]], partial: AbstractSet[str]
    ) -> None:
        both = [limits[unit] for unit in (GENERATED, PROMPT) if unit in limits]
        self._limits = {
            **limits,
            TOTAL: (math.fsum(low for low, _ in both), math.fsum(high for _, high in both)),
        }
        self._report = report
        self._partial = partial
        self._amounts = {
            one.unit: one.amount for boundary in report.boundaries for one in boundary.work
        }
        self._amounts |= {one.unit: one.amount for one in report.work}
        self._headline_partial = report.energies.headline_component in partial

    def work(self) -> tuple[Work, ...]:
        return tuple(
            Work(one.unit, one.amount, one.per_second, self._headline_energy(one), one.phases)
            for one in self._report.work
        )

    def boundaries(self) -> tuple[Boundary, ...]:
        return tuple(
            Boundary(
                one.components,
                one.energy,
                () if self._partial & set(one.components) else tuple(map(self._unit, one.work)),
                one.pue,
            )
            for one in self._report.boundaries
        )

    def sci(self) -> tuple[Sci, ...]:
        partial = {
            one.name for one in self._report.boundaries if self._partial & set(one.components)
        }
        return tuple(
            Sci(
                one.boundary,
                one.basis,
                one.origin,
                one.operational,
                one.embodied_g,
                () if one.boundary in partial else one.units,
                self._limits,
            )
            for one in self._report.sci
        )

    def calibrated(self) -> dict[str, Figure]:
        if self._headline_partial or self._report.calibrated is None:
            return {}
        return {
            unit: self._of(unit, joules)
            for unit, joules in self._report.calibrated.per_unit.items()
        }

    def _unit(self, one: BoundaryUnitEnergy) -> BoundaryUnitEnergy:
        return BoundaryUnitEnergy(
            one.unit,
            one.amount,
            one.per_second,
            self._of(one.unit, one.energy_per_unit),
            one.phases,
        )

    def _headline_energy(self, work: Work) -> Figure | None:
        if self._headline_partial or not work.energy_per_unit:
            return None
        return self._of(work.unit, work.energy_per_unit)

    def _of(self, unit: str, joules: Figure) -> Figure:
        if unit not in self._amounts:
            return joules
        return widened_by_amount(joules, self._amounts[unit], self._limits.get(unit))


def _coarse(subject: str, spacing_s: float) -> Finding:
    text = (
        f"the integral of power as scraped every {spacing_s:.3g} s differs from the energy counter "
        "by more than 5 %: "
        "the range has too few samples for it; use the counter's energy"
    )
    return Finding("warning", "integral_coarse", subject, text)


def _uncovered_work(partial: AbstractSet[str]) -> Finding:
    names = " and ".join(name.upper() for name in sorted(partial))
    text = (
        f"the work covers the whole range, the energy of {names} only a part of it: there is no "
        "energy per unit; "
        "choose --start and --end within the samples"
    )
    return Finding("warning", "units_uncovered", "", text)

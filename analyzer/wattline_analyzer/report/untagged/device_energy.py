"""Energy of a device over a time range, from its counter or its scraped power, with findings."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattline.contract import metrics as m
from wattline.figures import short_joules_text
from wattline_analyzer.core.devices import SAMPLED_RATIO, SCRAPED
from wattline_analyzer.core.integrate import PowerRange, counter_energy, power_range
from wattline_analyzer.core.run_report import Finding
from wattline_analyzer.core.samples import GAP_FACTOR, Samples, median_spacing_s
from wattline_analyzer.importers.content import FileRun
from wattline_analyzer.importers.energies import RunDeviceEnergy, integrate_power
from wattline_analyzer.importers.spool import stored
from wattline_analyzer.report.untagged.meters import Meter
from wattline_analyzer.report.untagged.schemas import WATTLINE

_HEADROOM = 1.5
_FAR = 0.2
_DEAD_S = 60.0
_FEWEST_OF_DEAD = 3
_NAMED = 6


@dataclass(frozen=True, slots=True)
class DeviceEnergy:
    """Energy of a meter over the part of the range with samples; `whole` if that is the whole
    range.
    """

    meter: Meter
    energy: RunDeviceEnergy
    whole: bool


def energy_of_meter(meter: Meter, start_s: float, end_s: float) -> DeviceEnergy | None:
    """Return the energy over a range, None if it has no samples."""
    counter = meter.counter
    if (
        len(counter) > 1
        and counter.t[0] < end_s
        and counter.t[-1] > start_s
        and not is_dead(meter, start_s, end_s)
    ):
        return _counter_energy(meter, counter, start_s, end_s)
    energy = _power_energy(meter, start_s, end_s)
    if energy is None:
        return None
    return DeviceEnergy(
        meter, replace(energy, method=SCRAPED), (energy.covered_ratio or 0.0) > SAMPLED_RATIO
    )


def widened_by(energy: DeviceEnergy, doubt_j: float) -> DeviceEnergy:
    """Return the energy with an interval that includes a doubt of `doubt_j` joules."""
    half_j = energy.energy.half_j
    if not doubt_j or half_j is None:
        return energy
    return replace(energy, energy=replace(energy.energy, half_j=half_j + doubt_j))


def check_against_power(
    energy: DeviceEnergy, start_s: float, end_s: float
) -> tuple[DeviceEnergy, Finding | None]:
    """Return a finding for a counter that does not change, runs at a wrong speed or has another
    unit.

    Its energy differs from the integral of scraped power by more than four standard deviations of
    the mean of so many samples, each between zero and the highest power. The interval then includes
    the integral.
    """
    power = (
        _power_energy(energy.meter, start_s, end_s)
        if energy.whole and energy.energy.method == "counter"
        else None
    )
    if (
        power is None
        or not power.max_w
        or not power.spacing_s
        or (power.covered_ratio or 0.0) <= SAMPLED_RATIO
    ):
        return energy, None
    counted_j = energy.energy.energy_j
    integral_j = power.energy_j
    difference_j = abs(counted_j - integral_j)
    by_chance_j = 2 * power.max_w * math.sqrt((end_s - start_s) * power.spacing_s)
    if difference_j <= max(_FAR * max(counted_j, integral_j), by_chance_j):
        return energy, None
    text = (
        f"its counter rose by {short_joules_text(counted_j)}, the integral of scraped power is "
        f"{short_joules_text(integral_j)}, more than the "
        "scrape interval explains: the counter stops, has a wrong speed or another unit; the "
        "interval includes both, "
        "do not use this energy, and check whether another exporter has the GPU (--schema)"
    )
    return widened_by(energy, difference_j), Finding(
        "bad", "counter_implausible", energy.meter.name, text
    )


def is_dead(meter: Meter, start_s: float, end_s: float) -> bool:
    """Return whether the counter did not rise in a minute or longer, although its device cannot
    draw no power.
    """
    during = meter.counter.between(start_s, end_s)
    is_long = len(during) >= _FEWEST_OF_DEAD and during.t[-1] - during.t[0] >= max(
        _DEAD_S, 2 * meter.age_s
    )
    return bool(is_long and during.value[-1] == during.value[0])


def dead_counter_finding(meter: Meter, energy: DeviceEnergy | None) -> Finding:
    rest = (
        "it is left out of all sums"
        if energy is None
        else "its energy is the integral of scraped power"
    )
    text = f"its energy counter did not rise in the range: no reading; {rest}"
    return Finding("bad" if energy is None else "warning", "counter_dead", meter.name, text)


def _power_energy(meter: Meter, start_s: float, end_s: float) -> RunDeviceEnergy | None:
    exact = meter.power.exact_in(start_s, end_s)
    if exact is None:
        return integrate_power(
            (meter.component, meter.device), stored(meter.power), FileRun("", "", start_s, end_s)
        )
    if exact.covered_s <= 0:
        return None
    return RunDeviceEnergy(
        meter.component,
        meter.device,
        exact.integral,
        SCRAPED,
        covered_ratio=min(exact.covered_s / (end_s - start_s), 1.0),
        spacing_s=exact.spacing_s,
        max_w=float(meter.power.between(start_s, end_s).value.max()),
    )


def _counter_energy(
    meter: Meter, counter: Samples, start_s: float, end_s: float
) -> DeviceEnergy | None:
    """Return the counter's increase; a range that reaches far beyond the first or last sample is
    cut.
    """
    reach_s = GAP_FACTOR * (median_spacing_s(counter) or 0.0) + meter.age_s
    first_s = start_s if counter.t[0] <= start_s + reach_s else float(counter.t[0])
    last_s = end_s if counter.t[-1] >= end_s - reach_s else float(counter.t[-1])
    limit = meter.samples(m.GPU_POWER_LIMIT)
    possible = power_range(
        meter.power, float(limit.value.max()) if len(limit) else None
    ) or _range_by_rate(counter)
    bound = counter_energy(counter, first_s, last_s, possible, meter.age_s) if possible else None
    if bound is None:
        return None
    low_j, high_j = bound.limits
    during_w = meter.power.between(start_s, end_s).value
    energy = RunDeviceEnergy(
        meter.component,
        meter.device,
        bound.number,
        "counter" if meter.component == "gpu" else meter.schema.cpu_method,
        max(bound.number - low_j, high_j - bound.number),
        (last_s - first_s) / (end_s - start_s),
        median_spacing_s(counter),
        float(during_w.max()) if len(during_w) else None,
    )
    return DeviceEnergy(meter, energy, (first_s, last_s) == (start_s, end_s))


def _range_by_rate(counter: Samples) -> PowerRange | None:
    """Return 0 to 1.5 times the highest mean power between two samples, if power and limit are
    unknown.
    """
    steps_j = np.diff(counter.value)
    spans_s = np.diff(counter.t)
    rates_w = (steps_j / spans_s)[steps_j >= 0]
    return PowerRange(0.0, _HEADROOM * float(rates_w.max())) if len(rates_w) else None


def range_findings(energies: Sequence[DeviceEnergy]) -> list[Finding]:
    checks = (_check_scraped_power, _check_cached_samples, _check_coverage, _check_utilization)
    return [
        Finding("note", "untagged_range", "", _origin(energies)),
        *(found for energy in energies for check in checks if (found := check(energy))),
    ]


def tagged_runs_finding(run_ids: Collection[str]) -> Finding:
    names = sorted(run_ids)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    text = (
        f"the range's energy includes that of the runs {', '.join(names[:_NAMED])}{more}; see: "
        "analyzer report --run-id"
    )
    return Finding("note", "tagged_runs", "", text)


def _origin(energies: Sequence[DeviceEnergy]) -> str:
    schemas = ", ".join(dict.fromkeys(energy.meter.schema.name for energy in energies))
    return (
        f"a time range without a run, by {schemas}: its start and end lie between scrapes, where "
        "counters are "
        "interpolated; the interval includes every power that is possible there"
    )


def _check_scraped_power(energy: DeviceEnergy) -> Finding | None:
    if energy.energy.method != SCRAPED:
        return None
    text = (
        "no energy counter: the energy is the integral of power as scraped every "
        f"{energy.energy.spacing_s or 0:.3g} s; the power between scrapes, and so the uncertainty, "
        "is unknown"
    )
    return Finding("warning", "scraped_power", energy.meter.name, text)


def _check_cached_samples(energy: DeviceEnergy) -> Finding | None:
    meter = energy.meter
    if meter.cached_s is None or meter.schema is WATTLINE:
        return None
    text = (
        f"{meter.schema.name} reads it every {meter.cached_s:.3g} s and repeats the value in "
        "between: repeated "
        f"samples are left out; a value can be {meter.age_s:.3g} s old, which the interval includes"
    )
    return Finding("note", "cached_samples", meter.name, text)


def _check_coverage(energy: DeviceEnergy) -> Finding | None:
    if energy.whole or energy.energy.method == SCRAPED:
        return None
    text = (
        f"samples cover {100 * (energy.energy.covered_ratio or 0):.1f} % of the range; energy and "
        "mean power "
        "cover only this part, without an estimate for the rest"
    )
    return Finding("warning", "uncovered", energy.meter.name, text)


def _check_utilization(energy: DeviceEnergy) -> Finding | None:
    if energy.meter.component != "gpu" or energy.meter.has_utilization:
        return None
    text = "no utilization is exported, so idle times are unknown and no idle power is reported"
    return Finding("note", "idle_unknown", energy.meter.name, text)

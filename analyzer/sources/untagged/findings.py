"""Findings about the energies of a time range without a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from analyzer.model.devices import SCRAPED
from analyzer.model.findings import Finding
from analyzer.sources.untagged.device_energy import DeviceEnergy
from analyzer.sources.untagged.schemas import WATTLINE

_NAMED = 6


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
        f"the range's energy includes that of the runs {', '.join(names[:_NAMED])}{more}; see: analyzer report --run-id"
    )
    return Finding("note", "tagged_runs", "", text)


def _origin(energies: Sequence[DeviceEnergy]) -> str:
    schemas = ", ".join(dict.fromkeys(energy.meter.schema.name for energy in energies))
    return (
        f"a time range without a run, by {schemas}: its start and end lie between scrapes, where counters are "
        "interpolated; the interval includes every power that is possible there"
    )


def _check_scraped_power(energy: DeviceEnergy) -> Finding | None:
    if energy.energy.method != SCRAPED:
        return None
    text = (
        "no energy counter: the energy is the integral of power as scraped every "
        f"{energy.energy.spacing_s or 0:.3g} s; the power between scrapes, and so the uncertainty, is unknown"
    )
    return Finding("warning", "scraped_power", energy.meter.name, text)


def _check_cached_samples(energy: DeviceEnergy) -> Finding | None:
    meter = energy.meter
    if meter.cached_s is None or meter.schema is WATTLINE:
        return None
    text = (
        f"{meter.schema.name} reads it every {meter.cached_s:.3g} s and repeats the value in between: repeated "
        f"samples are left out; a value can be {meter.age_s:.3g} s old, which the interval includes"
    )
    return Finding("note", "cached_samples", meter.name, text)


def _check_coverage(energy: DeviceEnergy) -> Finding | None:
    if energy.whole or energy.energy.method == SCRAPED:
        return None
    text = (
        f"samples cover {100 * (energy.energy.covered_ratio or 0):.1f} % of the range; the energy covers only "
        "this part, without an estimate for the rest"
    )
    return Finding("warning", "uncovered", energy.meter.name, text)


def _check_utilization(energy: DeviceEnergy) -> Finding | None:
    if energy.meter.component != "gpu" or energy.meter.has_utilization:
        return None
    text = "no utilization is exported, so idle times are unknown and no idle power is reported"
    return Finding("note", "idle_unknown", energy.meter.name, text)

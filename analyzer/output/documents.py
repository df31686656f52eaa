"""JSON, YAML and CSV of a report and of a list of runs, with stable keys that carry their units.

Unknown figures are null (empty in CSV), never zero. Times are Unix seconds.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from analyzer.model.emissions import CarbonSlot, Emission
from analyzer.model.interval import Interval
from analyzer.model.report import Report, Work
from analyzer.output.sections.boundaries import boundary_records
from analyzer.output.sections.carbon import restated_records, sci_records
from analyzer.output.sections.devices import device_records
from analyzer.output.sections.error_budget import budget_record, calibration_record

DOCUMENT_VERSION = 1


def quantity(interval: Interval | None, name: str, unit: str) -> dict[str, float | None]:
    """Return a value and the half-width of its 95 % CI as entries of a document."""
    return {
        f"{name}_{unit}": interval.value if interval else None,
        f"{name}_uncertainty_{unit}": interval.half if interval else None,
    }


def energy_by_component(energies: Mapping[str, Interval]) -> dict[str, dict[str, float | None]]:
    return {
        "energy_joules": {component: energy.value for component, energy in energies.items()},
        "energy_uncertainty_joules": {component: energy.half for component, energy in energies.items()},
    }


def report_document(report: Report) -> dict[str, Any]:
    energies = {
        name: {**quantity(energy, "energy", "joules"), "estimate": name in report.estimated}
        for name, energy in report.energy.items()
    }
    if report.whole:
        energies["together"] = {**quantity(report.whole, "energy", "joules"), "estimate": bool(report.estimated)}
    return {
        "version": DOCUMENT_VERSION,
        **_run(report),
        "energy": energies,
        "attributed_energy": {
            component: {f"{policy}_joules": joules for policy, joules in share.items()}
            for component, share in report.shares.items()
        },
        "gpu": {
            **_bound(report.from_raw_samples),
            "integrated_energy_joules": report.integral_j,
            **quantity(report.net, "net_of_idle_energy", "joules"),
        },
        "devices": device_records(report),
        "work": {work.unit: {**_work(work), "estimate": report.headline_estimated} for work in report.work},
        "boundaries": boundary_records(report),
        "restated_emissions": restated_records(report),
        "error_budget": budget_record(report),
        "calibrated": calibration_record(report),
        "software_carbon_intensity": sci_records(report),
        "phases": [
            {
                "name": phase.name,
                "duration_seconds": phase.duration_s,
                **energy_by_component(phase.energy),
                "estimates": sorted(report.estimated & phase.energy.keys()),
            }
            for phase in report.phases
        ],
        "results": dict(report.results),
        "emissions": [_emission(emission) for emission in report.emissions],
        "carbon_slots": [_slot(slot) for slot in report.carbon_slots],
        "findings": [
            {"level": finding.level, "code": finding.code, "subject": finding.subject, "text": finding.text}
            for finding in report.findings
        ],
    }


def _run(report: Report) -> dict[str, Any]:
    return {
        "run_id": report.run_id,
        "source": report.source,
        "simulated": report.simulated,
        "untagged_range": report.untagged,
        "workload": report.workload,
        "labels": dict(report.labels),
        "state": "running" if report.ended_at_s is None else "ended",
        "outcome": report.outcome,
        "instances": list(report.instances),
        "started_at_unix_seconds": report.started_at_s,
        "ended_at_unix_seconds": report.ended_at_s,
        "duration_seconds": report.duration_s,
    }


def _work(work: Work) -> dict[str, Any]:
    return {
        "amount": work.amount,
        "per_second": work.per_second,
        "phases": list(work.phases),
        **quantity(work.energy_per_unit, "energy_per_unit", "joules"),
        **quantity(work.whole_devices, "whole_devices_energy_per_unit", "joules"),
    }


def _emission(emission: Emission) -> dict[str, Any]:
    return {
        "component": emission.component,
        "basis": emission.basis,
        "quality": emission.quality,
        "origin": emission.origin,
        **quantity(emission.mass_g, "emissions", "grams"),
        "uncertainty_includes_intensity": emission.covers_intensity,
        "given_intensity_grams_per_kilowatt_hour": emission.grams_per_kwh,
        "estimate": emission.estimated,
    }


def _slot(slot: CarbonSlot) -> dict[str, Any]:
    return {
        "start_unix_seconds": slot.start_s,
        "end_unix_seconds": slot.end_s,
        "instance": slot.instance,
        "region": slot.region,
        "provider": slot.provider,
        "basis": slot.basis,
        "quality": slot.quality,
        "intensity_grams_per_kilowatt_hour": slot.grams_per_kwh,
        "intensity_year": slot.year,
        "gpu_energy_joules": slot.gpu_energy_j,
        "gpu_emissions_grams": slot.mass_g,
    }


def _bound(bound: Interval | None) -> dict[str, float | None]:
    return {
        "raw_samples_energy_joules": bound.value if bound else None,
        "raw_samples_energy_low_joules": bound.low if bound else None,
        "raw_samples_energy_high_joules": bound.high if bound else None,
    }


def as_json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def as_yaml(data: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text.rstrip("\n")


def null_if_not_finite(data: Any) -> Any:
    """Return the document with null in place of NaN and infinity, which JSON does not have."""
    if isinstance(data, Mapping):
        return {key: null_if_not_finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [null_if_not_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def report_csv(report: Report) -> str:
    """Return one row per device, with the run repeated on each."""
    run = {
        "run_id": report.run_id,
        "workload": report.workload,
        "outcome": report.outcome,
        "simulated": report.simulated,
        "started_at_unix_seconds": report.started_at_s,
        "duration_seconds": report.duration_s,
    }
    return as_csv([{**run, **device} for device in device_records(report)], list(run))


def as_csv(rows: Sequence[Mapping[str, Any]], header: Sequence[str] = ()) -> str:
    """Return rows below one header, `header` and then their other keys; a mapping becomes one column of JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(
        text, list(dict.fromkeys((*header, *(name for row in rows for name in row)))), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    return text.getvalue().rstrip("\n")


def _plain(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping) else value

"""JSON, YAML and CSV of a report and of a list of runs, with stable keys that carry their units.

Unknown figures are null (empty in CSV), never zero. Times are Unix seconds.
"""

from __future__ import annotations

from typing import Any

from wattline.figures import Figure
from wattline_analyzer.core.documents import as_csv, energy_by_component, quantity
from wattline_analyzer.core.emissions import CarbonSlot, Emission
from wattline_analyzer.core.run_report import Report, Work
from wattline_analyzer.report.sections.boundaries import boundary_records
from wattline_analyzer.report.sections.carbon import restated_records, sci_records
from wattline_analyzer.report.sections.devices import device_records
from wattline_analyzer.report.sections.error_budget import budget_record, calibration_record

DOCUMENT_VERSION = 1


def report_document(report: Report) -> dict[str, Any]:
    energies = {
        name: {**quantity(energy, "energy", "joules"), "estimate": name in report.estimated}
        for name, energy in report.energy.items()
    }
    if report.energies.whole:
        energies["together"] = {
            **quantity(report.energies.whole, "energy", "joules"),
            "estimate": bool(report.estimated),
        }
    return {
        "version": DOCUMENT_VERSION,
        **_run(report),
        "energy": energies,
        "attributed_energy": {
            component: {f"{policy}_joules": joules for policy, joules in share.items()}
            for component, share in report.energies.shares.items()
        },
        "gpu": {
            **_bound(report.energies.from_raw_samples),
            "integrated_energy_joules": report.energies.integral_j,
            **quantity(report.energies.net, "net_of_idle_energy", "joules"),
        },
        "devices": device_records(report),
        "work": {
            work.unit: {**_work(work), "estimate": report.energies.headline_estimated}
            for work in report.work
        },
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
            {
                "level": finding.level,
                "code": finding.code,
                "subject": finding.subject,
                "text": finding.text,
            }
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


def _bound(bound: Figure | None) -> dict[str, float | None]:
    return {
        "raw_samples_energy_joules": bound.value if bound else None,
        "raw_samples_energy_low_joules": bound.low if bound else None,
        "raw_samples_energy_high_joules": bound.high if bound else None,
    }


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

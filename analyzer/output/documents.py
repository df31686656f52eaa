"""A report and a list of runs for machines: JSON, YAML and CSV with stable keys that carry their units.

A figure that is not known is null (empty in CSV), never zero. Times are Unix seconds.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import yaml

from analyzer.carbon.emissions import Emission
from analyzer.carbon.intensity import CarbonSlot
from analyzer.energy.attribution import POLICIES
from analyzer.model.catalog import ListedRun
from analyzer.model.interval import Interval
from analyzer.model.report import Device, Report, Work
from analyzer.output.keys import by_component, quantity
from analyzer.output.sections import boundaries
from analyzer.output.sections import carbon as carbon_parts
from analyzer.output.sections import error_budget as how_sure

DOCUMENT_VERSION = 1


def document(report: Report) -> dict[str, Any]:
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
            **_bound(report.own),
            "integrated_energy_joules": report.integral_j,
            **quantity(report.net, "net_of_idle_energy", "joules"),
        },
        "devices": [_device(device) for device in report.devices],
        "work": {work.unit: {**_work(work), "estimate": report.headline_estimated} for work in report.work},
        "boundaries": boundaries.as_data(report),
        "restated_emissions": carbon_parts.restated_data(report),
        "error_budget": how_sure.budget_data(report),
        "calibrated": how_sure.calibrated_data(report),
        "software_carbon_intensity": carbon_parts.sci_data(report),
        "phases": [
            {
                "name": phase.name,
                "duration_seconds": phase.duration_s,
                **by_component(phase.energy),
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
    }


def _emission(emission: Emission) -> dict[str, Any]:
    return {
        "component": emission.component,
        "basis": emission.basis,
        "quality": emission.quality,
        "origin": emission.origin,
        **quantity(emission.mass_g, "emissions", "grams"),
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
        "gpu_energy_joules": slot.gpu_energy_j,
        "gpu_emissions_grams": slot.mass_g,
    }


def _device(device: Device) -> dict[str, Any]:
    return {
        "instance": device.instance,
        "component": device.component,
        "device": device.device,
        "label": device.label,
        "name": device.name,
        **quantity(device.energy, "energy", "joules"),
        **_bound(device.own),
        "integrated_energy_joules": device.integral_j,
        **quantity(device.idle_power_w, "idle_power", "watts"),
        **quantity(device.net, "net_of_idle_energy", "joules"),
        **quantity(device.mean_power_w, "mean_power", "watts"),
        "max_power_watts": device.max_power_w,
        "power_limit_watts": device.power_limit_w,
        "covered_ratio": device.covered_ratio,
        "shared_with_other_runs": device.shared,
        "energy_method": ", ".join(device.methods) or None,
        "estimate": device.estimated,
        "divided": device.divided,
        **{f"attributed_energy_{policy}_joules": device.attributed_j.get(policy) for policy in POLICIES},
    }


def _bound(bound: Interval | None) -> dict[str, float | None]:
    return {
        "raw_samples_energy_joules": bound.value if bound else None,
        "raw_samples_energy_low_joules": bound.low if bound else None,
        "raw_samples_energy_high_joules": bound.high if bound else None,
    }


def listed(run: ListedRun) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "workload": run.workload,
        "state": run.state,
        "started_at_unix_seconds": run.started_at_s,
        "duration_seconds": run.duration_s,
        **quantity(run.gpu_energy, "gpu_energy", "joules"),
        "labels": dict(run.labels),
    }


def as_json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def as_yaml(data: Any) -> str:
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text.rstrip("\n")


def report_csv(report: Report) -> str:
    """One row a device, the run repeated on each."""
    run = {
        "run_id": report.run_id,
        "workload": report.workload,
        "outcome": report.outcome,
        "simulated": report.simulated,
        "started_at_unix_seconds": report.started_at_s,
        "duration_seconds": report.duration_s,
    }
    return rows_csv([{**run, **_device(device)} for device in report.devices])


def runs_csv(runs: Sequence[ListedRun]) -> str:
    """One row a run, its labels as one column of JSON."""
    return rows_csv([{**(row := listed(run)), "labels": json.dumps(row["labels"], sort_keys=True)} for run in runs])


def rows_csv(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")

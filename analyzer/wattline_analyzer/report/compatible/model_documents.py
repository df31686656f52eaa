"""Energy of a run for documents of a model: Hugging Face, AI Energy Score, CycloneDX, SPDX and the
EU's form.

All files have the energy of the whole devices, and the emissions of all measured components by
average intensity.

The form is the Model Documentation Form of the GPAI Code of Practice, chapter Transparency (10 July
2025): its items "Amount of energy used for training", in MWh with at least two significant figures,
and "Measurement methodology". For inference it asks for an amount of computation, not for energy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from wattline.figures import JOULES_PER_KWH, JOULES_PER_WH, Figure, half_text
from wattline_analyzer.core.devices import SIMULATED_REMARK, ReportDevice
from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.sample_table import SampleTable
from wattline_analyzer.core.units import WHOLE_RATIO
from wattline_analyzer.report.compatible.gpu_tune import is_training
from wattline_analyzer.report.compatible.tool_format import ToolFormat

HUGGING_FACE_TOOL = "hugging-face"
AI_ENERGY_SCORE_TOOL = "ai-energy-score"
CYCLONEDX_TOOL = "cyclonedx"
SPDX_TOOL = "spdx"
EU_GPAI_TOOL = "eu-gpai"
CONSTANT_REGION = "custom"
"""Region of a constant carbon intensity, which is no place."""
_INTEGRAL = "integral"
_JOULES_PER_MWH = 3.6e9
_GRAMS_PER_TONNE = 1e6
_COMPONENTS = {"gpu": "GPUs", "cpu": "CPUs", "dram": "memory"}
_FINE_TUNING = ("finetun", "fine-tun", "fine_tun")
_GENERATED = "generated_tokens"
_SPDX_STAGES = {
    "training": "ai_trainingEnergyConsumption",
    "fine-tuning": "ai_finetuningEnergyConsumption",
    "inference": "ai_inferenceEnergyConsumption",
}


def model_card_files(report: Report, _: SampleTable) -> dict[str, bytes]:
    """Return the metadata `co2_eq_emissions` in g; empty without emissions."""
    import yaml

    grams = _grams(report)
    if grams is None:
        return {}
    regions = dict.fromkeys(
        slot.region for slot in report.carbon_slots if slot.region not in ("", CONSTANT_REGION)
    )
    activity = _activity(report)
    values = {
        "emissions": grams,
        "source": ". ".join([f"Wattline, measured, run {report.run_id}", *remarks(report)]),
        "training_type": {"training": "pre-training", "fine-tuning": "fine-tuning"}.get(activity),
        "geographical_location": ", ".join(regions) or None,
        "hardware_used": _hardware(report) or None,
    }
    card = {
        "co2_eq_emissions": {name: value for name, value in values.items() if value is not None}
    }
    text = yaml.safe_dump(card, sort_keys=False, allow_unicode=True)
    return {"README.md": f"---\n{text}---\n".encode()}


def energy_score_files(report: Report, _: SampleTable) -> dict[str, bytes]:
    """Return the GPUs' energy in Wh, in total and by phase; empty without GPU energy."""
    energy = report.energy.get("gpu")
    if energy is None:
        return {}
    total_wh = round(energy.number / JOULES_PER_WH, 2)
    phases_wh = {
        f"{phase.name}_wh": round(phase.energy["gpu"].number / JOULES_PER_WH, 2)
        for phase in report.phases
        if "gpu" in phase.energy
    }
    summary = {"units": "Wh", "total": total_wh, **phases_wh}
    return {
        "GPU_ENERGY_SUMMARY.json": json.dumps(summary, indent=2).encode(),
        "GPU_ENERGY_WH.txt": f"{total_wh:.2f}\n".encode(),
    }


def cyclonedx_files(report: Report, _: SampleTable) -> dict[str, bytes]:
    """Return a CycloneDX 1.6 document of the model, with its energy in kWh and emissions in t;
    empty without energy.
    """
    energy = report.energies.whole or report.headline
    grams = _grams(report)
    if energy is None:
        return {}
    consumption: dict[str, Any] = {
        "activity": _activity(report),
        "energyProviders": [],
        "activityEnergyCost": {"value": energy.number / JOULES_PER_KWH, "unit": "kWh"},
    }
    if grams is not None:
        consumption["co2CostEquivalent"] = {"value": grams / _GRAMS_PER_TONNE, "unit": "tCO2eq"}
    environment = {
        "energyConsumptions": [consumption],
        "properties": [
            {"name": "wattline:run_id", "value": report.run_id},
            *({"name": "wattline:remark", "value": text} for text in remarks(report)),
        ],
    }
    component = {
        "type": "machine-learning-model",
        "name": report.labels.get("model", report.workload),
        "modelCard": {"considerations": {"environmentalConsiderations": environment}},
    }
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": [component],
    }
    return {"bom.cdx.json": json.dumps(document, indent=2, ensure_ascii=False).encode()}


def spdx_files(report: Report, _: SampleTable) -> dict[str, bytes]:
    """Return an SPDX 3.0.1 document of the model with its energy in kWh; empty without energy, or
    for other work.
    """
    energy = report.energies.whole or report.headline
    activity = _activity(report)
    if energy is None or activity not in _SPDX_STAGES:
        return {}
    description = {
        "type": "ai_EnergyConsumptionDescription",
        "ai_energyQuantity": f"{energy.number / JOULES_PER_KWH:.9g}",
        "ai_energyUnit": "kilowattHour",
    }
    created = datetime.fromtimestamp(report.ended_at_s or report.started_at_s, UTC)
    base = f"urn:wattline:{report.run_id}"
    creation = "_:creation"
    graph: list[dict[str, Any]] = [
        {
            "type": "CreationInfo",
            "@id": creation,
            "specVersion": "3.0.1",
            "created": f"{created:%Y-%m-%dT%H:%M:%SZ}",
            "createdBy": [f"{base}:tool"],
        },
        {
            "type": "SoftwareAgent",
            "spdxId": f"{base}:tool",
            "creationInfo": creation,
            "name": "Wattline",
        },
        {
            "type": "ai_AIPackage",
            "spdxId": f"{base}:model",
            "creationInfo": creation,
            "name": report.labels.get("model", report.workload),
            "comment": ". ".join(
                [f"Energy measured by Wattline, run {report.run_id}", *remarks(report)]
            ),
            "ai_energyConsumption": {
                "type": "ai_EnergyConsumption",
                _SPDX_STAGES[activity]: [description],
            },
        },
    ]
    document = {"@context": "https://spdx.org/rdf/3.0.1/spdx-context.jsonld", "@graph": graph}
    return {"model.spdx.json": json.dumps(document, indent=2, ensure_ascii=False).encode()}


def documentation_form_files(report: Report, _: SampleTable) -> dict[str, bytes]:
    """Return the two items on the energy of a training; empty without energy, or for other work."""
    energy = report.energies.whole or report.headline
    if energy is None or _activity(report) not in ("training", "fine-tuning"):
        return {}
    started = datetime.fromtimestamp(report.started_at_s, UTC)
    names = ", ".join(_COMPONENTS[one] for one in _parts(report))
    text = f"""# Model Documentation Form: energy consumption

Amount of energy used for training: {_megawatt_hours(energy.number)} MWh

Measurement methodology: measured by Wattline, run {report.run_id}, as the energy of the whole \
{names} of the training ({_hardware(report) or "no GPU"}) from {started:%Y-%m-%d %H:%M:%S} UTC \
for {report.duration_s / 3_600:.3g} h.\
{_errors(energy)}{"".join(f" {remark}." for remark in remarks(report))} \
Power supplies, network, storage and cooling are not included.
"""
    return {"energy.md": text.encode()}


def remarks(report: Report) -> list[str]:
    """Return the conditions of the energy in these files, as sentences without a full stop."""
    devices = [device for device in report.devices if device.component in _parts(report)]
    estimated = [name for name in _parts(report) if name in report.estimated]
    shared = dict.fromkeys(device.component for device in devices if device.shared)
    found = [SIMULATED_REMARK] if report.simulated else []
    if uncovered := _uncovered(report, devices):
        found.append(uncovered)
    if estimated:
        names = " and ".join(_COMPONENTS[name] for name in estimated)
        found.append(
            f"The energy of the {names} is, at least in part, estimated from their utilization"
        )
    if shared:
        names = " and ".join(_COMPONENTS[name] for name in shared)
        found.append(f"Other runs used the {names} at the same time; their energy is included")
    return found


def _uncovered(report: Report, devices: Sequence[ReportDevice]) -> str:
    """Return the share of the run in which the devices were measured; empty if it is all of the
    run.
    """
    ratios = [1.0 if device.covered_ratio is None else device.covered_ratio for device in devices]
    if min(ratios, default=1.0) >= WHOLE_RATIO:
        return ""
    lacking = any(
        _INTEGRAL in device.methods or device.duration_s < report.duration_s * WHOLE_RATIO
        for device in devices
    )
    rest = (
        "the energy of the rest is not included" if lacking else "the power in the rest is unknown"
    )
    return (
        f"The sensors were read in {100 * math.fsum(ratios) / len(ratios):.1f} % of the time "
        f"of the run; {rest}"
    )


def _errors(energy: Figure) -> str:
    """Return sentences with the random error and the accuracy of the sensors, where these are
    known.
    """
    if energy.number <= 0:
        return ""
    percent = 100 / energy.number
    half = ""
    if energy.relative_half_width is not None:
        ratio = f"±{half_text(100 * energy.relative_half_width)} %"
        half = f" The 95 % confidence interval of random errors is {ratio}."
    if energy.bias is None:
        return half
    low, high = energy.bias
    return (
        f"{half} The accuracy of the sensors adds {low * percent:+.2g} % to "
        f"{high * percent:+.2g} %."
    )


def _parts(report: Report) -> tuple[str, ...]:
    """Return the components of the energy in the documents."""
    return tuple(report.energy) if report.energies.whole else tuple(report.energy)[:1]


def _megawatt_hours(energy_j: float) -> str:
    """Return the amount with three significant figures, as `0.0123` or `2.78*10^-6`."""
    amount = f"{energy_j / _JOULES_PER_MWH:#.3g}".rstrip(".")
    digits, _, exponent = amount.partition("e")
    return f"{digits}*10^{int(exponent)}" if exponent else digits


def _activity(report: Report) -> str:
    if any(word in report.workload for word in _FINE_TUNING):
        return "fine-tuning"
    if is_training(report.workload, report.results):
        return "training"
    return "inference" if any(work.unit == _GENERATED for work in report.work) else "other"


def _grams(report: Report) -> float | None:
    found = [one.mass_g for one in report.emission_totals if one.basis != "marginal"]
    return found[0].value if found else None


def _hardware(report: Report) -> str:
    names = [device.name for device in report.gpus if device.name]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


FORMATS = (
    ToolFormat(HUGGING_FACE_TOOL, model_card_files),
    ToolFormat(AI_ENERGY_SCORE_TOOL, energy_score_files, has_remarks=False),
    ToolFormat(CYCLONEDX_TOOL, cyclonedx_files),
    ToolFormat(SPDX_TOOL, spdx_files),
    ToolFormat(EU_GPAI_TOOL, documentation_form_files),
)

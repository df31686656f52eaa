"""Energy in documents of a model, read by the libraries of their formats."""

import json
from dataclasses import replace

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from huggingface_hub import ModelCard
from spdx_python_model import v3_0_1 as spdx

from tests.analyzer.node import NodeGpu, NodeRun
from tests.analyzer.run_reports import POWER_STEPS, run_report
from wattline_analyzer.report.compatible.model_documents import (
    cyclonedx_files,
    documentation_form_files,
    model_card_files,
    spdx_files,
)

ENERGY_KWH = 10_000 / 3.6e6
GRAMS = 200 * ENERGY_KWH


def test_model_card_has_the_emissions_in_grams(compatible_folder):
    card = ModelCard.load(compatible_folder("hugging-face", workload="finetune") / "README.md")

    found = card.data.to_dict()["co2_eq_emissions"]
    assert found["emissions"] == pytest.approx(GRAMS)
    assert found["training_type"] == "fine-tuning"
    assert found["hardware_used"].startswith("2 x ")
    assert found["source"] == "Wattline, measured, run job"


def test_energy_score_has_watt_hours(compatible_folder):
    folder = compatible_folder("ai-energy-score")

    assert json.loads((folder / "GPU_ENERGY_SUMMARY.json").read_text()) == {
        "units": "Wh",
        "total": 2.78,
    }
    assert (folder / "GPU_ENERGY_WH.txt").read_text() == "2.78\n"


@pytest.mark.parametrize(
    ("workload", "unit", "activity"),
    [
        ("serve", "generated_tokens", "inference"),
        ("train", "steps", "training"),
        ("serve", "steps", "other"),
    ],
)
def test_cyclonedx_document_is_valid_and_has_the_energy(
    compatible_folder, workload, unit, activity
):
    text = (
        compatible_folder("cyclonedx", workload=workload, unit=unit) / "bom.cdx.json"
    ).read_text()

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    (component,) = json.loads(text)["components"]
    (consumption,) = component["modelCard"]["considerations"]["environmentalConsiderations"][
        "energyConsumptions"
    ]
    assert consumption["activity"] == activity
    assert consumption["activityEnergyCost"] == {"value": pytest.approx(ENERGY_KWH), "unit": "kWh"}
    assert consumption["co2CostEquivalent"] == {
        "value": pytest.approx(GRAMS / 1e6),
        "unit": "tCO2eq",
    }


@pytest.mark.parametrize(
    ("workload", "stage"), [("serve", "inference"), ("finetune", "finetuning")]
)
def test_spdx_document_has_the_energy_of_the_stage(compatible_folder, workload, stage):
    objects = spdx.SHACLObjectSet()
    with (compatible_folder("spdx", workload=workload) / "model.spdx.json").open("rb") as file:
        spdx.JSONLDDeserializer().read(file, objects)

    (model,) = objects.foreach_type(spdx.ai_AIPackage)
    (description,) = getattr(model.ai_energyConsumption, f"ai_{stage}EnergyConsumption")
    assert float(description.ai_energyQuantity) == pytest.approx(ENERGY_KWH)
    assert description.ai_energyUnit == spdx.ai_EnergyUnitType.kilowattHour
    assert not objects.missing_ids


def test_documentation_form_has_the_megawatt_hours_of_a_training(compatible_folder):
    text = (compatible_folder("eu-gpai", workload="train", unit="steps") / "energy.md").read_text()

    # 10,000 J are 2.78e-6 MWh
    assert "\nAmount of energy used for training: 2.78*10^-6 MWh\n" in text
    assert "run job, as the energy of the whole GPUs of the training (2 x " in text
    assert " UTC for 0.00556 h" in text
    assert " The accuracy of the sensors adds -2.9 % to +6.4 %." in text


def test_documentation_form_of_inference_asks_for_no_energy(compatible_folder):
    assert not compatible_folder("eu-gpai").exists()


def documents(folder, run=None, **options):
    """Return the form, and the remarks of the three other documents, of a training of 300 W for 20
    s.
    """
    report = run_report(folder, run or NodeRun(workload="finetune"), carbon=200, **options)
    form, card, bom, model = (
        next(iter(files(report, None).values())).decode()
        for files in (documentation_form_files, model_card_files, cyclonedx_files, spdx_files)
    )
    considerations = json.loads(bom)["components"][0]["modelCard"]["considerations"][
        "environmentalConsiderations"
    ]
    noted = [
        one["value"] for one in considerations["properties"] if one["name"] == "wattline:remark"
    ]
    comment = next(one["comment"] for one in json.loads(model)["@graph"] if "comment" in one)
    source = ModelCard(card).data.to_dict()["co2_eq_emissions"]["source"]
    return form, noted, comment, source


@pytest.mark.parametrize(
    ("run", "options", "remark"),
    [
        (
            NodeRun(workload="finetune", covered_ratio=0.6),
            {},
            (
                "The sensors were read in 60.0 % of the time of the run; the power in the rest is "
                "unknown"
            ),
        ),
        (
            NodeRun(workload="finetune"),
            {"gpus": [NodeGpu(POWER_STEPS, name="SIMULATED NVIDIA H200")]},
            "SIMULATED hardware: the figures do not describe a real GPU",
        ),
        (
            NodeRun(workload="finetune"),
            {"other_runs": [NodeRun("other")]},
            "Other runs used the GPUs at the same time; their energy is included",
        ),
    ],
    ids=["covered in part", "simulated", "shared"],
)
def test_documents_state_what_limits_their_energy(tmp_path, run, options, remark):
    form, noted, comment, source = documents(tmp_path, run, **options)

    assert f" {remark}. Power supplies, network," in form
    assert noted == [remark]
    assert comment == f"Energy measured by Wattline, run train-1. {remark}"
    assert source == f"Wattline, measured, run train-1. {remark}"


def test_documents_of_a_run_alone_on_a_covered_gpu_have_no_remark(tmp_path):
    form, noted, comment, _ = documents(tmp_path)

    assert "% of the time of the run" not in form
    assert noted == []
    assert comment == "Energy measured by Wattline, run train-1"


def test_model_card_of_a_constant_intensity_has_no_location(tmp_path):
    report = run_report(tmp_path, NodeRun(emissions_g=2.0), intensity=200.0)
    slots = tuple(replace(slot, region="custom") for slot in report.carbon_slots)
    (card,) = model_card_files(replace(report, carbon_slots=slots), None).values()

    assert slots
    assert (
        "geographical_location" not in ModelCard(card.decode()).data.to_dict()["co2_eq_emissions"]
    )

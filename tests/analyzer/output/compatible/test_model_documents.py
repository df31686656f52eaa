"""Energy in documents of a model, read by the libraries of their formats."""

import json

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from huggingface_hub import ModelCard
from spdx_python_model import v3_0_1 as spdx

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

    assert json.loads((folder / "GPU_ENERGY_SUMMARY.json").read_text()) == {"units": "Wh", "total": 2.78}
    assert (folder / "GPU_ENERGY_WH.txt").read_text() == "2.78\n"


@pytest.mark.parametrize(
    ("workload", "unit", "activity"),
    [("serve", "generated_tokens", "inference"), ("train", "steps", "training"), ("serve", "steps", "other")],
)
def test_cyclonedx_document_is_valid_and_has_the_energy(compatible_folder, workload, unit, activity):
    text = (compatible_folder("cyclonedx", workload=workload, unit=unit) / "bom.cdx.json").read_text()

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    (component,) = json.loads(text)["components"]
    (consumption,) = component["modelCard"]["considerations"]["environmentalConsiderations"]["energyConsumptions"]
    assert consumption["activity"] == activity
    assert consumption["activityEnergyCost"] == {"value": pytest.approx(ENERGY_KWH), "unit": "kWh"}
    assert consumption["co2CostEquivalent"] == {"value": pytest.approx(GRAMS / 1e6), "unit": "tCO2eq"}


@pytest.mark.parametrize(("workload", "stage"), [("serve", "inference"), ("finetune", "finetuning")])
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

import argparse

import pytest

from wattline_workloads.jobs.llm import options as flags
from wattline_workloads.jobs.llm.options import PRESETS, find_preset


@pytest.mark.parametrize(("text", "lengths"), [("16", (16, 16)), ("16:64", (16, 64))])
def test_parse_length_range_accepts_number_or_range(text, lengths):
    assert flags.parse_length_range(text) == lengths


@pytest.mark.parametrize("text", ["0", "64:16", "many", "1:2:3", ":4", ""])
def test_parse_length_range_invalid_text_is_rejected(text):
    with pytest.raises(argparse.ArgumentTypeError, match="give 16, or 16:64"):
        flags.parse_length_range(text)


def test_find_preset_accepts_hub_names():
    assert find_preset("meta-llama/Llama-3.2-3B-Instruct") is PRESETS["llama-3.2-3b-instruct"]
    assert find_preset("openai-community/gpt2") is PRESETS["gpt2"]
    assert find_preset("nobody/else") is None


@pytest.mark.parametrize("name", PRESETS)
def test_preset_parameters_match_model(name):
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    transformers = pytest.importorskip("transformers", reason="needs the extra torch")
    from wattline_workloads.jobs.llm.models import _kind

    preset = PRESETS[name]
    config = transformers.AutoConfig.for_model(preset.model_type, **preset.config)
    with torch.device("meta"):  # shapes only
        model = _kind(config)[1].from_config(config)

    assert model.num_parameters() == preset.parameters

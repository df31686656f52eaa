import argparse

import pytest

from workloads.jobs.llm import decoding
from workloads.jobs.llm import options as flags
from workloads.jobs.llm.models import ModelError
from workloads.jobs.llm.options import PRESETS, find_preset


def test_pad_batch_left_aligns_last_tokens():
    pytest.importorskip("torch", reason="needs the extra torch")
    batch = decoding.pad_batch([[7, 8, 9], [5]], left=True)

    assert batch.ids.tolist() == [[7, 8, 9], [0, 0, 5]]
    assert batch.mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert (batch.tokens, batch.padding) == (4, 2)


def test_pad_batch_right_aligns_first_tokens():
    pytest.importorskip("torch", reason="needs the extra torch")
    batch = decoding.pad_batch([[7, 8, 9], [5]], left=False)

    assert batch.ids.tolist() == [[7, 8, 9], [5, 0, 0]]
    assert batch.mask.tolist() == [[1, 1, 1], [1, 0, 0]]


def test_synthetic_texts_have_lengths_and_depend_on_seed():
    rows = decoding.synthetic_texts(200, (3, 5), 10, seed=1)

    assert {len(row) for row in rows} == {3, 4, 5}
    assert {token for row in rows for token in row} == set(range(10))
    assert rows == decoding.synthetic_texts(200, (3, 5), 10, seed=1)
    assert rows != decoding.synthetic_texts(200, (3, 5), 10, seed=2)


def test_endless_batches_restart_after_last_text():
    batches = decoding.endless_batches([[1], [2], [3]], 2)

    assert [next(batches) for _ in range(3)] == [[[1], [2]], [[3], [1]], [[2], [3]]]


def test_tokenize_file_reads_one_text_per_line(tmp_path):
    (tmp_path / "texts").write_text("a b\n\n  \nc\n")

    assert decoding.tokenize_file(str(tmp_path / "texts"), lambda line: {"input_ids": [len(line)]}) == [[3], [1]]


@pytest.mark.parametrize("content", [b"\n \n", b"\xff\xfe\x00"])
def test_tokenize_file_without_text_is_rejected(tmp_path, content):
    (tmp_path / "texts").write_bytes(content)

    with pytest.raises(ModelError, match="texts"):
        decoding.tokenize_file(str(tmp_path / "texts"), lambda line: {"input_ids": [1]})


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
    from workloads.jobs.llm.models import _kind

    preset = PRESETS[name]
    config = transformers.AutoConfig.for_model(preset.model_type, **preset.config)
    with torch.device("meta"):  # shapes only
        model = _kind(config)[1].from_config(config)

    assert model.num_parameters() == preset.parameters

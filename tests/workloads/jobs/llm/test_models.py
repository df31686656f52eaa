"""Errors of the LLM jobs and of loading their models."""

import argparse
import json
import re

import pytest

from tests.workloads.jobs.llm_models import EOS, NEEDS_TORCH, TINY_MODEL, counting_model
from wattline.client import barrier
from wattline_workloads.jobs import llm_forward, llm_generate, llm_train
from wattline_workloads.jobs.llm import models

pytestmark = NEEDS_TORCH


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (llm_train, ("--model", "/nowhere"), "give the folder of a local model"),
        (
            llm_forward,
            ("--random", "nonsense"),
            "unknown shape 'nonsense'; give one of tiny, distilgpt2",
        ),
        (
            llm_forward,
            (*TINY_MODEL, "--seq-len", "257"),
            "257 tokens exceed the model's maximum of 256",
        ),
        (
            llm_generate,
            (*TINY_MODEL, "--prompt-tokens", "200", "--new-tokens", "57"),
            "257 tokens exceed the model",
        ),
        (llm_forward, ("--random", "tiny", "--device", "cuda:9"), "unknown device cuda:9"),
        (llm_forward, ("--random", "tiny", "--device", "gpu"), "'gpu' is not a device"),
        (llm_generate, (*TINY_MODEL, "--prompts", __file__), "needs the model's tokenizer"),
    ],
)
def test_llm_job_unsupported_settings_are_one_line_error(environment, module, arguments, message):
    with pytest.raises(SystemExit) as ended:
        module.main(arguments)

    assert message in ended.value.code
    assert "\n" not in ended.value.code
    assert environment.api.only_run.outcome == "failed"


def test_load_model_unavailable_suggests_random_weights(exporter, tmp_path):
    done = exporter.python(
        "-m", "wattline_workloads.jobs.llm_generate", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)
    )

    assert done.returncode == 1
    assert "or --random gpt2 for random weights of its shape" in done.stderr
    lines = [line for line in done.stderr.splitlines() if "no CUDA device" not in line]
    # the first line is the warning of the Hub client, the second one the end of the run
    assert len(lines) == 3
    assert re.match(r"wattline: run \S+ failed ", lines[1])


def test_llm_generate_with_encoder_fails(environment, tmp_path):
    from transformers import DistilBertConfig

    DistilBertConfig(vocab_size=50, dim=16, n_layers=1, n_heads=2, hidden_dim=16).save_pretrained(
        tmp_path
    )
    with pytest.raises(SystemExit, match="does not predict next tokens"):
        llm_generate.main(["--random", str(tmp_path)])


def test_load_model_too_large_is_one_line_error(environment, tmp_path):
    shape = {
        "model_type": "gpt2",
        "vocab_size": 10**12,
        "n_embd": 64,
        "n_layer": 1,
        "n_head": 1,
    }  # 256 TB
    (tmp_path / "config.json").write_text(json.dumps(shape))
    with pytest.raises(SystemExit) as ended:
        llm_forward.main(
            ["--random", str(tmp_path / "config.json"), "--device", "cpu", "--dtype", "float32"]
        )

    assert "a smaller --batch-size" in ended.value.code
    assert "\n" not in ended.value.code


def test_load_model_inconsistent_shape_is_one_line_error(environment, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "n_embd": 10, "n_head": 3})
    )
    with pytest.raises(
        SystemExit, match=r"cannot create a model of shape .*config.json: .*divisible"
    ):
        llm_forward.main(["--random", str(tmp_path / "config.json")])


def test_llm_forward_failed_tenant_stops_before_measure(environment, tmp_path, monkeypatch):
    (tmp_path / barrier.ABANDONED).touch()
    monkeypatch.setenv(barrier.FOLDER, f"{tmp_path}:2:30")
    with pytest.raises(SystemExit, match="another tenant failed"):
        llm_forward.main([*TINY_MODEL, "--iterations", "1", "--seq-len", "4"])

    assert environment.api.only_run.work == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--top-k", "5"),
        ("--prompt-tokens", "9:2"),
        ("--temperature", "0"),
        ("--prompts", "/nowhere"),
    ],
)
def test_llm_generate_invalid_options_fail_before_run(exporter, capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        llm_generate.main(arguments)

    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert exporter.api.runs == {}


def test_load_model_reads_eos_token(tmp_path):
    options = argparse.Namespace(
        model=counting_model(tmp_path), random=None, device="cpu", dtype="float32", seed=0
    )
    assert models.load_model(options).eos == {EOS}

"""LLM jobs with real models on the CPU, in this process, since torch takes seconds to import."""

import json
import math
from dataclasses import dataclass

import pytest

from exporter.contract.run import RECORD_EVENT, IterationEvent, PhaseEvent, RunView
from tests.workloads.job_environment import job_environment
from tests.workloads.jobs.llm_models import EOS, NEEDS_TORCH, SIZE, counting_model, uniform_model
from workloads import client
from workloads.jobs import llm_forward, llm_generate, llm_train
from workloads.jobs.base import percentile_results
from workloads.jobs.llm.common import World

pytestmark = NEEDS_TORCH
TINY = ("--random", "tiny", "--device", "cpu")


@dataclass
class Done:
    run: RunView
    iterations: list[IterationEvent]
    phases: list[str]


@pytest.fixture
def environment(exporter, tmp_path):
    with job_environment(exporter, tmp_path / "record"):
        yield exporter


@pytest.fixture
def job(environment, tmp_path):
    def run_job(module, *arguments: str) -> Done:
        assert module.main(arguments) == 0
        return _done(environment.api.only_run, tmp_path)

    return run_job


def _done(run: RunView, tmp_path) -> Done:
    lines = (tmp_path / "record" / "events.jsonl").read_text().splitlines()
    events = [RECORD_EVENT.validate_python(json.loads(line)) for line in lines]
    iterations = [event for event in events if isinstance(event, IterationEvent)]
    return Done(run, iterations, [event.name for event in events if isinstance(event, PhaseEvent)])


@pytest.fixture
def texts(tmp_path):
    """Texts of three and five tokens that the counting model continues from position 0."""
    path = tmp_path / "texts"
    path.write_text("9 1 2\n9 1 2 3 4\n")
    return str(path)


def test_generate_counts_tokens_by_kind(job, tmp_path, texts):
    model = counting_model(tmp_path / "model", eos_at=5)
    options = ("--batch-size", "2", "--iterations", "3", "--new-tokens", "10")
    done = job(llm_generate, "--model", model, "--prompts", texts, *options)

    # A batch: 4 and 2 tokens until EOS, prompts of 3 and 5; two columns of padding before the short prompt, and two
    # tokens computed for the text after its end. The warm-up is not counted.
    assert done.run.work == {"generated_tokens": 18, "prompt_tokens": 24, "padding_tokens": 12, "requests": 6}
    assert (done.run.workload, done.run.outcome) == ("llm-generate", "ok")
    assert done.phases == ["load", "warmup", "measure", "rest"]
    assert [one.work["generated_tokens"] for one in done.iterations] == [6, 6, 6]


def test_generate_ignore_eos_generates_all_tokens(job, tmp_path, texts):
    model = counting_model(tmp_path / "model", eos_at=5)
    options = ("--batch-size", "2", "--iterations", "1", "--ignore-eos", "--new-tokens", "6")
    done = job(llm_generate, "--model", model, "--prompts", texts, *options)

    assert done.run.work == {"generated_tokens": 12, "prompt_tokens": 8, "padding_tokens": 2, "requests": 2}


def test_generate_reports_latencies_and_rates(job):
    options = ("--batch-size", "3", "--prompt-tokens", "4", "--new-tokens", "5", "--iterations", "4")
    done = job(llm_generate, *TINY, *options)

    results = done.run.results
    latencies_s = [one.latency_seconds for one in done.iterations]
    ttfts_s = [one.values["ttft_seconds"] for one in done.iterations]
    assert done.run.work == {"generated_tokens": 60, "prompt_tokens": 48, "padding_tokens": 0, "requests": 12}
    assert results["tokens_per_second_busy"] == pytest.approx(60 / sum(latencies_s))
    assert 0 < results["tokens_per_second"] <= results["tokens_per_second_busy"]
    assert results["ttft_seconds_mean"] == pytest.approx(sum(ttfts_s) / 4)
    # all texts have the same length: the batch takes one first token and four more
    assert results["ttft_seconds_mean"] + 4 * results["tpot_seconds_mean"] == pytest.approx(sum(latencies_s) / 4)
    assert results["itl_seconds_mean"] == pytest.approx(results["tpot_seconds_mean"])
    assert done.iterations[-1].values["tokens_per_second_wall"] == pytest.approx(results["tokens_per_second"])
    assert done.iterations[1].values["tokens_per_second"] == pytest.approx(15 / latencies_s[1])


def test_generate_different_lengths_are_padded(job):
    options = ("--batch-size", "4", "--prompt-tokens", "2:9", "--new-tokens", "2", "--iterations", "5", "--seed", "3")
    work = job(llm_generate, *TINY, *options).run.work

    assert work["generated_tokens"] == 40
    assert work["padding_tokens"] > 0
    assert (work["prompt_tokens"] + work["padding_tokens"]) % 4 == 0  # four rows of the same length
    assert work["prompt_tokens"] + work["padding_tokens"] <= 5 * 4 * 9


def test_generate_sampling_runs_for_duration(job):
    options = ("--batch-size", "2", "--new-tokens", "3", "--temperature", "0.8", "--top-p", "0.9", "--top-k", "5")
    run = job(llm_generate, *TINY, *options, "--duration", "0.2").run

    assert run.duration_seconds >= 0.2
    assert run.work["generated_tokens"] == 3 * run.work["requests"]


def test_generate_half_precision_generates_all_tokens(job):
    options = ("--batch-size", "2", "--new-tokens", "3", "--iterations", "1", "--dtype", "bfloat16")

    assert job(llm_generate, *TINY, *options).run.work["generated_tokens"] == 6


def test_train_loss_excludes_padding(job, tmp_path, texts):
    model = counting_model(tmp_path / "model")
    options = ("--batch-size", "2", "--iterations", "1", "--warmup", "0")
    done = job(llm_train, "--model", model, "--texts", texts, *options)

    # A normalized unit vector of 16 is sqrt(15) where it is 1 and -1/sqrt(15) elsewhere, and so are the logits. Each
    # next token is predicted correctly; the padding (0 after 2) is not and would add 4.35.
    right, wrong = math.sqrt(SIZE - 1), -1 / math.sqrt(SIZE - 1)
    expected = math.log(math.exp(right) + (SIZE - 1) * math.exp(wrong)) - right
    assert done.run.results["loss"] == pytest.approx(expected, rel=1e-3)  # 0.2159; epsilon of the layer norm
    assert done.run.work == {"trained_tokens": 8, "padding_tokens": 2, "samples": 2, "steps": 1}
    assert done.iterations[0].values["loss"] == done.run.results["loss"]


def test_train_loss_of_uniform_model_is_log_of_vocabulary(job, tmp_path):
    model = uniform_model(tmp_path / "model")
    run = job(llm_train, "--model", model, "--samples", "4", "--iterations", "1", "--warmup", "0").run

    assert run.results["loss"] == pytest.approx(math.log(16))  # 2.7726


def test_train_reduces_loss(job):
    options = ("--samples", "4", "--batch-size", "4", "--iterations", "10", "--learning-rate", "0.01")
    run = job(llm_train, *TINY, *options).run

    assert run.results["loss"] < 0.9 * run.results["loss_first"]


def test_train_epoch_covers_all_samples(job):
    options = ("--samples", "10", "--sample-tokens", "5", "--batch-size", "4", "--epochs", "2")
    done = job(llm_train, *TINY, *options)

    assert [one.work["samples"] for one in done.iterations] == [4, 4, 2, 4, 4, 2]
    assert done.run.work == {"trained_tokens": 100, "padding_tokens": 0, "samples": 20, "steps": 6}
    assert done.run.results["samples_per_second"] == pytest.approx(done.run.results["tokens_per_second"] / 5)


def test_train_long_samples_are_truncated(job):
    options = ("--samples", "2", "--sample-tokens", "20", "--seq-len", "8", "--epochs", "1", "--warmup", "0")

    assert job(llm_train, *TINY, *options).run.work["trained_tokens"] == 16


@pytest.mark.parametrize("shape", ["tiny", "encoder"])
def test_forward_counts_tokens_of_decoder_and_encoder(job, tmp_path, shape):
    if shape == "encoder":
        from transformers import DistilBertConfig

        DistilBertConfig(vocab_size=50, dim=16, n_layers=1, n_heads=2, hidden_dim=16).save_pretrained(tmp_path)
        shape = str(tmp_path / "config.json")
    options = ("--batch-size", "2", "--seq-len", "6", "--iterations", "4", "--warmup", "2")
    done = job(llm_forward, "--random", shape, *options)

    latencies_s = [one.latency_seconds for one in done.iterations]
    assert done.run.work == {"prompt_tokens": 48, "samples": 8, "steps": 4}
    assert done.run.results["tokens_per_second_busy"] == pytest.approx(48 / sum(latencies_s))
    assert done.run.results["latency_seconds_mean"] == pytest.approx(sum(latencies_s) / 4)


def test_forward_latencies_keep_their_order(environment, tmp_path):
    scripted_s = [0.3, 0.1, 0.2]
    options = llm_forward.parser().parse_args(["--iterations", "3"])
    with client.run("llm-forward") as run:
        llm_forward._passes(run, options, iter(scripted_s).__next__, World.alone())
    done = _done(environment.api.only_run, tmp_path)

    assert [one.latency_seconds for one in done.iterations] == scripted_s
    assert [one.index for one in done.iterations] == [0, 1, 2]
    assert done.run.results["latency_seconds_p50"] == 0.2
    assert done.run.results["latency_seconds_p90"] == pytest.approx(0.28)  # 0.2 + 0.8 x 0.1
    assert done.run.results["tokens_per_second_busy"] == pytest.approx(3 * 8 * 128 / 0.6)
    assert percentile_results("x", scripted_s)["x_p50"] == 0.2


def test_load_model_reads_eos_token(tmp_path):
    import argparse

    from workloads.jobs.llm import models

    options = argparse.Namespace(model=counting_model(tmp_path), random=None, device="cpu", dtype="float32", seed=0)
    assert models.load_model(options).eos == {EOS}

"""Job llm-generate with real models on the CPU, in this process, since torch takes seconds to
import.
"""

import pytest

from tests.workloads.jobs.llm_models import NEEDS_TORCH, TINY_MODEL, counting_model
from wattline_workloads.jobs import llm_generate

pytestmark = NEEDS_TORCH


def test_generate_counts_tokens_by_kind(in_process_job, tmp_path, texts):
    model = counting_model(tmp_path / "model", eos_at=5)
    options = ("--batch-size", "2", "--iterations", "3", "--new-tokens", "10")
    done = in_process_job(llm_generate, "--model", model, "--prompts", texts, *options)

    # A batch: 4 and 2 tokens until EOS, prompts of 3 and 5; two columns of padding before the short
    # prompt, and two tokens computed for the text after its end. The warm-up is not counted.
    assert done.run.work == {
        "generated_tokens": 18,
        "prompt_tokens": 24,
        "padding_tokens": 12,
        "requests": 6,
    }
    assert (done.run.workload, done.run.outcome) == ("llm-generate", "ok")
    assert done.phases == ["load", "warmup", "measure", "rest"]
    assert [one.work["generated_tokens"] for one in done.iterations] == [6, 6, 6]


def test_generate_ignore_eos_generates_all_tokens(in_process_job, tmp_path, texts):
    model = counting_model(tmp_path / "model", eos_at=5)
    options = ("--batch-size", "2", "--iterations", "1", "--ignore-eos", "--new-tokens", "6")
    done = in_process_job(llm_generate, "--model", model, "--prompts", texts, *options)

    assert done.run.work == {
        "generated_tokens": 12,
        "prompt_tokens": 8,
        "padding_tokens": 2,
        "requests": 2,
    }


def test_generate_reports_latencies_and_rates(in_process_job):
    options = (
        "--batch-size",
        "3",
        "--prompt-tokens",
        "4",
        "--new-tokens",
        "5",
        "--iterations",
        "4",
    )
    done = in_process_job(llm_generate, *TINY_MODEL, *options)

    results = done.run.results
    latencies_s = [one.latency_seconds for one in done.iterations]
    ttfts_s = [one.values["ttft_seconds"] for one in done.iterations]
    assert done.run.work == {
        "generated_tokens": 60,
        "prompt_tokens": 48,
        "padding_tokens": 0,
        "requests": 12,
    }
    assert results["tokens_per_second_busy"] == pytest.approx(60 / sum(latencies_s))
    assert 0 < results["tokens_per_second"] <= results["tokens_per_second_busy"]
    assert results["ttft_seconds_mean"] == pytest.approx(sum(ttfts_s) / 4)
    # all texts have the same length: the batch takes one first token and four more
    assert results["ttft_seconds_mean"] + 4 * results["tpot_seconds_mean"] == pytest.approx(
        sum(latencies_s) / 4
    )
    assert results["itl_seconds_mean"] == pytest.approx(results["tpot_seconds_mean"])
    assert done.iterations[-1].values["tokens_per_second_wall"] == pytest.approx(
        results["tokens_per_second"]
    )
    assert done.iterations[1].values["tokens_per_second"] == pytest.approx(15 / latencies_s[1])


def test_generate_different_lengths_are_padded(in_process_job):
    options = (
        "--batch-size",
        "4",
        "--prompt-tokens",
        "2:9",
        "--new-tokens",
        "2",
        "--iterations",
        "5",
        "--seed",
        "3",
    )
    work = in_process_job(llm_generate, *TINY_MODEL, *options).run.work

    assert work["generated_tokens"] == 40
    assert work["padding_tokens"] > 0
    assert (work["prompt_tokens"] + work["padding_tokens"]) % 4 == 0  # four rows of the same length
    assert work["prompt_tokens"] + work["padding_tokens"] <= 5 * 4 * 9


def test_generate_sampling_runs_for_duration(in_process_job):
    options = (
        "--batch-size",
        "2",
        "--new-tokens",
        "3",
        "--temperature",
        "0.8",
        "--top-p",
        "0.9",
        "--top-k",
        "5",
    )
    run = in_process_job(llm_generate, *TINY_MODEL, *options, "--duration", "0.2").run

    assert run.duration_s >= 0.2
    assert run.work["generated_tokens"] == 3 * run.work["requests"]


def test_generate_half_precision_generates_all_tokens(in_process_job):
    options = ("--batch-size", "2", "--new-tokens", "3", "--iterations", "1", "--dtype", "bfloat16")

    assert in_process_job(llm_generate, *TINY_MODEL, *options).run.work["generated_tokens"] == 6

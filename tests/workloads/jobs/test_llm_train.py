"""Job llm-train with real models on the CPU, in this process, since torch takes seconds to
import.
"""

import math

import pytest

from tests.workloads.jobs.llm_models import (
    NEEDS_TORCH,
    SIZE,
    TINY_MODEL,
    counting_model,
    uniform_model,
)
from wattline_workloads.jobs import llm_train

pytestmark = NEEDS_TORCH


def test_train_loss_excludes_padding(in_process_job, tmp_path, texts):
    model = counting_model(tmp_path / "model")
    options = ("--batch-size", "2", "--iterations", "1", "--warmup", "0")
    done = in_process_job(llm_train, "--model", model, "--texts", texts, *options)

    # A normalized unit vector of 16 is sqrt(15) where it is 1 and -1/sqrt(15) elsewhere, and so are
    # the logits. Each next token is predicted correctly; the padding (0 after 2) is not and would
    # add 4.35.
    right, wrong = math.sqrt(SIZE - 1), -1 / math.sqrt(SIZE - 1)
    expected = math.log(math.exp(right) + (SIZE - 1) * math.exp(wrong)) - right
    assert done.run.results["loss"] == pytest.approx(
        expected, rel=1e-3
    )  # 0.2159; epsilon of the layer norm
    assert done.run.work == {"trained_tokens": 8, "padding_tokens": 2, "samples": 2, "steps": 1}
    assert done.iterations[0].values["loss"] == done.run.results["loss"]


def test_train_loss_of_uniform_model_is_log_of_vocabulary(in_process_job, tmp_path):
    model = uniform_model(tmp_path / "model")
    run = in_process_job(
        llm_train, "--model", model, "--samples", "4", "--iterations", "1", "--warmup", "0"
    ).run

    assert run.results["loss"] == pytest.approx(math.log(16))  # 2.7726


def test_train_reduces_loss(in_process_job):
    options = (
        "--samples",
        "4",
        "--batch-size",
        "4",
        "--iterations",
        "10",
        "--learning-rate",
        "0.01",
    )
    run = in_process_job(llm_train, *TINY_MODEL, *options).run

    assert run.results["loss"] < 0.9 * run.results["loss_first"]


def test_train_epoch_covers_all_samples(in_process_job):
    options = ("--samples", "10", "--sample-tokens", "5", "--batch-size", "4", "--epochs", "2")
    done = in_process_job(llm_train, *TINY_MODEL, *options)

    assert [one.work["samples"] for one in done.iterations] == [4, 4, 2, 4, 4, 2]
    assert done.run.work == {"trained_tokens": 100, "padding_tokens": 0, "samples": 20, "steps": 6}
    assert done.run.results["samples_per_second"] == pytest.approx(
        done.run.results["tokens_per_second"] / 5
    )


def test_train_long_samples_are_truncated(in_process_job):
    options = (
        "--samples",
        "2",
        "--sample-tokens",
        "20",
        "--seq-len",
        "8",
        "--epochs",
        "1",
        "--warmup",
        "0",
    )

    assert in_process_job(llm_train, *TINY_MODEL, *options).run.work["trained_tokens"] == 16

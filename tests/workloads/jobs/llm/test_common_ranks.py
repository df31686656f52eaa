"""Ranks of one job under a launcher."""

import pytest

from tests.workloads.jobs.llm_models import NEEDS_TORCH
from tests.workloads.programs import free_port


@NEEDS_TORCH
def test_llm_train_two_ranks_share_one_run_and_model(exporter):
    """Start two ranks as torchrun does. Gradients are averaged, so 9 samples make two steps of two samples per rank."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    model = ("--random", "tiny", "--device", "cpu", "--warmup", "0", "--epochs", "1")
    arguments = ("--samples", "9", "--sample-tokens", "5", "--batch-size", "2")
    processes = [
        exporter.start(
            "-m", "workloads.jobs.llm_train", *model, *arguments, RANK=str(rank), LOCAL_RANK=str(rank), **shared
        )
        for rank in range(2)
    ]
    try:
        stderr = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()

    run = exporter.api.only_run
    assert [process.returncode for process in processes] == [0, 0], stderr
    assert "the last 1 of 9 samples are unused" in stderr[0]
    assert run.work == {"trained_tokens": 40, "padding_tokens": 0, "samples": 8, "steps": 2}
    assert run.results["samples_per_second"] == pytest.approx(run.results["tokens_per_second"] / 5)
    assert run.results["loss"] > 0

"""Ranks of one job under a launcher."""

import pytest

from tests.workloads.jobs.llm_models import NEEDS_TORCH
from tests.workloads.programs import TORCH_NURSERY, free_port


@NEEDS_TORCH
def test_llm_train_two_ranks_share_one_run_and_model(exporter, tmp_path):
    """Start two ranks as torchrun does. Gradients are averaged, so 9 samples make two steps of two
    samples per rank.
    """
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    model = ("--random", "tiny", "--device", "cpu", "--warmup", "0", "--epochs", "1")
    arguments = ("--samples", "9", "--sample-tokens", "5", "--batch-size", "2")
    program = ("-m", "wattline_workloads.jobs.llm_train", *model, *arguments)
    logs = [tmp_path / f"rank-{rank}" for rank in range(2)]
    processes = []
    for rank, log in enumerate(logs):
        environment = {**exporter.environment, "RANK": str(rank), "LOCAL_RANK": str(rank), **shared}
        with log.open("wb") as output:
            processes.append(TORCH_NURSERY.start(program, environment, output, output))
    try:
        codes = [process.wait(120) for process in processes]
    finally:
        for process in processes:
            process.kill()

    stderr = [log.read_text() for log in logs]
    run = exporter.api.only_run
    assert codes == [0, 0], stderr
    assert "the last 1 of 9 samples are unused" in stderr[0]
    assert run.work == {"trained_tokens": 40, "padding_tokens": 0, "samples": 8, "steps": 2}
    assert run.results["samples_per_second"] == pytest.approx(run.results["tokens_per_second"] / 5)
    assert run.results["loss"] > 0

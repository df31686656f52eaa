"""The processes of one job under a launcher."""

import pytest

from tests.workloads.conftest import free_port

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")


def test_llm_train_two_ranks_share_one_run_and_model(exporter):
    """As torchrun starts them; the gradients are averaged, so 9 samples make two steps of two on each."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    model = ("--random", "tiny", "--device", "cpu", "--warmup", "0", "--epochs", "1")
    arguments = ("--samples", "9", "--sample-tokens", "5", "--batch-size", "2")
    started = [
        exporter.start(
            "-m", "workloads.jobs.llm_train", *model, *arguments, RANK=str(rank), LOCAL_RANK=str(rank), **shared
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=120)[1] for process in started]
    finally:
        for process in started:
            process.kill()

    run = exporter.api.only_run
    assert [process.returncode for process in started] == [0, 0], said
    assert "the last 1 of 9 samples are left out" in said[0]
    assert run.work == {"trained_tokens": 40, "padding_tokens": 0, "samples": 8, "steps": 2}
    assert run.results["samples_per_second"] == pytest.approx(run.results["tokens_per_second"] / 5)
    assert run.results["loss"] > 0

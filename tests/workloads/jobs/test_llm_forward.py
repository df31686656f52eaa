"""Job llm-forward with real models on the CPU, in this process, since torch takes seconds to
import.
"""

import pytest

import wattline
from tests.workloads.jobs.llm_models import NEEDS_TORCH
from tests.workloads.jobs.recorded_runs import recorded_run
from wattline_workloads.jobs import llm_forward
from wattline_workloads.jobs.base import percentile_results
from wattline_workloads.jobs.llm.common import World

pytestmark = NEEDS_TORCH


@pytest.mark.parametrize("shape", ["tiny", "encoder"])
def test_forward_counts_tokens_of_decoder_and_encoder(in_process_job, tmp_path, shape):
    if shape == "encoder":
        from transformers import DistilBertConfig

        DistilBertConfig(
            vocab_size=50, dim=16, n_layers=1, n_heads=2, hidden_dim=16
        ).save_pretrained(tmp_path)
        shape = str(tmp_path / "config.json")
    options = ("--batch-size", "2", "--seq-len", "6", "--iterations", "4", "--warmup", "2")
    done = in_process_job(llm_forward, "--random", shape, *options)

    latencies_s = [one.latency_seconds for one in done.iterations]
    assert done.run.work == {"prompt_tokens": 48, "samples": 8, "steps": 4}
    assert done.run.results["tokens_per_second_busy"] == pytest.approx(48 / sum(latencies_s))
    assert done.run.results["latency_seconds_mean"] == pytest.approx(sum(latencies_s) / 4)


def test_forward_latencies_keep_their_order(environment, tmp_path):
    scripted_s = [0.3, 0.1, 0.2]
    options = llm_forward.parser().parse_args(["--iterations", "3"])
    with wattline.run("llm-forward") as run:
        llm_forward._passes(run, options, iter(scripted_s).__next__, World.alone())
    done = recorded_run(environment.api.only_run, tmp_path)

    assert [one.latency_seconds for one in done.iterations] == scripted_s
    assert [one.index for one in done.iterations] == [0, 1, 2]
    assert done.run.results["latency_seconds_p50"] == 0.2
    assert done.run.results["latency_seconds_p90"] == pytest.approx(0.28)  # 0.2 + 0.8 x 0.1
    assert done.run.results["tokens_per_second_busy"] == pytest.approx(3 * 8 * 128 / 0.6)
    assert percentile_results("x", scripted_s)["x_p50"] == 0.2

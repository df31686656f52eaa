"""Run forward passes of a transformer over whole batches."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import wattline
from wattline_workloads.jobs.base import JobParser, job_parser, percentile_results, positive_int
from wattline_workloads.jobs.kernels import torch_device
from wattline_workloads.jobs.llm import options as llm_options
from wattline_workloads.jobs.llm.common import World, join_world, measured_rounds, run_job
from wattline_workloads.jobs.llm.decoding import TokenRates, token_rate_results

_JOB = "llm-forward"


def parser() -> JobParser:
    options = job_parser(_JOB, __doc__)
    llm_options.add_model_options(options, "distilgpt2", "auto", 8)
    options.add_argument(
        "--seq-len",
        type=positive_int,
        default=128,
        metavar="N",
        help="tokens per sequence; default: 128",
    )
    llm_options.add_length_options(options, 100, 10, "passes")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(_JOB, parser().parse_args(arguments), _measure)


def _measure(run: wattline.ActiveRun, options: argparse.Namespace) -> None:
    run.phase("load")
    if run.simulation is not None:
        _simulate(run, options, run.simulation)
        return
    import torch

    from wattline_workloads.jobs.llm import decoding, models

    loaded = models.load_model(options)
    models.check_positions(loaded, options.seq_len)
    rows = decoding.synthetic_texts(
        options.batch_size, (options.seq_len,) * 2, loaded.vocabulary, options.seed
    )
    batch = decoding.pad_batch(rows, left=False)
    ids = batch.ids.to(loaded.device)
    mask = batch.mask.to(loaded.device)
    loaded.module.eval()

    def once() -> float:
        return torch_device.time_on_device(
            loaded.device, lambda: loaded.module(input_ids=ids, attention_mask=mask)
        )

    with torch.inference_mode(), join_world(loaded.device) as world:
        run.phase("warmup")
        for _ in range(options.warmup):
            once()
        world.barrier(run)
        _passes(run, options, once, world)


def _simulate(run: wattline.ActiveRun, options: argparse.Namespace, state: str) -> None:
    from wattline_workloads.jobs.llm.simulated import open_simulated_model

    run.barrier()
    with open_simulated_model(_JOB, options, state) as model:
        _passes(
            run, options, lambda: model.forward(options.batch_size * options.seq_len), World.alone()
        )


def _passes(
    run: wattline.ActiveRun, options: argparse.Namespace, once: Callable[[], float], world: World
) -> None:
    run.phase("measure")
    tokens = options.batch_size * options.seq_len
    began_s = time.perf_counter()
    sums = TokenRates(began_s)
    latencies_s = []
    for _ in measured_rounds(options.iterations, options.duration, world.any):
        latencies_s.append(once())
        values = sums.add(tokens, latencies_s[-1], time.perf_counter())
        run.iteration(
            latencies_s[-1], values, prompt_tokens=tokens, samples=options.batch_size, steps=1
        )
    run.phase("rest")
    run.result(
        **percentile_results("latency_seconds", latencies_s),
        **token_rate_results(
            world.total(sums.tokens), world.longest(sums.busy_s), world.longest(sums.wall_s)
        ),
    )


if __name__ == "__main__":
    sys.exit(main())

"""Forward passes of a transformer over whole batches: what one pass costs, alone or beside other tenants."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from workloads import client, jobs
from workloads.jobs.kernels import percentiles, torch_device
from workloads.jobs.llm import options as flags
from workloads.jobs.llm.common import World, joined, rounds, run_job
from workloads.jobs.llm.timing import Rates, rates

_JOB = "llm-forward"


def parser() -> jobs.Options:
    options = jobs.options(_JOB, __doc__)
    flags.add_model(options, "distilgpt2", "auto", 8)
    options.add_argument("--seq-len", type=jobs.count, default=128, metavar="N", help="tokens a sequence; default: 128")
    flags.add_length(options, 100, 10, "passes")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(_JOB, parser().parse_args(arguments), _measure)


def _measure(run: client.Run, options: argparse.Namespace) -> None:
    run.phase("load")
    if run.simulation is not None:
        _simulate(run, options, run.simulation)
        return
    import torch

    from workloads.jobs.llm import decoding, models

    loaded = models.load(options)
    models.check_positions(loaded, options.seq_len)
    rows = decoding.synthetic(options.batch_size, (options.seq_len,) * 2, loaded.vocabulary, options.seed)
    batch = decoding.padded(rows, left=False)
    ids, mask = batch.ids.to(loaded.device), batch.mask.to(loaded.device)
    loaded.module.eval()

    def once() -> float:
        return torch_device.timed(loaded.device, lambda: loaded.module(input_ids=ids, attention_mask=mask))

    with torch.inference_mode(), joined(loaded.device) as world:
        run.phase("warmup")
        for _ in range(options.warmup):
            once()
        world.barrier(run)
        _passes(run, options, once, world)


def _simulate(run: client.Run, options: argparse.Namespace, state: str) -> None:
    from workloads.jobs.llm.simulated import simulated

    run.barrier()
    with simulated(_JOB, options, state) as model:
        _passes(run, options, lambda: model.forward(options.batch_size * options.seq_len), World.alone())


def _passes(run: client.Run, options: argparse.Namespace, once: Callable[[], float], world: World) -> None:
    run.phase("measure")
    tokens = options.batch_size * options.seq_len
    began_s = time.perf_counter()
    sums, latencies_s = Rates(began_s), []
    for _ in rounds(options.iterations, options.duration, world.any):
        latencies_s.append(once())
        values = sums.add(tokens, latencies_s[-1], time.perf_counter())
        run.iteration(latencies_s[-1], values, prompt_tokens=tokens, samples=options.batch_size, steps=1)
    run.phase("rest")
    run.result(
        **percentiles.of("latency_seconds", latencies_s),
        **rates(world.total(sums.tokens), world.longest(sums.busy_s), world.longest(sums.wall_s)),
    )


if __name__ == "__main__":
    sys.exit(main())

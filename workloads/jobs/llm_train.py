"""Train a transformer to predict the next token, with AdamW: loss, and tokens a second."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workloads import client, jobs
from workloads.client.messages import log_message
from workloads.jobs.kernels import percentiles
from workloads.jobs.llm import options as flags
from workloads.jobs.llm.common import World, joined, rounds, run_job
from workloads.jobs.llm.timing import Rates, rates

if TYPE_CHECKING:
    from workloads.jobs.llm.decoding import Batch, Row
    from workloads.jobs.llm.models import Loaded

_JOB = "llm-train"
_EPOCHS = 20


@dataclass(frozen=True, slots=True)
class _Step:
    """One batch learned; `loss` is None where no model ran."""

    latency_s: float
    samples: int
    tokens: int
    padding: int
    loss: float | None


def parser() -> jobs.Options:
    options = jobs.options(_JOB, __doc__)
    flags.add_model(options, "gpt2", "float32", 1975)
    texts = options.add_mutually_exclusive_group()
    texts.add_argument(
        "--sample-tokens",
        type=flags.lengths,
        default=(6, 10),
        metavar="N[:M]",
        help="synthetic samples of so many tokens; default: 6:10",
    )
    texts.add_argument("--texts", type=flags.existing_file, metavar="FILE", help="a sample a line")
    options.add_argument(
        "--samples", type=jobs.count, default=2000, metavar="N", help="synthetic ones, of all processes; default: 2000"
    )
    options.add_argument("--seq-len", type=jobs.count, default=2048, metavar="N", help="cut longer ones; default: 2048")
    options.add_argument("--learning-rate", type=_rate, default=5e-5, metavar="R", help="default: 5e-5")
    options.add_argument("--weight-decay", type=_rate, default=0.0, metavar="R", help="AdamW's; default: 0")
    options.add_argument(
        "--epochs",
        type=jobs.count,
        default=_EPOCHS,
        metavar="N",
        help=f"unless steps or a duration are given; default: {_EPOCHS}",
    )
    flags.add_length(options, 0, 1, "steps")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(_JOB, parser().parse_args(arguments), _measure)


def _rate(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _measure(run: client.Run, options: argparse.Namespace) -> None:
    run.phase("load")
    if run.simulation is not None:
        _simulate(run, options, run.simulation)
        return
    from workloads.jobs.llm import models

    loaded = models.load(options)
    models.require_causal(loaded)
    with joined(loaded.device) as world:
        rows = _rows(options, loaded, world)
        learn = _learner(options, loaded, world)
        batches = _batches(rows, options.batch_size)
        run.phase("warmup")
        for _ in range(options.warmup):
            learn(next(batches))
        world.barrier(run)
        batches = _batches(rows, options.batch_size)
        _steps(run, options, lambda: learn(next(batches)), _count(options, len(rows)), world)


def _rows(options: argparse.Namespace, loaded: Loaded, world: World) -> list[Row]:
    """This process's share; all have the same number. Raises ModelError."""
    from workloads.jobs.llm import decoding, models

    if options.texts:
        rows = decoding.read(options.texts, models.tokenizer(loaded))
    else:
        rows = decoding.synthetic(options.samples, options.sample_tokens, loaded.vocabulary, options.seed)
    rows = [row[: options.seq_len] for row in rows]
    models.check_positions(loaded, max(map(len, rows)))
    each, left = divmod(len(rows), world.size)
    if each == 0:
        raise models.ModelError(f"{len(rows)} samples are too few for {world.size} processes; give more")
    if left and world.rank == 0:
        log_message(f"the last {left} of {len(rows)} samples are left out, so that all {world.size} ranks have as many")
    return rows[world.rank :: world.size][:each]


def _batches(rows: Sequence[Row], size: int) -> Iterator[Batch]:
    """In the order of the rows, epoch after epoch; the last of an epoch may be smaller."""
    from workloads.jobs.llm import decoding

    while True:
        for begin in range(0, len(rows), size):
            yield decoding.padded(rows[begin : begin + size], left=False)


def _count(options: argparse.Namespace, rows: int) -> int:
    return int(options.iterations or options.epochs * math.ceil(rows / options.batch_size))


def _learner(options: argparse.Namespace, loaded: Loaded, world: World) -> Callable[[Batch], _Step]:
    import torch

    module = world.distributed(loaded.module.train())
    optimizer = torch.optim.AdamW(module.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay)

    def learn(batch: Batch) -> _Step:
        began_s = world.clock()
        ids, mask = batch.ids.to(loaded.device), batch.mask.to(loaded.device)
        labels = ids.masked_fill(mask == 0, -100)  # padding teaches nothing
        loss = module(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return _Step(world.clock() - began_s, len(ids), batch.tokens, batch.padding, float(loss.detach()))

    return learn


def _simulate(run: client.Run, options: argparse.Namespace, state: str) -> None:
    from workloads.jobs.llm.decoding import synthetic
    from workloads.jobs.llm.models import ModelError
    from workloads.jobs.llm.simulated import simulated

    if options.texts:
        raise ModelError("on simulated GPUs samples are synthetic; give --sample-tokens instead of --texts")
    rows = synthetic(options.samples, options.sample_tokens, 1, options.seed)
    slices = itertools.cycle(range(0, len(rows), options.batch_size))

    def learn() -> _Step:
        begin = next(slices)
        lengths = [len(row) for row in rows[begin : begin + options.batch_size]]
        columns = len(lengths) * max(lengths)
        return _Step(model.train(columns), len(lengths), sum(lengths), columns - sum(lengths), None)

    run.barrier()
    with simulated(_JOB, options, state) as model:
        _steps(run, options, learn, _count(options, len(rows)), World.alone())


def _steps(run: client.Run, options: argparse.Namespace, step: Callable[[], _Step], count: int, world: World) -> None:
    run.phase("measure")
    sums, latencies_s, losses, samples = Rates(time.perf_counter()), list[float](), list[float](), 0
    for _ in rounds(count, options.duration, world.any):
        one = step()
        latencies_s.append(one.latency_s)
        samples += one.samples
        values = sums.add(one.tokens, one.latency_s, time.perf_counter())
        if one.loss is not None:
            losses.append(one.loss)
            values["loss"] = one.loss
        amounts = {"trained_tokens": one.tokens, "padding_tokens": one.padding, "samples": one.samples}
        if world.rank == 0:  # all processes make one step together
            amounts["steps"] = 1
        run.iteration(one.latency_s, values, **amounts)
    run.phase("rest")
    wall_s = world.longest(sums.wall_s)
    run.result(
        **percentiles.of("step_seconds", latencies_s),
        **rates(world.total(sums.tokens), world.longest(sums.busy_s), wall_s),
        samples_per_second=world.total(samples) / wall_s,
    )
    if losses:
        run.result(loss=world.total(losses[-1]) / world.size, loss_first=world.total(losses[0]) / world.size)


if __name__ == "__main__":
    sys.exit(main())

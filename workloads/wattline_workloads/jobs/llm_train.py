"""Train a transformer on next-token prediction with AdamW."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import wattline
from wattline.client.messages import log_message
from wattline_workloads.jobs.base import JobParser, job_parser, percentile_results, positive_int
from wattline_workloads.jobs.llm import options as llm_options
from wattline_workloads.jobs.llm.common import World, join_world, measured_rounds, run_job
from wattline_workloads.jobs.llm.decoding import TokenRates, token_rate_results

if TYPE_CHECKING:
    from wattline_workloads.jobs.llm.decoding import TokenBatch, TokenIds
    from wattline_workloads.jobs.llm.models import LoadedModel

_JOB = "llm-train"
_EPOCHS = 20


@dataclass(frozen=True, slots=True)
class _Step:
    """Training step of one batch; `loss` is None on a simulated GPU."""

    latency_s: float
    samples: int
    tokens: int
    padding: int
    loss: float | None


def parser() -> JobParser:
    options = job_parser(_JOB, __doc__)
    llm_options.add_model_options(options, "gpt2", "float32", 1975)
    texts = options.add_mutually_exclusive_group()
    texts.add_argument(
        "--sample-tokens",
        type=llm_options.parse_length_range,
        default=(6, 10),
        metavar="N[:M]",
        help="length of synthetic samples; default: 6:10",
    )
    texts.add_argument(
        "--texts",
        type=llm_options.existing_file,
        metavar="FILE",
        help="file with one sample per line",
    )
    options.add_argument(
        "--samples",
        type=positive_int,
        default=2000,
        metavar="N",
        help="number of synthetic samples over all processes; default: 2000",
    )
    options.add_argument(
        "--seq-len",
        type=positive_int,
        default=2048,
        metavar="N",
        help="maximum length of a sample; default: 2048",
    )
    options.add_argument(
        "--learning-rate",
        type=_rate,
        default=5e-5,
        metavar="R",
        help="learning rate; default: 5e-5",
    )
    options.add_argument(
        "--weight-decay",
        type=_rate,
        default=0.0,
        metavar="R",
        help="weight decay of AdamW; default: 0",
    )
    options.add_argument(
        "--epochs",
        type=positive_int,
        default=_EPOCHS,
        metavar="N",
        help=f"number of epochs, unless steps or a duration are given; default: {_EPOCHS}",
    )
    llm_options.add_length_options(options, 0, 1, "steps")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(_JOB, parser().parse_args(arguments), _measure)


def _rate(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _measure(run: wattline.ActiveRun, options: argparse.Namespace) -> None:
    run.phase("load")
    if run.simulation is not None:
        _simulate(run, options, run.simulation)
        return
    from wattline_workloads.jobs.llm import models

    loaded = models.load_model(options)
    models.require_causal(loaded)
    with join_world(loaded.device) as world:
        rows = _rows(options, loaded, world)
        train = _trainer(options, loaded, world)
        batches = _batches(rows, options.batch_size)
        run.phase("warmup")
        for _ in range(options.warmup):
            train(next(batches))
        world.barrier(run)
        batches = _batches(rows, options.batch_size)
        _steps(run, options, lambda: train(next(batches)), _count(options, len(rows)), world)


def _rows(options: argparse.Namespace, loaded: LoadedModel, world: World) -> list[TokenIds]:
    """Return this process's samples, the same number for each process. Raises ModelError."""
    from wattline_workloads.jobs.llm import decoding, models

    if options.texts:
        rows = decoding.tokenize_file(options.texts, models.load_tokenizer(loaded))
    else:
        rows = decoding.synthetic_texts(
            options.samples, options.sample_tokens, loaded.vocabulary, options.seed
        )
    rows = [row[: options.seq_len] for row in rows]
    models.check_positions(loaded, max(map(len, rows)))
    each, unused = divmod(len(rows), world.size)
    if each == 0:
        raise models.ModelError(
            f"{len(rows)} samples are too few for {world.size} processes; increase --samples"
        )
    if unused and world.rank == 0:
        log_message(
            f"the last {unused} of {len(rows)} samples are unused, so that all {world.size} ranks "
            "have equal numbers"
        )
    return rows[world.rank :: world.size][:each]


def _batches(rows: Sequence[TokenIds], size: int) -> Iterator[TokenBatch]:
    """Yield batches in order, endlessly; the last batch of an epoch may be smaller."""
    from wattline_workloads.jobs.llm import decoding

    while True:
        for begin in range(0, len(rows), size):
            yield decoding.pad_batch(rows[begin : begin + size], left=False)


def _count(options: argparse.Namespace, rows: int) -> int:
    return int(options.iterations or options.epochs * math.ceil(rows / options.batch_size))


def _trainer(
    options: argparse.Namespace, loaded: LoadedModel, world: World
) -> Callable[[TokenBatch], _Step]:
    import torch

    module = world.distributed(loaded.module.train())
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
    )

    def train(batch: TokenBatch) -> _Step:
        began_s = world.clock()
        ids = batch.ids.to(loaded.device)
        mask = batch.mask.to(loaded.device)
        labels = ids.masked_fill(mask == 0, -100)  # padding is excluded from the loss
        loss = module(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return _Step(
            world.clock() - began_s, len(ids), batch.tokens, batch.padding, float(loss.detach())
        )

    return train


def _simulate(run: wattline.ActiveRun, options: argparse.Namespace, state: str) -> None:
    from wattline_workloads.jobs.llm.decoding import synthetic_texts
    from wattline_workloads.jobs.llm.models import ModelError
    from wattline_workloads.jobs.llm.simulated import open_simulated_model

    if options.texts:
        raise ModelError(
            "on simulated GPUs samples are synthetic; give --sample-tokens instead of --texts"
        )
    rows = synthetic_texts(options.samples, options.sample_tokens, 1, options.seed)
    slices = itertools.cycle(range(0, len(rows), options.batch_size))

    def train() -> _Step:
        begin = next(slices)
        lengths = [len(row) for row in rows[begin : begin + options.batch_size]]
        columns = len(lengths) * max(lengths)
        return _Step(model.train(columns), len(lengths), sum(lengths), columns - sum(lengths), None)

    run.barrier()
    with open_simulated_model(_JOB, options, state) as model:
        _steps(run, options, train, _count(options, len(rows)), World.alone())


def _steps(
    run: wattline.ActiveRun,
    options: argparse.Namespace,
    step: Callable[[], _Step],
    count: int,
    world: World,
) -> None:
    run.phase("measure")
    sums = TokenRates(time.perf_counter())
    latencies_s = list[float]()
    losses = list[float]()
    samples = 0
    for _ in measured_rounds(count, options.duration, world.any):
        one = step()
        latencies_s.append(one.latency_s)
        samples += one.samples
        values = sums.add(one.tokens, one.latency_s, time.perf_counter())
        if one.loss is not None:
            losses.append(one.loss)
            values["loss"] = one.loss
        amounts = {
            "trained_tokens": one.tokens,
            "padding_tokens": one.padding,
            "samples": one.samples,
        }
        if world.rank == 0:  # one step is shared by all processes
            amounts["steps"] = 1
        run.iteration(one.latency_s, values, **amounts)
    run.phase("rest")
    wall_s = world.longest(sums.wall_s)
    run.result(
        **percentile_results("step_seconds", latencies_s),
        **token_rate_results(world.total(sums.tokens), world.longest(sums.busy_s), wall_s),
        samples_per_second=world.total(samples) / wall_s,
    )
    if losses:
        run.result(
            loss=world.total(losses[-1]) / world.size,
            loss_first=world.total(losses[0]) / world.size,
        )


if __name__ == "__main__":
    sys.exit(main())

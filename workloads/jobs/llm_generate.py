"""Generate text with a transformer, batch by batch: time to first token, time per output token, tokens a second."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workloads import client, jobs
from workloads.jobs.llm import options as flags
from workloads.jobs.llm.common import World, joined, rounds, run_job
from workloads.jobs.llm.timing import Rates, Steps, TokenTimes, rates

if TYPE_CHECKING:
    from workloads.jobs.llm.decoding import Batch, Choose
    from workloads.jobs.llm.models import Loaded

_JOB = "llm-generate"


@dataclass(frozen=True, slots=True)
class _Answered:
    """One batch of prompts and what became of it."""

    prompt_tokens: int
    padding: int
    steps: Steps


def parser() -> jobs.Options:
    options = jobs.options(_JOB, __doc__)
    flags.add_model(options, "gpt2", "float32", 512)
    prompts = options.add_mutually_exclusive_group()
    prompts.add_argument(
        "--prompt-tokens", type=flags.lengths, default=(5, 5), metavar="N[:M]", help="synthetic; default: 5"
    )
    prompts.add_argument("--prompts", type=flags.existing_file, metavar="FILE", help="one a line")
    options.add_argument("--new-tokens", type=jobs.count, default=251, metavar="N", help="at most; default: 251")
    options.add_argument("--ignore-eos", action="store_true", help="always generate --new-tokens")
    options.add_argument(
        "--temperature", type=flags.above_zero, metavar="T", help="sample; else the likeliest is taken"
    )
    options.add_argument("--top-k", type=jobs.count, metavar="K", help="of the K likeliest")
    options.add_argument("--top-p", type=_share, metavar="P", help="of the fewest that hold this probability")
    flags.add_length(options, 5, 1, "batches")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = (made := parser()).parse_args(arguments)
    if options.temperature is None and (options.top_k or options.top_p):
        made.error("--top-k and --top-p choose among what is sampled; add --temperature 1")
    return run_job(_JOB, options, _measure)


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no probability; give one above 0, up to 1")
    return value


def _measure(run: client.Run, options: argparse.Namespace) -> None:
    run.phase("load")
    if run.simulation is not None:
        _simulate(run, options, run.simulation)
        return
    from workloads.jobs.llm import decoding, models

    loaded = models.load(options)
    models.require_causal(loaded)
    loaded.module.eval()
    batches = _batches(options, loaded)
    limits = decoding.Limits(options.new_tokens, frozenset() if options.ignore_eos else loaded.eos)
    choose: Choose = decoding.greedy
    if options.temperature is not None:
        choose = decoding.sampling(options.temperature, options.top_k, options.top_p)
    with joined(loaded.device) as world:

        def answer() -> _Answered:
            batch = next(batches)
            steps, _ = decoding.generate(loaded, batch, limits, choose, world.clock)
            return _Answered(batch.tokens, batch.padding, steps)

        run.phase("warmup")
        for _ in range(options.warmup):
            answer()
        world.barrier(run)
        _answers(run, options, answer, world)


def _batches(options: argparse.Namespace, loaded: Loaded) -> Iterator[Batch]:
    """Without end; synthetic prompts are new in each. Raises ModelError."""
    from workloads.jobs.llm import decoding as prompting
    from workloads.jobs.llm import models

    if options.prompts:
        rows = prompting.read(options.prompts, models.tokenizer(loaded))
    else:
        count = options.batch_size * ((options.iterations or 1) + options.warmup)
        rows = prompting.synthetic(count, options.prompt_tokens, loaded.vocabulary, options.seed)
    models.check_positions(loaded, max(map(len, rows)) + options.new_tokens)
    return (prompting.padded(batch, left=True) for batch in prompting.batches_without_end(rows, options.batch_size))


def _simulate(run: client.Run, options: argparse.Namespace, state: str) -> None:
    from workloads.jobs.llm.decoding import synthetic
    from workloads.jobs.llm.models import ModelError
    from workloads.jobs.llm.simulated import simulated

    if options.prompts:
        raise ModelError("on simulated GPUs prompts are synthetic; give --prompt-tokens instead of --prompts")
    texts, seeds = options.batch_size, itertools.count(options.seed)

    def answer() -> _Answered:
        lengths = [len(row) for row in synthetic(texts, options.prompt_tokens, 1, next(seeds))]
        steps = model.generate(texts, max(lengths), options.new_tokens)
        return _Answered(sum(lengths), texts * max(lengths) - sum(lengths), steps)

    run.barrier()
    with simulated(_JOB, options, state) as model:
        _answers(run, options, answer, World.alone())


def _answers(run: client.Run, options: argparse.Namespace, answer: Callable[[], _Answered], world: World) -> None:
    run.phase("measure")
    sums, times = Rates(time.perf_counter()), TokenTimes()
    for _ in rounds(options.iterations, options.duration, world.any):
        one = answer()
        times.add(one.steps)
        latency_s = one.steps.latency_s
        values = sums.add(one.steps.generated, latency_s, time.perf_counter())
        values |= {"ttft_seconds": one.steps.ttft_s}
        run.iteration(
            latency_s,
            values,
            generated_tokens=one.steps.generated,
            prompt_tokens=one.prompt_tokens,
            padding_tokens=one.padding + one.steps.idle,
            requests=options.batch_size,
        )
    run.phase("rest")
    run.result(
        **times.results(),
        **rates(world.total(sums.tokens), world.longest(sums.busy_s), world.longest(sums.wall_s)),
    )


if __name__ == "__main__":
    sys.exit(main())

"""Generate text with a transformer, and measure TTFT, TPOT and throughput."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import wattline
from wattline_workloads.jobs.base import JobParser, job_parser, positive_int
from wattline_workloads.jobs.llm import options as llm_options
from wattline_workloads.jobs.llm.common import World, join_world, measured_rounds, run_job
from wattline_workloads.jobs.llm.decoding import (
    DecodingSteps,
    TokenRates,
    TokenTimes,
    token_rate_results,
)

if TYPE_CHECKING:
    from wattline_workloads.jobs.llm.decoding import TokenBatch, TokenChooser
    from wattline_workloads.jobs.llm.models import LoadedModel

_JOB = "llm-generate"


@dataclass(frozen=True, slots=True)
class _GeneratedBatch:
    """Result of one batch of prompts."""

    prompt_tokens: int
    padding: int
    steps: DecodingSteps


def parser() -> JobParser:
    options = job_parser(_JOB, __doc__)
    llm_options.add_model_options(options, "gpt2", "float32", 512)
    prompts = options.add_mutually_exclusive_group()
    prompts.add_argument(
        "--prompt-tokens",
        type=llm_options.parse_length_range,
        default=(5, 5),
        metavar="N[:M]",
        help="length of synthetic prompts; default: 5",
    )
    prompts.add_argument(
        "--prompts",
        type=llm_options.existing_file,
        metavar="FILE",
        help="file with one prompt per line",
    )
    options.add_argument(
        "--new-tokens",
        type=positive_int,
        default=251,
        metavar="N",
        help="maximum of generated tokens per prompt; default: 251",
    )
    options.add_argument(
        "--ignore-eos", action="store_true", help="generate --new-tokens even after an end token"
    )
    options.add_argument(
        "--temperature",
        type=llm_options.positive_float,
        metavar="T",
        help="temperature of sampling; default: choose the most likely token",
    )
    options.add_argument(
        "--top-k", type=positive_int, metavar="K", help="sample among the K most likely tokens"
    )
    options.add_argument(
        "--top-p",
        type=_share,
        metavar="P",
        help="sample among the fewest tokens with this total probability",
    )
    llm_options.add_length_options(options, 5, 1, "batches")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = (job_options := parser()).parse_args(arguments)
    if options.temperature is None and (options.top_k or options.top_p):
        job_options.error("--top-k and --top-p require sampling; add --temperature 1")
    return run_job(_JOB, options, _measure)


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(
            f"{text} is not a probability; give a number above 0, up to 1"
        )
    return value


def _measure(run: wattline.ActiveRun, options: argparse.Namespace) -> None:
    run.phase("load")
    if run.simulation is not None:
        _simulate(run, options, run.simulation)
        return
    from wattline_workloads.jobs.llm import decoding, models

    loaded = models.load_model(options)
    models.require_causal(loaded)
    loaded.module.eval()
    batches = _batches(options, loaded)
    limits = decoding.GenerationLimits(
        options.new_tokens, frozenset() if options.ignore_eos else loaded.eos
    )
    choose: TokenChooser = decoding.choose_greedily
    if options.temperature is not None:
        choose = decoding.sampling_chooser(options.temperature, options.top_k, options.top_p)
    with join_world(loaded.device) as world:

        def generate() -> _GeneratedBatch:
            batch = next(batches)
            steps, _ = decoding.generate_tokens(loaded, batch, limits, choose, world.clock)
            return _GeneratedBatch(batch.tokens, batch.padding, steps)

        run.phase("warmup")
        for _ in range(options.warmup):
            generate()
        world.barrier(run)
        _measure_batches(run, options, generate, world)


def _batches(options: argparse.Namespace, loaded: LoadedModel) -> Iterator[TokenBatch]:
    """Yield batches endlessly; synthetic prompts differ in each. Raises ModelError."""
    from wattline_workloads.jobs.llm import decoding, models

    if options.prompts:
        rows = decoding.tokenize_file(options.prompts, models.load_tokenizer(loaded))
    else:
        count = options.batch_size * ((options.iterations or 1) + options.warmup)
        rows = decoding.synthetic_texts(
            count, options.prompt_tokens, loaded.vocabulary, options.seed
        )
    models.check_positions(loaded, max(map(len, rows)) + options.new_tokens)
    return (
        decoding.pad_batch(batch, left=True)
        for batch in decoding.endless_batches(rows, options.batch_size)
    )


def _simulate(run: wattline.ActiveRun, options: argparse.Namespace, state: str) -> None:
    from wattline_workloads.jobs.llm.decoding import synthetic_texts
    from wattline_workloads.jobs.llm.models import ModelError
    from wattline_workloads.jobs.llm.simulated import open_simulated_model

    if options.prompts:
        raise ModelError(
            "on simulated GPUs prompts are synthetic; give --prompt-tokens instead of --prompts"
        )
    texts = options.batch_size
    seeds = itertools.count(options.seed)

    def generate() -> _GeneratedBatch:
        lengths = [
            len(row) for row in synthetic_texts(texts, options.prompt_tokens, 1, next(seeds))
        ]
        steps = model.generate(texts, max(lengths), options.new_tokens)
        return _GeneratedBatch(sum(lengths), texts * max(lengths) - sum(lengths), steps)

    run.barrier()
    with open_simulated_model(_JOB, options, state) as model:
        _measure_batches(run, options, generate, World.alone())


def _measure_batches(
    run: wattline.ActiveRun,
    options: argparse.Namespace,
    generate: Callable[[], _GeneratedBatch],
    world: World,
) -> None:
    run.phase("measure")
    sums = TokenRates(time.perf_counter())
    times = TokenTimes()
    for _ in measured_rounds(options.iterations, options.duration, world.any):
        one = generate()
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
        **token_rate_results(
            world.total(sums.tokens), world.longest(sums.busy_s), world.longest(sums.wall_s)
        ),
    )


if __name__ == "__main__":
    sys.exit(main())

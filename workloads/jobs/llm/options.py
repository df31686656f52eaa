"""The options that the three jobs with a transformer share."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from workloads import jobs
from workloads.jobs.llm.presets import PRESETS

DTYPES = ("auto", "float32", "bfloat16", "float16")


def add_model(options: jobs.Options, model: str, dtype: str, batch_size: int) -> None:
    which = options.add_mutually_exclusive_group()
    which.add_argument(
        "--model", default=model, metavar="NAME", help=f"on the Hugging Face Hub, or a folder; default: {model}"
    )
    which.add_argument(
        "--random",
        metavar="SHAPE",
        help=f"random weights and no download: {', '.join(PRESETS)}, or a config.json or its folder",
    )
    options.add_argument(
        "--dtype",
        choices=DTYPES,
        default=dtype,
        help=f"of the weights; auto is float16 on a GPU and float32 on a CPU; default: {dtype}",
    )
    options.add_argument("--device", default="auto", metavar="DEVICE", help="cpu, cuda or cuda:1; default: auto")
    options.add_argument("--seed", type=int, default=0, help="of weights, token ids and sampling; default: 0")
    options.add_argument(
        "--batch-size", type=jobs.count, default=batch_size, metavar="N", help=f"default: {batch_size}"
    )


def add_length(options: jobs.Options, iterations: int, warmup: int, what: str) -> None:
    """`iterations` of 0 leave the end to another option."""
    until = options.add_mutually_exclusive_group()
    default = f"; default: {iterations}" if iterations else ""
    until.add_argument(
        "--iterations", type=jobs.count, default=iterations or None, metavar="N", help=f"{what} to measure{default}"
    )
    until.add_argument("--duration", type=jobs.seconds, metavar="SECONDS", help="or go on until so long")
    options.add_argument(
        "--warmup", type=whole, default=warmup, metavar="N", help=f"{what} before, not counted; default: {warmup}"
    )


def whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value


def above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def lengths(text: str) -> tuple[int, int]:
    """`16` or `16:64`: the least and the most."""
    low, _, high = text.partition(":")
    try:
        least, most = int(low), int(high or low)
    except ValueError:
        least, most = 0, 0
    if not 1 <= least <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens; give 16, or 16:64 for 16 to 64")
    return least, most


def existing_file(text: str) -> str:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return text

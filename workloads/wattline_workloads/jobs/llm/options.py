"""Options and model presets of the transformer jobs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattline_workloads.jobs.base import JobParser, non_negative_int, positive_int, positive_seconds

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class ModelPreset:
    """Shape of a model; `config` overrides transformers' defaults for the `model_type`."""

    model_type: str
    parameters: int
    config: Mapping[str, Any] = field(default_factory=dict)


def _gpt2(
    parameters: int, width: int = 768, layers: int = 12, heads: int = 12, **more: Any
) -> ModelPreset:
    return ModelPreset(
        "gpt2", parameters, {"n_embd": width, "n_layer": layers, "n_head": heads, **more}
    )


PRESETS: Mapping[str, ModelPreset] = {
    "tiny": _gpt2(
        65_664, 32, 2, 2, n_positions=256, vocab_size=1_000, bos_token_id=0, eos_token_id=0
    ),
    "distilgpt2": _gpt2(81_912_576, layers=6),
    "gpt2": _gpt2(124_439_808),
    "gpt2-medium": _gpt2(354_823_168, 1024, 24, 16),
    "gpt2-large": _gpt2(774_030_080, 1280, 36, 20),
    "gpt2-xl": _gpt2(1_557_611_200, 1600, 48, 25),
    "distilbert-base-uncased": ModelPreset("distilbert", 66_362_880),
    "bert-base-uncased": ModelPreset("bert", 109_482_240),
    "roberta-large": ModelPreset(
        "roberta",
        355_359_744,
        {
            "vocab_size": 50_265,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
        },
    ),
    "llama-3.2-3b-instruct": ModelPreset(
        "llama",
        3_212_749_824,
        {
            "vocab_size": 128_256,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "tie_word_embeddings": True,
        },
    ),
    "mistral-7b-instruct-v0.2": ModelPreset(
        "mistral",
        7_241_732_096,
        {
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32_768,
            "sliding_window": None,
        },
    ),
}


def find_preset(name: str) -> ModelPreset | None:
    """Find a preset by its name on the Hugging Face Hub, with or without the owner."""
    return PRESETS.get(name.rpartition("/")[2].lower())


def add_model_options(options: JobParser, model: str, dtype: str, batch_size: int) -> None:
    which = options.add_mutually_exclusive_group()
    which.add_argument(
        "--model",
        default=model,
        metavar="NAME",
        help=f"model on the Hugging Face Hub, or a folder; default: {model}",
    )
    which.add_argument(
        "--random",
        metavar="SHAPE",
        help=f"model shape with random weights, not downloaded: {', '.join(PRESETS)}, or a "
        "config.json or its folder",
    )
    options.add_argument(
        "--dtype",
        choices=DTYPES,
        default=dtype,
        help="number format of the weights; auto is float16 on a GPU and float32 on a CPU; "
        f"default: {dtype}",
    )
    options.add_argument(
        "--device",
        default="auto",
        metavar="DEVICE",
        help="device: cpu, cuda or cuda:1; default: auto",
    )
    options.add_argument(
        "--seed", type=int, default=0, help="seed of weights, token ids and sampling; default: 0"
    )
    options.add_argument(
        "--batch-size",
        type=positive_int,
        default=batch_size,
        metavar="N",
        help=f"texts per batch; default: {batch_size}",
    )


def add_length_options(options: JobParser, iterations: int, warmup: int, plural: str) -> None:
    """Add the options of the length; with 0 `iterations` another option sets the end."""
    until = options.add_mutually_exclusive_group()
    default = f"; default: {iterations}" if iterations else ""
    until.add_argument(
        "--iterations",
        type=positive_int,
        default=iterations or None,
        metavar="N",
        help=f"number of {plural} to measure{default}",
    )
    until.add_argument(
        "--duration", type=positive_seconds, metavar="SECONDS", help="duration of the measurement"
    )
    options.add_argument(
        "--warmup",
        type=non_negative_int,
        default=warmup,
        metavar="N",
        help=f"warm-up {plural}, not measured; default: {warmup}",
    )


def positive_float(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def parse_length_range(text: str) -> tuple[int, int]:
    """Parse `16` or `16:64` to minimum and maximum."""
    low, _, high = text.partition(":")
    try:
        least = int(low)
        most = int(high or low)
    except ValueError:
        least = 0
        most = 0
    if not 1 <= least <= most:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of tokens; give 16, or 16:64 for 16 to 64"
        )
    return least, most


def existing_file(text: str) -> str:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"file not found: {text}")
    return text

"""Shapes of well-known transformers, to be built with random weights: energy and speed do not ask what the weights are.

Figures of the models' published configurations; nothing is imported, so that a simulated job needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Preset:
    """`config` is what differs from the defaults of transformers' configuration of this `model_type`."""

    model_type: str
    parameters: int
    config: Mapping[str, Any] = field(default_factory=dict)


def _gpt2(parameters: int, width: int = 768, layers: int = 12, heads: int = 12, **more: Any) -> Preset:
    return Preset("gpt2", parameters, {"n_embd": width, "n_layer": layers, "n_head": heads, **more})


PRESETS: Mapping[str, Preset] = {
    "tiny": _gpt2(65_664, 32, 2, 2, n_positions=256, vocab_size=1_000, bos_token_id=0, eos_token_id=0),
    "distilgpt2": _gpt2(81_912_576, layers=6),
    "gpt2": _gpt2(124_439_808),
    "gpt2-medium": _gpt2(354_823_168, 1024, 24, 16),
    "gpt2-large": _gpt2(774_030_080, 1280, 36, 20),
    "gpt2-xl": _gpt2(1_557_611_200, 1600, 48, 25),
    "distilbert-base-uncased": Preset("distilbert", 66_362_880),
    "roberta-large": Preset(
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
    "llama-3.2-3b-instruct": Preset(
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
    "mistral-7b-instruct-v0.2": Preset(
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


def find(name: str) -> Preset | None:
    """By its name on the Hugging Face Hub, with or without the owner."""
    return PRESETS.get(name.rpartition("/")[2].lower())

"""Tiny saved transformers models with known predictions; the words of their tokenizer are
numbers.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDS_TORCH = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("transformers")), reason="needs the extra torch"
)
"""Mark that imports neither: every worker of pytest collects every module, and torch takes seconds
to import.
"""
SIZE = 16
"""Number of tokens, positions and dimensions."""
EOS = 15
TINY_MODEL = ("--random", "tiny", "--device", "cpu")
"""Options of a job for a small model with random weights."""


def counting_model(folder: Path, eos_at: int | None = None) -> str:
    """Save a model that predicts token p + 1 at position p for any input, and EOS at `eos_at`.

    Each embedded position is a unit vector, the layer adds nothing, and the head maps each vector
    to its next token.
    """
    import torch

    model = _blank()
    following = [(position + 1) % SIZE for position in range(SIZE)]
    if eos_at is not None:
        following[following.index(EOS)], following[eos_at] = following[eos_at], EOS
    with torch.no_grad():
        model.transformer.wpe.weight.copy_(torch.eye(SIZE))
        for position, token in enumerate(following):
            model.lm_head.weight[token, position] = 1
    return _saved(model, folder)


def uniform_model(folder: Path) -> str:
    """Save a model whose logits are all 0."""
    return _saved(_blank(), folder)


def _blank():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=SIZE,
        n_positions=SIZE,
        n_embd=SIZE,
        n_layer=1,
        n_head=1,
        tie_word_embeddings=False,
        bos_token_id=EOS,
        eos_token_id=EOS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    for name, parameter in model.named_parameters():
        parameter.data.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
    return model


def _saved(model, folder: Path) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({str(token): token for token in range(SIZE)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token=str(EOS)).save_pretrained(folder)
    return str(folder)

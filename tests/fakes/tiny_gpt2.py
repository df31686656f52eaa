"""Small GPT-2 with random weights, one token per ASCII letter."""

from __future__ import annotations

from pathlib import Path


def save_gpt2(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    letters = [
        "<end>",
        *sorted(letter for letter in pre_tokenizers.ByteLevel.alphabet() if letter.isascii()),
        "Ġ",
    ]
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", chat_template=template
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(letters),
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=256,
        bos_token_id=0,
        eos_token_id=0,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)

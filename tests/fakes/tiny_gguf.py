"""`python -m tests.fakes.tiny_gguf FILE`: Llama with one small layer and random weights for
llama.cpp.

The layout is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import random
import struct
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path

_VERSION, _ALIGNMENT = 3, 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_NORMAL, _CONTROL = 1, 3
_WIDTH, _HEADS, _CONTEXT, _INNER = 64, 4, 1_024, 128
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def write(path: Path) -> None:
    letters = ["<end>", *_byte_letters(), "th"]
    values = [*_shape(len(letters)), *_tokenizer(letters)]
    tensors = list(_tensors(len(letters)))
    infos, offset = b"", 0
    for name, shape, weights in tensors:
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += _text(name) + dimensions + struct.pack("<IQ", 0, offset)
        offset += len(weights) * 4
    head = (
        b"GGUF"
        + struct.pack("<IQQ", _VERSION, len(tensors), len(values))
        + b"".join(values)
        + infos
    )
    padding = bytes(-len(head) % _ALIGNMENT)
    path.write_bytes(head + padding + b"".join(weights.tobytes() for _, _, weights in tensors))


def _byte_letters() -> list[str]:
    """Return GPT-2's byte encoding: printable bytes as they are, others as the next letter from
    U+0100.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return [
        chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)
    ]


def _shape(tokens: int) -> list[bytes]:
    numbers = {
        "context_length": _CONTEXT,
        "embedding_length": _WIDTH,
        "block_count": 1,
        "feed_forward_length": _INNER,
        "attention.head_count": _HEADS,
        "attention.head_count_kv": _HEADS,
        "rope.dimension_count": _WIDTH // _HEADS,
        "vocab_size": tokens,
    }
    epsilon = _text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", _FLOAT32, 1e-5)
    architecture = _text("general.architecture") + struct.pack("<I", _STRING) + _text("llama")
    return [
        architecture,
        epsilon,
        *(
            _text(f"llama.{name}") + struct.pack("<II", _UINT32, number)
            for name, number in numbers.items()
        ),
    ]


def _tokenizer(letters: Sequence[str]) -> list[bytes]:
    kinds = [_CONTROL] + [_NORMAL] * (len(letters) - 1)
    texts = {"model": "gpt2", "pre": "gpt-2"}
    return [
        *(
            _text(f"tokenizer.ggml.{name}") + struct.pack("<I", _STRING) + _text(text)
            for name, text in texts.items()
        ),
        _text("tokenizer.ggml.tokens") + _texts(letters),
        _text("tokenizer.ggml.token_type")
        + struct.pack(f"<IIQ{len(kinds)}i", _ARRAY, _INT32, len(kinds), *kinds),
        _text("tokenizer.ggml.merges") + _texts(["t h"]),
        _text("tokenizer.ggml.eos_token_id") + struct.pack("<II", _UINT32, 0),
        _text("tokenizer.ggml.add_bos_token") + struct.pack("<I?", _BOOL, False),
        _text("tokenizer.chat_template") + struct.pack("<I", _STRING) + _text(_TEMPLATE),
    ]


def _tensors(tokens: int) -> list[tuple[str, tuple[int, ...], array[float]]]:
    draw = random.Random(0)

    def weights(*shape: int) -> array[float]:
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        return array("f", (draw.gauss(0, 0.1) if len(shape) > 1 else 1.0 for _ in range(count)))

    shapes: dict[str, tuple[int, ...]] = {"token_embd": (_WIDTH, tokens), "output_norm": (_WIDTH,)}
    shapes |= {
        "output": (_WIDTH, tokens),
        "blk.0.attn_norm": (_WIDTH,),
        "blk.0.ffn_norm": (_WIDTH,),
    }
    shapes |= {f"blk.0.attn_{name}": (_WIDTH, _WIDTH) for name in ("q", "k", "v", "output")}
    shapes |= {
        "blk.0.ffn_gate": (_WIDTH, _INNER),
        "blk.0.ffn_up": (_WIDTH, _INNER),
        "blk.0.ffn_down": (_INNER, _WIDTH),
    }
    return [(f"{name}.weight", shape, weights(*shape)) for name, shape in shapes.items()]


def _text(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def _texts(texts: Sequence[str]) -> bytes:
    return struct.pack("<IIQ", _ARRAY, _STRING, len(texts)) + b"".join(map(_text, texts))


if __name__ == "__main__":
    write(Path(sys.argv[1]))

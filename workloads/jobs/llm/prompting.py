"""Token ids for a transformer, synthetic or of a text file, and their padding to a batch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.jobs.llm.models import ModelError

if TYPE_CHECKING:
    import torch

Row = list[int]
"""The token ids of one text."""


@dataclass(frozen=True, slots=True)
class Batch:
    """`ids` and `mask` are of shape (rows, longest); the mask is 1 where a token is real."""

    ids: torch.Tensor
    mask: torch.Tensor
    tokens: int
    padding: int


def synthetic(count: int, lengths: tuple[int, int], vocabulary: int, seed: int) -> list[Row]:
    """Random ids; the lengths are drawn evenly, both ends included."""
    chance = random.Random(seed)  # noqa: S311  # to be repeatable, not secret
    return [chance.choices(range(vocabulary), k=chance.randint(*lengths)) for _ in range(count)]


def read(file: str, tokenizer: Callable[..., Any]) -> list[Row]:
    """A text a line, empty lines left out. Raises ModelError."""
    try:
        lines = [line for line in Path(file).read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{file} cannot be read as text: {error}") from error
    rows = [list(tokenizer(line)["input_ids"]) for line in lines]
    if not rows or not all(rows):
        raise ModelError(f"{file} holds no text, or a line without tokens; write one text a line")
    return rows


def batches_without_end(rows: Sequence[Row], size: int) -> Iterator[list[Row]]:
    """All of the same size, from the first row again after the last."""
    endless = itertools.cycle(rows)
    while True:
        yield list(itertools.islice(endless, size))


def padded(rows: Sequence[Row], left: bool, pad: int = 0) -> Batch:
    """To the longest row; on the left to generate, so that every text's last token is in the last column."""
    import torch

    longest = max(map(len, rows))
    real = sum(map(len, rows))

    def fill(row: list[int], value: int) -> list[int]:
        missing = [value] * (longest - len(row))
        return missing + row if left else row + missing

    return Batch(
        ids=torch.tensor([fill(row, pad) for row in rows]),
        mask=torch.tensor([fill([1] * len(row), 0) for row in rows]),
        tokens=real,
        padding=longest * len(rows) - real,
    )

"""Prompts of a file, or synthetic prompts, reproducible by seed."""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Common words, a single token each in most vocabularies.
_WORDS = (
    "the of and to in is was for on that with as at by from his are be this had not but have which or were their one "
    "all they she has her been who will more there so out up when about new time would some other what two him first "
    "than into over after only between also these most year then may such world many where well used number"
)
_FIELDS = {"prompt", "messages", "max_tokens"}


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Number of tokens, or a uniform range."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text, or messages of a chat; without `max_tokens` the options apply."""

    text: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PromptFile:
    path: str
    prompts: tuple[Prompt, ...]

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Request:
    prompt: Prompt
    max_tokens: int


def parse_token_range(text: str) -> TokenRange:
    """Parse `128` or `64:256`. Raises argparse.ArgumentTypeError."""
    least, separator, most = text.partition(":")
    try:
        found = TokenRange(int(least), int(most if separator else least))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no length; give tokens, like 128 or 64:256") from None
    if not 1 <= found.least <= found.most:
        raise argparse.ArgumentTypeError(f"{text!r} is no length; give at least 1, the lower end first, like 64:256")
    return found


def read_prompts(text: str) -> PromptFile:
    """Read JSON lines from a `.jsonl` file, else one prompt per line. Raises argparse.ArgumentTypeError."""
    try:
        lines = Path(text).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be read: {error}") from error
    parse = _parsed if text.endswith(".jsonl") else Prompt
    prompts = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                prompts.append(parse(line))
            except ValueError as error:
                raise argparse.ArgumentTypeError(f"{text}, line {number}: {error}") from error
    if not prompts:
        raise argparse.ArgumentTypeError(f"{text} holds no prompt; write one on each line")
    return PromptFile(text, tuple(prompts))


def _parsed(line: str) -> Prompt:
    """Raises ValueError."""
    try:
        document = json.loads(line)
    except ValueError as error:
        raise ValueError(f"no JSON ({error}); name a file of plain lines .txt") from error
    if isinstance(document, str):
        return Prompt(document)
    if not isinstance(document, dict):
        raise ValueError('neither a text nor an object; write {"prompt": "…"}')  # noqa: TRY004  # of the file
    text, messages, max_tokens = (document.get(name) for name in ("prompt", "messages", "max_tokens"))
    if unknown := sorted(document.keys() - _FIELDS):
        raise ValueError(f"{unknown[0]!r} is not known here; there are {', '.join(sorted(_FIELDS))}")
    if (text is None) == (messages is None):
        raise ValueError("give either prompt or messages")
    if text is not None and not isinstance(text, str):
        raise ValueError("prompt is no text")
    if messages is not None and not _are_messages(messages):
        raise ValueError('messages are a list like [{"role": "user", "content": "…"}]')
    if max_tokens is not None and (not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1):
        raise ValueError("max_tokens is no number of at least 1")
    return Prompt(text, messages, max_tokens)


def _are_messages(messages: object) -> bool:
    return isinstance(messages, list) and bool(messages) and all(isinstance(m, dict) and "role" in m for m in messages)


def generate_requests(
    file: PromptFile | None, prompt_tokens: TokenRange, max_tokens: TokenRange, seed: int
) -> Iterator[Request]:
    """Yield requests endlessly; the prompts of a file repeat in order."""
    draw = random.Random(f"prompts {seed}")  # noqa: S311  # a load, not a secret
    prompts = itertools.cycle(file.prompts) if file else _synthetic(prompt_tokens, random.Random(f"words {seed}"))  # noqa: S311  # likewise
    for prompt in prompts:
        drawn = draw.randint(max_tokens.least, max_tokens.most)
        yield Request(prompt, prompt.max_tokens or drawn)


def _synthetic(prompt_tokens: TokenRange, draw: random.Random) -> Iterator[Prompt]:
    """Yield prompts of random words, which share no prefix that a server could cache."""
    words = _WORDS.split()
    while True:
        length = draw.randint(prompt_tokens.least, prompt_tokens.most)
        yield Prompt(" ".join(draw.choices(words, k=length)))

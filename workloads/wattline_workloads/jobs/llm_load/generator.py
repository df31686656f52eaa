"""Prompts, and load generators: open loop (scheduled requests) and closed loop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import random
import sys
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattline.client.messages import log_message
from wattline_workloads.jobs.llm_load.stream import RequestOutcome

# Common words, a single token each in most vocabularies.
_WORDS = (
    "the of and to in is was for on that with as at by from his are be this had not but have which "
    "or were their one "
    "all they she has her been who will more there so out up when about new time would some other "
    "what two him first "
    "than into over after only between also these most year then may such world many where well "
    "used number"
)
_FIELDS = {"prompt", "messages", "max_tokens"}
_AFTER_NO_CONNECTION_S = 0.1
_ON_TERMINAL_S = 0.5
_ELSE_S = 5.0
_CLEAR_LINE = "\r\x1b[K"


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
        length = TokenRange(int(least), int(most if separator else least))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a length; give tokens, like 128 or 64:256"
        ) from None
    if not 1 <= length.least <= length.most:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a length; give at least 1, the lower end first, like 64:256"
        )
    return length


def read_prompts(text: str) -> PromptFile:
    """Read JSON lines from a `.jsonl` file, else one prompt per line. Raises
    argparse.ArgumentTypeError.
    """
    try:
        lines = Path(text).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"cannot read {text}: {error}") from error
    parse = _parse_json_prompt if text.endswith(".jsonl") else Prompt
    prompts = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                prompts.append(parse(line))
            except ValueError as error:
                raise argparse.ArgumentTypeError(f"{text}, line {number}: {error}") from error
    if not prompts:
        raise argparse.ArgumentTypeError(f"{text} contains no prompt; write one per line")
    return PromptFile(text, tuple(prompts))


def _parse_json_prompt(line: str) -> Prompt:
    """Parse a JSON string, or an object with `prompt` or `messages`. Raises ValueError."""
    try:
        document = json.loads(line)
    except ValueError as error:
        raise ValueError(
            f"invalid JSON: {error}; rename a file with one prompt per line to .txt"
        ) from error
    if isinstance(document, str):
        return Prompt(document)
    if not isinstance(document, dict):
        raise ValueError('neither a string nor an object; write {"prompt": "…"}')  # noqa: TRY004  # of the file
    text, messages, max_tokens = (
        document.get(name) for name in ("prompt", "messages", "max_tokens")
    )
    if unknown := sorted(document.keys() - _FIELDS):
        raise ValueError(
            f"unknown field {unknown[0]!r}; the fields are {', '.join(sorted(_FIELDS))}"
        )
    if (text is None) == (messages is None):
        raise ValueError("give either prompt or messages")
    if text is not None and not isinstance(text, str):
        raise ValueError("prompt is not a string")
    if messages is not None and not _are_messages(messages):
        raise ValueError(
            'messages is not a list of messages; write [{"role": "user", "content": "…"}]'
        )
    if max_tokens is not None and (
        not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1
    ):
        raise ValueError("max_tokens is not a whole number of at least 1")
    return Prompt(text, messages, max_tokens)


def _are_messages(messages: object) -> bool:
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(m, dict) and "role" in m for m in messages)
    )


def generate_requests(
    file: PromptFile | None, prompt_tokens: TokenRange, max_tokens: TokenRange, seed: int
) -> Iterator[Request]:
    """Yield requests endlessly; the prompts of a file repeat in order."""
    lengths = random.Random(f"prompts {seed}")  # noqa: S311  # a load, not a secret
    prompts = (
        itertools.cycle(file.prompts)
        if file
        else _synthetic(prompt_tokens, random.Random(f"words {seed}"))  # noqa: S311  # likewise
    )
    for prompt in prompts:
        length = lengths.randint(max_tokens.least, max_tokens.most)
        yield Request(prompt, prompt.max_tokens or length)


def _synthetic(prompt_tokens: TokenRange, random_words: random.Random) -> Iterator[Prompt]:
    """Yield prompts of random words, which share no prefix that a server could cache."""
    words = _WORDS.split()
    while True:
        length = random_words.randint(prompt_tokens.least, prompt_tokens.most)
        yield Prompt(" ".join(random_words.choices(words, k=length)))


SendRequest = Callable[[Request, float | None], Awaitable[RequestOutcome]]
"""Function that sends a request; the second argument is its due time."""


@dataclass(frozen=True, slots=True)
class StopCondition:
    """Limits after which no request is sent; requests in flight are awaited."""

    requests: int | None = None
    duration_s: float = math.inf


class LoadGenerator:
    """Sender of requests, which collects outcomes and passes each to `report`."""

    def __init__(self, send_request: SendRequest, report: Callable[[RequestOutcome], None]) -> None:
        self._send_request = send_request
        self._report = report
        self._ended_s: float | None = None
        self.begun_s = time.monotonic()
        self.answers: list[RequestOutcome] = []
        self.sent = 0
        self.cancelled = 0
        self.failed = 0
        self.generated_tokens = 0

    @property
    def in_flight(self) -> int:
        return self.sent - self.cancelled - len(self.answers)

    @property
    def window_s(self) -> float:
        """Time from the start to the last outcome, or to the cancellation."""
        ended_s = max((answer.ended_s for answer in self.answers), default=self.begun_s)
        return max(ended_s, self._ended_s or ended_s) - self.begun_s

    async def closed(
        self, requests: Iterator[Request], concurrency: int, until: StopCondition
    ) -> None:
        """Send the next request when one is answered."""
        self.begun_s = time.monotonic()
        end_s = self.begun_s + until.duration_s
        rest = itertools.islice(requests, until.requests)

        async def send_consecutively() -> None:
            while time.monotonic() < end_s:
                request = next(rest, None)
                if request is None:
                    return
                answer = await self._one(request)
                if answer.failure and answer.failure.kind == "connection":
                    await asyncio.sleep(
                        _AFTER_NO_CONNECTION_S
                    )  # a stopped server would fail thousands per second

        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, until.requests or concurrency)):
                group.create_task(send_consecutively())

    async def open(
        self, requests: Iterator[Request], offsets_s: Iterable[float], until: StopCondition
    ) -> None:
        """Send each request when due; its times count from then, even if this process is late."""
        self.begun_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for request, offset_s in zip(
                itertools.islice(requests, until.requests), offsets_s, strict=False
            ):
                if offset_s >= until.duration_s:
                    break
                due_s = self.begun_s + offset_s
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                group.create_task(self._one(request, due_s))

    async def _one(self, request: Request, due_s: float | None = None) -> RequestOutcome:
        self.sent += 1
        try:
            answer = await self._send_request(request, due_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            self._ended_s = time.monotonic()
            raise
        self.add(answer)
        self._report(answer)
        return answer

    def add(self, answer: RequestOutcome) -> None:
        self.answers.append(answer)
        self.failed += answer.failure is not None
        self.generated_tokens += answer.tokens or 0


@contextlib.asynccontextmanager
async def show_load_progress(
    load: LoadGenerator, what: str, every_s: float | None = None
) -> AsyncIterator[None]:
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    pause_s = every_s or (_ON_TERMINAL_S if on_terminal else _ELSE_S)
    task = asyncio.create_task(_show(load, what, pause_s, on_terminal=on_terminal))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if on_terminal:
            print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)


async def _show(load: LoadGenerator, what: str, pause_s: float, *, on_terminal: bool) -> None:
    while True:
        await asyncio.sleep(pause_s)
        text = f"{what}: {load_progress_line(load, time.monotonic())}"
        if on_terminal:
            print(f"{_CLEAR_LINE}{text}", end="", file=sys.stderr, flush=True)
        else:
            log_message(text)


def load_progress_line(load: LoadGenerator, now_s: float) -> str:
    elapsed_s = max(now_s - load.begun_s, 1e-9)
    return (
        f"{elapsed_s:.0f} s, {len(load.answers) - load.failed} answered, {load.failed} failed, "
        f"{load.in_flight} in flight, {load.generated_tokens / elapsed_s:.0f} tokens/s"
    )

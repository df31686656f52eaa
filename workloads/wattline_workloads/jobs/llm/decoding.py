"""Token batches, their generation step by step on the device, and their times.

The loop replaces transformers' `generate`, which may return tokens one step late and so hides their
times.
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattline_workloads.jobs.base import percentile_results
from wattline_workloads.jobs.llm.models import LoadedModel, ModelError

if TYPE_CHECKING:
    import torch

TokenIds = list[int]
"""Token ids of one text."""
TokenChooser = Callable[["torch.Tensor"], "torch.Tensor"]
"""Function from logits (texts, vocabulary) to the next token of each text."""


class TokenRates:
    """Token count, over the time within batches and over the time since `began_s`."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self.tokens = 0.0
        self.busy_s = 0.0
        self.wall_s = 0.0

    def add(self, tokens: float, latency_s: float, now_s: float) -> dict[str, float]:
        """Add a batch; return its rate and the totals by busy time (within batches) and by wall
        time.
        """
        self.tokens += tokens
        self.busy_s += latency_s
        self.wall_s = now_s - self._began_s
        return {
            "tokens_per_second": _rate(tokens, latency_s),
            "tokens_per_second_busy": _rate(self.tokens, self.busy_s),
            "tokens_per_second_wall": _rate(self.tokens, self.wall_s),
        }


def token_rate_results(tokens: float, busy_s: float, wall_s: float) -> dict[str, float]:
    """Return the results by wall time and by busy time."""
    return {
        "tokens_per_second": _rate(tokens, wall_s),
        "tokens_per_second_busy": _rate(tokens, busy_s),
    }


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class DecodingSteps:
    """Steps of one batch, started at `began_s`; step i gave tokens for `live[i]` texts at
    `token_times_s[i]`.

    Finished texts get no more tokens, so `live` never rises.
    """

    began_s: float
    token_times_s: tuple[float, ...]
    live: tuple[int, ...]

    @property
    def latency_s(self) -> float:
        return self.token_times_s[-1] - self.began_s

    @property
    def ttft_s(self) -> float:
        return self.token_times_s[0] - self.began_s

    @property
    def generated(self) -> int:
        return sum(self.live)

    @property
    def idle(self) -> int:
        """Discarded tokens, computed for finished texts."""
        return self.live[0] * len(self.live) - self.generated

    @property
    def gaps_s(self) -> list[float]:
        """Times between consecutive tokens."""
        return [
            later - earlier
            for earlier, later in zip(self.token_times_s, self.token_times_s[1:], strict=False)
        ]

    @property
    def tpots_s(self) -> list[float]:
        """Time per output token after the first, for each text of at least two tokens."""
        first_s = self.token_times_s[0]
        following = [*self.live[1:], 0]
        ended = [live - after for live, after in zip(self.live, following, strict=True)]
        return [
            (self.token_times_s[step] - first_s) / step
            for step, texts in enumerate(ended)
            for _ in range(texts)
            if step > 0
        ]


@dataclass(slots=True)
class TokenTimes:
    """Token times of all batches."""

    ttfts_s: list[float] = field(default_factory=list)
    tpots_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)

    def add(self, steps: DecodingSteps) -> None:
        self.ttfts_s.append(steps.ttft_s)
        self.tpots_s += steps.tpots_s
        self.gaps_s += steps.gaps_s

    def results(self) -> dict[str, float]:
        named: Sequence[tuple[str, list[float]]] = (
            ("ttft_seconds", self.ttfts_s),
            ("tpot_seconds", self.tpots_s),
            ("itl_seconds", self.gaps_s),
        )
        return {
            name: value
            for prefix, values in named
            for name, value in percentile_results(prefix, values).items()
        }


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Padded texts; `ids` and `mask` have the shape (rows, longest), the mask is 0 for padding."""

    ids: torch.Tensor
    mask: torch.Tensor
    tokens: int
    padding: int


def synthetic_texts(
    count: int, lengths: tuple[int, int], vocabulary: int, seed: int
) -> list[TokenIds]:
    """Return texts of random token ids with uniformly distributed lengths, both ends included."""
    rng = random.Random(seed)  # noqa: S311  # reproducible texts, not a secret
    return [rng.choices(range(vocabulary), k=rng.randint(*lengths)) for _ in range(count)]


def tokenize_file(file: str, tokenizer: Callable[..., Any]) -> list[TokenIds]:
    """Tokenize a file with one text per line; empty lines are skipped. Raises ModelError."""
    try:
        lines = [line for line in Path(file).read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read {file} as text: {error}") from error
    rows = [list(tokenizer(line)["input_ids"]) for line in lines]
    if not rows or not all(rows):
        raise ModelError(f"{file} has no text, or a line without tokens; write one text per line")
    return rows


def endless_batches(rows: Sequence[TokenIds], size: int) -> Iterator[list[TokenIds]]:
    """Yield batches of equal size, cycling through the rows."""
    endless = itertools.cycle(rows)
    while True:
        yield list(itertools.islice(endless, size))


def pad_batch(rows: Sequence[TokenIds], left: bool, pad: int = 0) -> TokenBatch:
    """Pad to the longest row; on the left for generation, so that each last token is in the last
    column.
    """
    import torch

    longest = max(map(len, rows))
    real = sum(map(len, rows))

    def fill(row: list[int], value: int) -> list[int]:
        missing = [value] * (longest - len(row))
        return missing + row if left else row + missing

    return TokenBatch(
        ids=torch.tensor([fill(row, pad) for row in rows]),
        mask=torch.tensor([fill([1] * len(row), 0) for row in rows]),
        tokens=real,
        padding=longest * len(rows) - real,
    )


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    new_tokens: int
    eos: frozenset[int]


def choose_greedily(logits: torch.Tensor) -> torch.Tensor:
    return logits.argmax(-1)


def sampling_chooser(temperature: float, top_k: int | None, top_p: float | None) -> TokenChooser:
    """Return a sampler among the `top_k` most likely tokens, or the fewest with total probability
    `top_p`.
    """
    import torch

    def choose(logits: torch.Tensor) -> torch.Tensor:
        scaled = logits.float() / temperature
        if top_k is not None:
            least = scaled.topk(min(top_k, scaled.shape[-1])).values[:, -1:]
            scaled = scaled.masked_fill(scaled < least, -torch.inf)
        if top_p is not None:
            order = scaled.sort(descending=True)
            shares = order.values.softmax(-1)
            beyond = shares.cumsum(-1) - shares >= top_p  # the most likely token is always kept
            scaled = scaled.masked_fill(beyond.scatter(-1, order.indices, beyond), -torch.inf)
        return torch.multinomial(scaled.softmax(-1), 1)[:, 0]

    return choose


def generate_tokens(
    loaded: LoadedModel,
    batch: TokenBatch,
    limits: GenerationLimits,
    choose: TokenChooser,
    clock: Callable[[], float],
) -> tuple[DecodingSteps, torch.Tensor]:
    """Return the steps and the generated ids (texts, steps); `clock` times each step's tokens."""
    import torch

    began_s = clock()
    ids = batch.ids.to(loaded.device)
    mask = batch.mask.to(loaded.device)
    ends = torch.tensor(sorted(limits.eos), device=loaded.device, dtype=torch.long)
    unfinished = torch.ones(len(ids), dtype=torch.bool, device=loaded.device)
    step = _Step(loaded.module)
    cache = None
    token_times_s = list[float]()
    live = list[int]()
    chosen = []
    with torch.no_grad():
        while len(live) < limits.new_tokens:
            count = int(unfinished.sum()) if limits.eos else len(unfinished)
            if count == 0:
                break
            logits, cache = step(ids, mask, cache)
            tokens = choose(logits)
            token_times_s.append(clock())
            live.append(count)
            chosen.append(tokens)
            unfinished &= ~torch.isin(tokens, ends)
            ids = tokens[:, None]
            mask = torch.cat([mask, torch.ones_like(ids)], dim=-1)
    return DecodingSteps(began_s, tuple(token_times_s), tuple(live)), torch.stack(chosen, dim=-1)


class _Step:
    """Forward pass that returns the last column's logits, adapted to the model's parameters."""

    def __init__(self, module: Any) -> None:
        self._module = module
        parameters = inspect.signature(module.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._cache_name = (
            "cache" if "cache" in parameters else "past_key_values"
        )  # until transformers 5.24
        self._more = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    def __call__(
        self, ids: torch.Tensor, mask: torch.Tensor, cache: Any
    ) -> tuple[torch.Tensor, Any]:
        more = {**self._more, self._cache_name: cache}
        if self._takes_positions:  # otherwise padding on the left would shift the positions
            more["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = self._module(input_ids=ids, attention_mask=mask, use_cache=True, **more)
        return output.logits[:, -1], output[self._cache_name]

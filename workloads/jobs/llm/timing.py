"""Token rates and token times of batches, in seconds of any clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from workloads.jobs.kernels import percentiles


class TokenRates:
    """Token count, over the time within batches and over the time since `began_s`."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self.tokens = 0.0
        self.busy_s = 0.0
        self.wall_s = 0.0

    def add(self, tokens: float, latency_s: float, now_s: float) -> dict[str, float]:
        """Add a batch; return its rate and the totals by busy time (within batches) and by wall time."""
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
    return {"tokens_per_second": _rate(tokens, wall_s), "tokens_per_second_busy": _rate(tokens, busy_s)}


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class DecodingSteps:
    """Steps of one batch, started at `began_s`; step i gave tokens for `live[i]` texts at `token_times_s[i]`.

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
        return [later - earlier for earlier, later in zip(self.token_times_s, self.token_times_s[1:], strict=False)]

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
            for name, value in percentiles.percentile_results(prefix, values).items()
        }

"""Outcome of one request, with times in seconds of the monotonic clock."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from workloads.jobs.llm_load.stream import TokenUsage


@dataclass(frozen=True, slots=True)
class RequestFailure:
    kind: str
    """Part of a result's name: `timeout`, `http_429`."""
    message: str


def _no_gaps() -> array[float]:
    return array("d")


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    scheduled_s: float
    """Time at which the request was due; in a closed loop, at which it was sent."""
    sent_s: float
    ended_s: float
    """Time of the response's last event, or of the failure."""
    first_s: float | None = None
    """Time of the first event with generated text."""
    gaps_s: array[float] = field(default_factory=_no_gaps)
    """Times between consecutive events with generated text."""
    usage: TokenUsage | None = None
    failure: RequestFailure | None = None

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.scheduled_s

    @property
    def e2e_s(self) -> float:
        return self.ended_s - self.scheduled_s

    @property
    def tokens(self) -> int | None:
        return self.usage.generated_tokens if self.usage else None

    @property
    def tpot_s(self) -> float | None:
        """(e2e - TTFT) / (tokens - 1); None without the server's count, or with one token."""
        if self.first_s is None or self.tokens is None or self.tokens < 2:
            return None
        return (self.ended_s - self.first_s) / (self.tokens - 1)

    @property
    def chunks(self) -> int:
        return 0 if self.first_s is None else len(self.gaps_s) + 1

    def work(self) -> Mapping[str, float]:
        """Return the work of the run by unit."""
        if self.failure:
            return {"requests_failed": 1}
        counted = {
            "prompt_tokens": self.usage.prompt_tokens if self.usage else None,
            "generated_tokens": self.tokens,
            "cached_tokens": self.usage.cached_tokens if self.usage else None,
            "reasoning_tokens": self.usage.reasoning_tokens if self.usage else None,
        }
        return {"requests": 1, **{unit: float(count) for unit, count in counted.items() if count is not None}}

    def values(self) -> Mapping[str, float]:
        """Return the values for the run's `events.jsonl`."""
        if self.failure:
            return {"failed": 1, "send_delay_seconds": self.sent_s - self.scheduled_s}
        measured = {"ttft_seconds": self.ttft_s, "tpot_seconds": self.tpot_s}
        return {
            **{name: value for name, value in measured.items() if value is not None},
            "send_delay_seconds": self.sent_s - self.scheduled_s,
            "chunks": self.chunks,
        }

"""Streamed completions of OpenAI-compatible servers: events, content, outcome."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

DONE = "[DONE]"
_GENERATED = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal")
_ABORT_REASONS = ("abort", "error")
_LONGEST_EVENT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token counts of the server, None if missing; generated includes reasoning, prompt includes
    cached.
    """

    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CompletionChunk:
    generated: bool = False
    """True if the chunk has generated text; the first one often has only the role."""
    finished: bool = False
    usage: TokenUsage | None = None
    error: str | None = None
    answer_id: str | None = None
    abort_reason: str | None = None
    """Finish reason of a response that the server aborted."""


def parse_chunk(data: str) -> CompletionChunk:
    """Parse a chunk of a completion. Raises ValueError."""
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError(f"not an object: {data[:80]}")  # noqa: TRY004  # of the data, not of the program
    error = error_message(document)
    if error is not None:
        return CompletionChunk(error=error)
    choices = list(_objects(document.get("choices")))
    reasons = [text for choice in choices if (text := _reason(choice.get("finish_reason")))]
    return CompletionChunk(
        generated=any(_has_generated(choice) for choice in choices),
        finished=bool(reasons),
        usage=_usage(document.get("usage")),
        answer_id=_text(document.get("id")),
        abort_reason=next((reason for reason in reasons if reason in _ABORT_REASONS), None),
    )


def error_message(document: Mapping[str, Any]) -> str | None:
    """Return the error message in the form of OpenAI, older vLLM, FastAPI, or a bare text; None
    without one.
    """
    error = document.get("error")
    if error is None and document.get("object") == "error":
        error = document
    if error is None and "choices" not in document:
        error = document.get("detail") or (
            document if "code" in document and "message" in document else None
        )
    if isinstance(error, Mapping):
        error = error.get("message") or json.dumps(error)
    return None if error is None else str(error)


def _objects(choices: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(choices, list):
        yield from (choice for choice in choices if isinstance(choice, dict))


def _has_generated(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta")
    return bool(choice.get("text")) or (
        isinstance(delta, dict) and any(delta.get(name) for name in _GENERATED)
    )


def _reason(reason: object) -> str:
    """Return the finish reason, which SGLang sends as an object: {"type": "abort"}."""
    return str(reason.get("type", "")) if isinstance(reason, dict) else str(reason or "")


def _usage(usage: object) -> TokenUsage | None:
    if not isinstance(usage, dict):
        return None
    details = usage.get("completion_tokens_details")
    details = details if isinstance(details, dict) else {}
    counts = TokenUsage(
        prompt_tokens=_count(usage, "prompt_tokens"),
        generated_tokens=_count(usage, "completion_tokens"),
        cached_tokens=_count(usage.get("prompt_tokens_details"), "cached_tokens"),
        reasoning_tokens=_count(
            {**usage, **details}, "reasoning_tokens"
        ),  # SGLang has it at the top level
    )
    return None if counts.prompt_tokens is None and counts.generated_tokens is None else counts


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(counts: object, name: str) -> int | None:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


class EventStreamDecoder:
    """Decoder of one response's server-sent events, fed with pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""
        self._after_return = False
        self._first = True
        self._data: list[str] = []
        self._data_bytes = 0

    def feed(self, piece: bytes) -> list[str]:
        """Return the data of the events that `piece` completes. Raises ValueError for binary or
        endless data.
        """
        if self._after_return and piece:
            piece = piece.removeprefix(b"\n")
            self._after_return = False
        buffer = self._rest + piece
        lines = buffer.splitlines(keepends=True)
        self._after_return = self._after_return or buffer.endswith(b"\r")
        self._rest = lines.pop() if lines and not lines[-1].endswith((b"\r", b"\n")) else b""
        if len(self._rest) + self._data_bytes > _LONGEST_EVENT_BYTES:
            raise ValueError(f"an event of more than {_LONGEST_EVENT_BYTES >> 20} MiB")
        return [
            event
            for line in lines
            if (event := self._take(line.rstrip(b"\r\n").decode())) is not None
        ]

    def _take(self, line: str) -> str | None:
        """Return the data of an event that ends with this line, else None."""
        if self._first:
            line = line.removeprefix("\ufeff")
            self._first = False
        if not line:
            data = self._data
            self._data = []
            self._data_bytes = 0
            return "\n".join(data) if data else None
        field, _, value = line.partition(":")
        if field in {"data", "error"}:  # llama.cpp has sent errors as a field of that name
            self._data.append(value.removeprefix(" "))
            self._data_bytes += len(line)
        return None


@dataclass(frozen=True, slots=True)
class RequestFailure:
    kind: str
    """Part of a result's name: `timeout`, `http_429`."""
    message: str


def _no_gaps() -> array[float]:
    return array("d")


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """Outcome of a request, with times in seconds of the monotonic clock."""

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
    answer_id: str | None = None

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
        return {
            "requests": 1,
            **{unit: float(count) for unit, count in counted.items() if count is not None},
        }

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

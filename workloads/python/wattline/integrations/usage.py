"""Tokens, model and first token of an answer, from its JSON or its server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_JSON_BYTES = 8 * 1024 * 1024
_TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal", "function_call")


@dataclass(slots=True)
class AnswerUsage:
    """Usage that an answer of OpenAI's or Anthropic's API states; None for values that it lacks."""

    request_id: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    has_text: bool = False
    """True once an event with generated text was read."""

    def read(self, document: object) -> None:
        """Read a JSON answer, or the data of one event."""
        if not isinstance(document, dict):
            return
        # an event of OpenAI's Responses API has `response`, the first one of Anthropic's `message`
        for holder in (document, document.get("response"), document.get("message")):
            if isinstance(holder, dict):
                self.request_id = self.request_id or _text(holder, "id")
                self.model = self.model or _text(holder, "model")
                self._read_usage(holder.get("usage"))
        self.has_text = self.has_text or _has_text(document)

    def _read_usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        prompt, generated = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens", "output_tokens")
        if prompt is None and (computed := _count(usage, "input_tokens")) is not None:
            # Anthropic's API counts the tokens from and for the cache apart
            cached, written = (_count(usage, f"cache_{kind}_input_tokens") for kind in ("read", "creation"))
            prompt = computed + (cached or 0) + (written or 0)
            self.cached_tokens = self.cached_tokens if cached is None else cached
        self.prompt_tokens = prompt if prompt is not None else self.prompt_tokens
        self.generated_tokens = generated if generated is not None else self.generated_tokens
        for details in ("prompt_tokens_details", "input_tokens_details"):
            if isinstance(usage.get(details), dict):
                self.cached_tokens = _count(usage[details], "cached_tokens")


class EventStream:
    """Reader of server-sent events in pieces of any size. An endless line is discarded."""

    def __init__(self, usage: AnswerUsage) -> None:
        self._usage = usage
        self._rest = b""

    def feed(self, piece: bytes) -> None:
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_JSON_BYTES:
            self._rest = b""
        for line in lines:
            # after the first text only the events with usage are of interest
            if line.startswith(b"data:") and (not self._usage.has_text or b'usage"' in line):
                self._usage.read(parse(line[5:]))


def parse(content: bytes) -> object:
    """Return the JSON document, None if it is not one."""
    try:
        return json.loads(content)
    except ValueError:
        return None


def _has_text(document: Mapping[str, Any]) -> bool:
    kind = document.get("type")
    if isinstance(kind, str):  # of the Responses API and Anthropic's
        return kind.endswith((".delta", "_delta")) and kind != "message_delta"
    choices = document.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            delta = choice.get("delta")
            if choice.get("text") or (isinstance(delta, dict) and any(delta.get(name) for name in _TEXTS)):
                return True
    return False


def _text(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    return value if isinstance(value, str) and value else None


def _count(counts: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = counts.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None

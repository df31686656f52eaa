"""Tokens, model and first token of an answer, from its JSON or its stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_JSON_BYTES = 8 * 1024 * 1024
_TEXTS = (
    "content",
    "reasoning_content",
    "reasoning",
    "tool_calls",
    "refusal",
    "function_call",
    "thinking",
)
_MARKS = (b'usage"', b'meta_info"', b'eval_count"')
"""Texts of which JSON with numbers of tokens has one."""
_NO_USAGE = (b'usage":null', b'usage": null')
_MAX_TEXTLESS = 32
"""Events in which the first text is searched, in a stream that may be of something else."""


@dataclass(slots=True)
class AnswerUsage:
    """Usage that an answer states; None for values that it lacks.

    The APIs of OpenAI and Anthropic have `usage`, SGLang's /generate `meta_info`, Ollama's
    /api/chat `eval_count`.
    """

    request_id: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    has_text: bool = False
    """True once an event with generated text was read."""

    def read(self, document: object) -> None:
        """Read a JSON answer, or the data of one event."""
        if isinstance(document, list):
            self._read_batch(document)
        if not isinstance(document, dict):
            return
        # an event of OpenAI's Responses API has `response`, the first one of Anthropic's `message`
        for holder in (document, document.get("response"), document.get("message")):
            if isinstance(holder, dict):
                self.request_id = self.request_id or _text(holder, "id")
                self.model = self.model or _text(holder, "model")
                self._read_usage(holder.get("usage"))
        meta = document.get("meta_info")
        if isinstance(meta, dict):
            self.request_id = self.request_id or _text(meta, "id")
            self._read_usage(meta)
        elif (
            generated := _count(document, "eval_count")
        ) is not None:  # the prompt is missing if it was cached
            self.prompt_tokens = _count(document, "prompt_eval_count") or 0
            self.generated_tokens = generated
        self.has_text = self.has_text or _has_text(document)

    def _read_batch(self, documents: list[object]) -> None:
        """Read the answers to a batch of prompts, which are one request."""
        answers = [AnswerUsage() for _ in documents]
        for answer, document in zip(answers, documents, strict=True):
            answer.read(document)
        if answers and all(answer.prompt_tokens is not None for answer in answers):
            self.request_id = answers[0].request_id
            self.model = answers[0].model
            self.prompt_tokens = sum(answer.prompt_tokens or 0 for answer in answers)
            self.cached_tokens = sum(answer.cached_tokens or 0 for answer in answers)
            self.generated_tokens = sum(answer.generated_tokens or 0 for answer in answers)

    def _read_usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        prompt = _count(usage, "prompt_tokens")
        generated = _count(usage, "completion_tokens", "output_tokens")
        if prompt is None and (computed := _count(usage, "input_tokens")) is not None:
            # Anthropic's API counts the tokens from and for the cache apart
            cached, written = (
                _count(usage, f"cache_{kind}_input_tokens") for kind in ("read", "creation")
            )
            prompt = computed + (cached or 0) + (written or 0)
            self.cached_tokens = self.cached_tokens if cached is None else cached
        if prompt is None and generated is None and self.prompt_tokens is None:
            prompt = _count(usage, "total_tokens")  # all that a server that ranks texts states
        self.prompt_tokens = prompt if prompt is not None else self.prompt_tokens
        self.generated_tokens = generated if generated is not None else self.generated_tokens
        self.cached_tokens = (
            self.cached_tokens if (own := _count(usage, "cached_tokens")) is None else own
        )
        for details in ("prompt_tokens_details", "input_tokens_details"):
            if isinstance(usage.get(details), dict):
                self.cached_tokens = _count(usage[details], "cached_tokens")


class EventStream:
    """Reader of server-sent events, or of lines of JSON, in pieces of any size. An endless line is
    discarded.

    Of the events after the first text only the last one with numbers of tokens is read, at the end.
    """

    def __init__(
        self, usage: AnswerUsage, *, is_lines: bool = False, is_known: bool = True
    ) -> None:
        self._usage = usage
        self._begin = b"{" if is_lines else b"data:"
        self._rest = b""
        self._last = b""
        self._left = None if is_known else _MAX_TEXTLESS

    def feed(self, piece: bytes) -> None:
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_JSON_BYTES:
            self._rest = b""
        for line in lines:
            if line.startswith(self._begin):
                self._take(line.removeprefix(b"data:"))

    def end(self) -> None:
        """Read the numbers of tokens at the end of the stream."""
        if self._rest.startswith(self._begin):
            self._take(self._rest.removeprefix(b"data:"))
        self._usage.read(parse(self._last))

    def _take(self, data: bytes) -> None:
        has_tokens = states_tokens(data) and not any(empty in data for empty in _NO_USAGE)
        if self._usage.has_text:
            self._last = data if has_tokens else self._last
        elif has_tokens or self._left is None or self._left > 0:
            self._left = None if self._left is None else self._left - 1
            self._usage.read(parse(data))


def states_tokens(content: bytes | bytearray) -> bool:
    """Return True if JSON may have numbers of tokens."""
    return any(mark in content for mark in _MARKS)


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
    message = document.get("message")
    if (isinstance(message, dict) and any(message.get(name) for name in _TEXTS)) or document.get(
        "response"
    ):
        return "done" in document  # of Ollama
    if "meta_info" in document:
        return bool(document.get("text") or document.get("output_ids"))
    choices = document.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            delta = choice.get("delta")
            if choice.get("text") or (
                isinstance(delta, dict) and any(delta.get(name) for name in _TEXTS)
            ):
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

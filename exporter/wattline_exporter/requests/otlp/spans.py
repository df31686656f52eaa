"""Requests of LLM servers in the spans of vLLM, SGLang, LiteLLM and the GenAI conventions.

The names of the attributes are listed in `exporter/docs/requests-otlp.md` with the versions that
emit them.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from wattline.contract.api import HASH_DIGITS
from wattline.contract.requests.served import MAX_REQUEST_ID
from wattline_exporter.requests.otlp.attributes import (
    RUN_ID,
    LabelRules,
    Values,
    scalar,
)
from wattline_exporter.requests.otlp.trace_messages import Attributes

_INPUT = "gen_ai.usage.input_tokens"
_PROMPT = "gen_ai.usage.prompt_tokens"
_OUTPUT = "gen_ai.usage.output_tokens"
_COMPLETION = "gen_ai.usage.completion_tokens"
_CACHED = "gen_ai.usage.cached_tokens"
_CACHE_READ = "gen_ai.usage.cache_read.input_tokens"
_FIRST_TOKEN = "gen_ai.latency.time_to_first_token"  # noqa: S105  # name of an attribute
_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
_LATENCY = "gen_ai.latency.e2e"
_RESPONSE_ID = "gen_ai.response.id"
_REQUEST_ID = "gen_ai.request.id"
"""Id of the answer, which a gateway has from its server, and a server's own id of the request."""
_OPERATION = "gen_ai.operation.name"
_WITHOUT_OUTPUT = frozenset({"embeddings", "embedding", "aembedding", "rerank", "arerank"})
_NOT_REQUESTS = frozenset(
    {"create_agent", "execute_tool", "invoke_agent", "invoke_workflow", "plan", "retrieval"}
)
"""Operations whose usage is the sum of the requests below them."""
Role = Literal["prefill", "decode"]
_ROLES: dict[str, Role] = {"prefill": "prefill", "decode": "decode"}
_NS = 1e-9
_NAN = float("nan")
_INFINITE = float("inf")


SpanRow = tuple[
    str,
    float,
    float,
    float,
    int,
    int,
    int,
    int,
    str | None,
    tuple[tuple[str | None, ...], Role | None],
]
"""Request of a span: id, start, first token (NaN if unknown), end, tokens of the prompt, cached and
generated tokens, number of the span, `wattline.run_id`, texts of its labels with its role. A tuple
is made faster than an object.
"""


class SpanReader:
    """Conversion of spans to requests, with the labels that `rules` allow."""

    def __init__(self, rules: LabelRules) -> None:
        self._rules = rules
        self._label_keys = rules.keys
        self.resource_keys = frozenset(rules.keys)

    def labels(self, texts: tuple[str | None, ...], resource: Values) -> dict[str, str]:
        """Return the labels of a span with these texts and its resource."""
        return self._rules.labels(dict(zip(self._label_keys, texts, strict=True)), resource)

    def read(self, span: Any, attributes: Attributes, number: int) -> SpanRow | None:
        """Return the request of a span with its number; None for a span without token counts."""
        prompt = _count(attributes, _INPUT, _PROMPT)
        if prompt is None:
            return None
        made = _count(attributes, _OUTPUT, _COMPLETION)
        latency_s = _seconds(attributes[_LATENCY]) if _LATENCY in attributes else None
        operation = _text(attributes[_OPERATION]) if _OPERATION in attributes else None
        if operation in _NOT_REQUESTS or (
            made is None and latency_s is None and operation not in _WITHOUT_OUTPUT
        ):
            return None
        first_s = _seconds(attributes[_FIRST_TOKEN]) if _FIRST_TOKEN in attributes else 0.0
        if not first_s and _FIRST_CHUNK in attributes:
            first_s = _seconds(attributes[_FIRST_CHUNK])
        request_id = _text(attributes[_RESPONSE_ID]) if _RESPONSE_ID in attributes else None
        if not request_id and _REQUEST_ID in attributes:
            request_id = _text(attributes[_REQUEST_ID])
        started_at = span.start_time_unix_nano * _NS
        head, separator, _ = span.name.partition(" Req ")
        return (
            _short_id(request_id) if request_id else span.span_id.hex(),
            started_at,
            started_at + first_s if first_s else _NAN,
            started_at + latency_s if latency_s else span.end_time_unix_nano * _NS,
            prompt,
            _count(attributes, _CACHED, _CACHE_READ) or 0,
            made or 0,
            number,
            _text(attributes[RUN_ID]) if RUN_ID in attributes else None,
            (
                tuple(
                    [
                        _text(attributes[key]) if key in attributes else None
                        for key in self._label_keys
                    ]
                ),
                _ROLES.get(head) if separator else None,
            ),
        )


def _short_id(request_id: str) -> str:
    """Return an id within the limit; different long ones stay different."""
    if len(request_id) <= MAX_REQUEST_ID:
        return request_id
    digits = hashlib.sha256(request_id.encode()).hexdigest()[:HASH_DIGITS]
    return f"{request_id[: MAX_REQUEST_ID - HASH_DIGITS - 1]}~{digits}"


def _count(attributes: Attributes, first: str, second: str) -> int | None:
    """Return the first of two attributes that a span has, if it is a number of tokens."""
    if first not in attributes:
        if second not in attributes:
            return None
        first = second
    attribute = attributes[first]
    if count := attribute.int_value:
        return count
    value = scalar(attribute)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if abs(value) < 2**63 else None


def _seconds(attribute: AnyValue) -> float:
    """Return a duration; 0 if it is unknown, as servers report it."""
    value = attribute.double_value or scalar(attribute)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 < value < _INFINITE else 0.0


def _text(attribute: AnyValue) -> str | None:
    """Return a text, a number or a bool as text; None for other values."""
    if text := attribute.string_value:
        return text
    value = scalar(attribute)
    return None if value is None else str(value)

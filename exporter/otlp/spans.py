"""Requests of LLM servers in the spans of vLLM, SGLang, LiteLLM and the GenAI conventions.

The names of the attributes are listed in `exporter/docs/requests-otlp.md` with the versions that emit them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from exporter.contract.requests.served import MAX_REQUEST_ID
from exporter.otlp.attributes import HASH_DIGITS, RUN_ID, LabelRules, Values, scalar
from exporter.otlp.trace_messages import Attributes

if TYPE_CHECKING:  # numpy is imported with the first request
    from exporter.otlp.span_layouts import SpanLayout

INPUT, PROMPT = "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"
OUTPUT, COMPLETION = "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"
CACHED, CACHE_READ = "gen_ai.usage.cached_tokens", "gen_ai.usage.cache_read.input_tokens"
FIRST_TOKEN, FIRST_CHUNK = "gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk"
LATENCY = "gen_ai.latency.e2e"
RESPONSE_ID, REQUEST_ID = "gen_ai.response.id", "gen_ai.request.id"
"""Id of the answer, which a gateway has from its server, and a server's own id of the request."""
OPERATION = "gen_ai.operation.name"
WITHOUT_OUTPUT = frozenset({"embeddings", "embedding", "aembedding", "rerank", "arerank"})
NOT_REQUESTS = frozenset({"create_agent", "execute_tool", "invoke_agent", "invoke_workflow", "plan", "retrieval"})
"""Operations whose usage is the sum of the requests below them."""
Role = Literal["prefill", "decode"]
_ROLES: dict[str, Role] = {"prefill": "prefill", "decode": "decode"}
NS = 1e-9
NAN, INFINITE = float("nan"), float("inf")


Origin = tuple[str | None, tuple[str | None, ...], Role | None]
"""`wattline.run_id` of a span, texts of its labels, and role of its server."""
SpanRow = tuple[str, float, float, float, int, int, int, int, Origin]
"""Request of a span: id, start, first token (NaN if unknown), end, tokens of the prompt, cached and generated tokens,
number of the span, and origin. A tuple is made faster than an object."""


class SpanReader:
    """Conversion of spans to requests, with the labels that `rules` allow."""

    def __init__(self, rules: LabelRules) -> None:
        self._rules, self.label_keys = rules, rules.keys
        self.resource_keys = frozenset(rules.keys)
        self.layouts: dict[int, list[SpanLayout]] = {}
        """Layouts by the length of their spans, the latest one first. See `exporter.otlp.span_batch`."""

    def labels(self, texts: tuple[str | None, ...], resource: Values) -> dict[str, str]:
        """Return the labels of a span with these texts and its resource."""
        return self._rules.labels(dict(zip(self.label_keys, texts, strict=True)), resource)

    def read(self, span: Any, attributes: Attributes, number: int) -> SpanRow | None:
        """Return the request of a span with its number; None for a span without token counts."""
        prompt = _count(attributes, INPUT, PROMPT)
        if prompt is None:
            return None
        made = _count(attributes, OUTPUT, COMPLETION)
        latency_s = _seconds(attributes[LATENCY]) if LATENCY in attributes else None
        operation = _text(attributes[OPERATION]) if OPERATION in attributes else None
        if operation in NOT_REQUESTS or (made is None and latency_s is None and operation not in WITHOUT_OUTPUT):
            return None
        first_s = _seconds(attributes[FIRST_TOKEN]) if FIRST_TOKEN in attributes else 0.0
        if not first_s and FIRST_CHUNK in attributes:
            first_s = _seconds(attributes[FIRST_CHUNK])
        request_id = _text(attributes[RESPONSE_ID]) if RESPONSE_ID in attributes else None
        if not request_id and REQUEST_ID in attributes:
            request_id = _text(attributes[REQUEST_ID])
        started_at = span.start_time_unix_nano * NS
        return (
            short_id(request_id) if request_id else span.span_id.hex(),
            started_at,
            started_at + first_s if first_s else NAN,
            started_at + latency_s if latency_s else span.end_time_unix_nano * NS,
            prompt,
            _count(attributes, CACHED, CACHE_READ) or 0,
            made or 0,
            number,
            (
                _text(attributes[RUN_ID]) if RUN_ID in attributes else None,
                tuple([_text(attributes[key]) if key in attributes else None for key in self.label_keys]),
                role_of(span.name),
            ),
        )


def role_of(span_name: str) -> Role | None:
    head, separator, _ = span_name.partition(" Req ")
    return _ROLES.get(head) if separator else None


def short_id(request_id: str) -> str:
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
    return float(value) if 0 < value < INFINITE else 0.0


def _text(attribute: AnyValue) -> str | None:
    """Return a text, a number or a bool as text; None for other values."""
    if text := attribute.string_value:
        return text
    value = scalar(attribute)
    return None if value is None else str(value)

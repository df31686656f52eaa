"""Requests of LLM servers in the spans of vLLM, SGLang, LiteLLM and the GenAI conventions.

The names of the attributes are listed in `exporter/docs/requests-otlp.md` with the versions that emit them.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Literal

from exporter.contract.requests.served import MAX_REQUEST_ID
from exporter.otlp.attributes import RUN_ID, LabelRules, Value, Values
from exporter.otlp.raw_attributes import AttributeReader

_COUNTS = (
    "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens",
    "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens",
    "gen_ai.usage.cached_tokens", "gen_ai.usage.cache_read.input_tokens",
)  # fmt: skip
"""Prompt, generated and cached tokens, each with two names, of which the first one that a span has counts."""
_SECONDS = (
    "gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk", "gen_ai.latency.e2e",
)  # fmt: skip
_TEXTS = ("gen_ai.response.id", "gen_ai.request.id", "gen_ai.operation.name", RUN_ID)
"""Ids of the request, operation and run. A gateway has the server's id in its response; a server has its own."""
_FIRST_SECONDS, _FIRST_TEXT = len(_COUNTS), len(_COUNTS) + len(_SECONDS)
_FIXED = _FIRST_TEXT + len(_TEXTS)
_WITHOUT_OUTPUT = frozenset({"embeddings", "embedding", "aembedding", "rerank", "arerank"})
_NOT_REQUESTS = frozenset({"create_agent", "execute_tool", "invoke_agent", "invoke_workflow", "plan", "retrieval"})
"""Operations whose usage is the sum of the requests below them."""
Role = Literal["prefill", "decode"]
_ROLES: dict[str, Role] = {"prefill": "prefill", "decode": "decode"}
_NS = 1e-9
_NAN, _INFINITE = float("nan"), float("inf")


SpanRow = tuple[str, float, float, float, int, int, int, tuple[Value | None, ...], Role | None, str | None]
"""Request of a span: id, start, first token (NaN if unknown), end, tokens of the prompt, cached and generated tokens,
values of its labels, role, and `wattline.run_id`. A plain tuple is made faster than an object with names."""


class SpanReader:
    """Conversion of spans to requests, with the labels that `rules` allow."""

    def __init__(self, rules: LabelRules) -> None:
        self._rules, self.resource_keys = rules, frozenset(rules.keys)
        names = dict.fromkeys([*_COUNTS, *_SECONDS, *_TEXTS, *rules.keys])
        places = {name: place for place, name in enumerate(names)}
        self._attributes = AttributeReader(places)
        self._label_values: Callable[[list[Value | None]], tuple[Value | None, ...]] = itemgetter(
            *(places[name] for name in rules.keys)
        )

    def labels(self, values: tuple[Value | None, ...], resource: Values) -> dict[str, str]:
        """Return the labels of a span with these values and its resource."""
        return self._rules.labels(dict(zip(self._rules.keys, values, strict=True)), resource)

    def read(self, span: Any) -> SpanRow | None:
        """Return the request of a span of `trace_request_class`; None for a span without token counts.

        Raises DecodeError, UnicodeDecodeError and struct.error.
        """
        values = self._attributes.values(span.attributes[:])
        prompt_a, prompt_b, made_a, made_b, cached_a, cached_b = values[:_FIRST_SECONDS]
        first_a, first_b, e2e, response_id, own_id, operation, run_id = values[_FIRST_SECONDS:_FIXED]
        prompt = prompt_b if prompt_a is None else prompt_a
        if type(prompt) is not int:
            prompt = _count(prompt_a, prompt_b)
        if prompt is None or operation in _NOT_REQUESTS:
            return None
        made = made_b if made_a is None else made_a
        if type(made) is not int:
            made = _count(made_a, made_b)
        if made is None and operation not in _WITHOUT_OUTPUT and e2e is None:
            return None
        cached = 0 if cached_a is None and cached_b is None else _count(cached_a, cached_b)
        started_at = span.start_time_unix_nano * _NS
        e2e_s, first_s, name = _seconds(e2e), _seconds(first_a) or _seconds(first_b), response_id or own_id
        head, separator, _ = span.name.partition(" Req ")
        return (
            str(name)[:MAX_REQUEST_ID] if name else span.span_id.hex(),
            started_at,
            started_at + first_s if first_s else _NAN,
            started_at + e2e_s if e2e_s else span.end_time_unix_nano * _NS,
            prompt,
            cached or 0,
            made or 0,
            self._label_values(values),
            _ROLES.get(head) if separator else None,
            None if run_id is None else str(run_id),
        )


def _count(*values: Value | None) -> int | None:
    """Return the first of the values that is a number of tokens."""
    for value in values:
        if value is not None and not isinstance(value, str) and abs(value) < 2**63:
            return int(value)
    return None


def _seconds(value: Value | None) -> float:
    """Return a duration; 0 if it is unknown, as servers report it."""
    return float(value) if isinstance(value, int | float) and 0 < value < _INFINITE else 0.0

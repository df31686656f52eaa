"""Requests of LLM servers in the spans of vLLM, SGLang, LiteLLM and the GenAI conventions.

The names of the attributes are listed in `exporter/docs/requests-otlp.md` with the versions that emit them.
"""

from __future__ import annotations

from typing import Literal, get_args

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from exporter.contract.requests.served import MAX_REQUEST_ID, ServedRequest
from exporter.otlp.attributes import RUN_ID, LabelRules, Values, scalar_values

_REQUEST_IDS = ("gen_ai.response.id", "gen_ai.request.id")
"""A gateway has the server's id in its response; a server has its own."""
_PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_GENERATED = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_CACHED = ("gen_ai.usage.cached_tokens", "gen_ai.usage.cache_read.input_tokens")
_FIRST_TOKEN = ("gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk")
_E2E, _OPERATION = "gen_ai.latency.e2e", "gen_ai.operation.name"
_WITHOUT_OUTPUT = ("embeddings", "embedding", "aembedding", "rerank", "arerank")
_NOT_REQUESTS = (
    "create_agent", "execute_tool", "invoke_agent", "invoke_workflow", "plan", "retrieval",
)  # fmt: skip
"""Operations whose usage is the sum of the requests below them."""
_SPAN_KEYS = frozenset({*_REQUEST_IDS, *_PROMPT, *_GENERATED, *_CACHED, *_FIRST_TOKEN, _E2E, _OPERATION, RUN_ID})
Role = Literal["prefill", "decode"]
_ROLES: tuple[Role, ...] = get_args(Role)
_NS = 1e-9


class SpanReader:
    """Conversion of spans to requests, with the labels that `rules` allow."""

    def __init__(self, rules: LabelRules) -> None:
        self._rules = rules
        self._keys = _SPAN_KEYS | rules.keys
        self.resource_keys = rules.keys

    def read(self, span: Span, resource: Values) -> tuple[ServedRequest, str | None] | None:
        """Return the span's request and its `wattline.run_id`; None for a span that is no request with token counts."""
        values = scalar_values(span.attributes, self._keys)
        prompt = _count(values, _PROMPT)
        operation = values.get(_OPERATION)
        if prompt is None or operation in _NOT_REQUESTS:
            return None
        generated = _count(values, _GENERATED)
        if generated is None and operation not in _WITHOUT_OUTPUT and _E2E not in values:
            return None
        started_at = span.start_time_unix_nano * _NS
        e2e_s, first_s = _seconds(values, (_E2E,)), _seconds(values, _FIRST_TOKEN)
        request = ServedRequest(
            _text(values, _REQUEST_IDS) or span.span_id.hex(),
            started_at,
            span.end_time_unix_nano * _NS if e2e_s is None else started_at + e2e_s,
            prompt,
            generated or 0,
            None if first_s is None else started_at + first_s,
            _count(values, _CACHED) or 0,
            self._rules.labels(values, resource),
            _role(span.name),
        )
        run_id = values.get(RUN_ID)
        return request, None if run_id is None else str(run_id)


def _count(values: Values, keys: tuple[str, ...]) -> int | None:
    """Return the first of the attributes that is a number of tokens."""
    for key in keys:
        value = values.get(key)
        if value is not None and not isinstance(value, str) and abs(value) < 2**63:
            return int(value)
    return None


def _seconds(values: Values, keys: tuple[str, ...]) -> float | None:
    """Return the first of the attributes that is a duration; servers report 0 for an unknown one."""
    for key in keys:
        value = values.get(key)
        if isinstance(value, int | float) and 0 < value < float("inf"):
            return float(value)
    return None


def _text(values: Values, keys: tuple[str, ...]) -> str:
    return next((str(values[key])[:MAX_REQUEST_ID] for key in keys if values.get(key)), "")


def _role(name: str) -> Role | None:
    """Return the role in the name of SGLang's spans of a disaggregated server: `prefill Req ID`."""
    return next((role for role in _ROLES if name.startswith(f"{role} Req ")), None)

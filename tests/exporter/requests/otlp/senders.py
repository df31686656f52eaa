"""Spans as servers and gateways emit them, sent by the OpenTelemetry SDK."""

from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

T0 = 1_700_000_000.0
NS = 1_000_000_000

VLLM = {  # vllm 0.33.0, OutputProcessor.do_tracing
    "gen_ai.latency.time_to_first_token": 0.25,
    "gen_ai.latency.e2e": 2.0,
    "gen_ai.latency.time_in_queue": 0.05,
    "gen_ai.usage.prompt_tokens": 1200,
    "gen_ai.usage.completion_tokens": 80,
    "gen_ai.latency.time_in_model_prefill": 0.2,
    "gen_ai.latency.time_in_model_decode": 1.75,
    "gen_ai.latency.time_in_model_inference": 1.95,
    "gen_ai.request.id": "chatcmpl-7",
    "gen_ai.request.top_p": 0.9,
    "gen_ai.request.max_tokens": 80,
    "gen_ai.request.temperature": 0.7,
    "gen_ai.request.n": 1,
}
SGLANG = {  # sglang 0.5.23, TokenizerManager.convert_to_span_attrs and convert_to_gen_ai_span_attrs
    "rid": "5e0c",
    "module": "sglang::request",
    "gen_ai.usage.completion_tokens": 80,
    "gen_ai.usage.prompt_tokens": 1200,
    "gen_ai.usage.cached_tokens": 1024,
    "gen_ai.request.id": "5e0c",
    "gen_ai.response.model": "qwen",
    "gen_ai.response.finish_reasons": '["stop"]',
    "gen_ai.latency.time_to_first_token": 0.25,
    "gen_ai.latency.e2e": 2.0,
}
LITELLM = {  # litellm 1.106.2, span litellm_request, as captured
    "metadata.user_api_key_hash": "88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b",
    "metadata.user_api_key_team_alias": "blue",
    "metadata.user_api_key_end_user_id": "",
    "gen_ai.request.model": "m1",
    "llm.request.type": "acompletion",
    "gen_ai.system": "openai",
    "llm.is_streaming": "True",
    "llm.user": "alice",
    "gen_ai.response.id": "chatcmpl-7",
    "gen_ai.response.model": "m1",
    "gen_ai.usage.total_tokens": 1280,
    "gen_ai.usage.output_tokens": 80,
    "gen_ai.usage.input_tokens": 1200,
    "gen_ai.operation.name": "acompletion",
    "gen_ai.response.finish_reasons": '["stop"]',
}
LITELLM_V2 = {  # litellm 1.106.2 with LITELLM_OTEL_V2, span `chat m1` of its proxy
    "litellm.api_key.hash": "88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b",
    "litellm.team.alias": "blue",
    "litellm.metadata.user_api_key_user_id": "default_user_id",
    "litellm.metadata.user_api_key_end_user_id": "alice",
    "litellm.metadata.user_api_key_alias": "key-1",
    "litellm.request.route": "/v1/chat/completions",
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "m1",
    "gen_ai.response.id": "chatcmpl-7",
    "gen_ai.usage.input_tokens": 1200,
    "gen_ai.usage.output_tokens": 80,
}
SEMCONV = {  # GenAI conventions 1.38 and later; LiteLLM's gen_ai_latest_experimental
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "m1",
    "gen_ai.response.id": "chatcmpl-7",
    "gen_ai.usage.input_tokens": 1200,
    "gen_ai.usage.output_tokens": 80,
    "gen_ai.usage.cache_read.input_tokens": 1024,
    "gen_ai.response.time_to_first_chunk": 0.25,
}


@contextmanager
def provider(exporter, resource=None):
    """Yield a tracer provider that sends to `exporter` at its end."""
    traces = TracerProvider(resource=Resource(resource or {}))
    traces.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=60_000))
    try:
        yield traces.get_tracer("test")
    finally:
        traces.shutdown()


def http_exporter(url, *, compression=Compression.Gzip):
    return OTLPSpanExporter(endpoint=f"{url}/v1/traces", compression=compression, timeout=20)


def emit(tracer, name, attributes, *, parent=None, start=T0, seconds=2.0, kind=SpanKind.SERVER):
    """Emit a span of `seconds` from the Unix time `start`, below the span `parent`, and return
    it.
    """
    context = trace.set_span_in_context(parent) if parent else None
    span = tracer.start_span(name, context=context, kind=kind, start_time=int(start * NS))
    span.set_attributes(attributes)
    span.end(end_time=int((start + seconds) * NS))
    return span


def encoded(emit_spans, resource=None):
    """Return the body with the spans that `emit_spans(tracer)` emits, by the SDK's own encoder."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    memory = InMemorySpanExporter()
    with provider(memory, resource) as tracer:
        emit_spans(tracer)
    return encode_spans(memory.get_finished_spans()).SerializeToString()

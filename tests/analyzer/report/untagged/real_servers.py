"""LLM servers with known work per second: 100 generated and 300 prompt tokens, 2 requests.

Of the latencies half are up to 0.1 s, 80 % up to 0.4 s and all up to 1 s.
"""

from __future__ import annotations

from tests.analyzer.node import START_S

GENERATED_PER_S, PROMPT_PER_S, REQUESTS_PER_S = 100.0, 300.0, 2.0
_SHARES = (("0.1", 0.5), ("0.4", 0.8), ("1.0", 1.0), ("+Inf", 1.0))
_BEGUN_S = START_S - 50_000


def histogram(name, labels, count, shares=_SHARES, mean=0.25):
    for limit, share in shares:
        yield f"{name}_bucket", {**labels, "le": limit}, share * count
    yield f"{name}_sum", labels, mean * count
    yield f"{name}_count", labels, count


def _age(t, begun_s):
    return max(t - begun_s, 0.0)


def vllm(t, *, v1=True, begun_s=_BEGUN_S, speed=1.0, shares=_SHARES, engines=1):
    age_s = speed * _age(t, begun_s)
    for engine in range(engines):
        own = {"model_name": "llama", **({"engine": str(engine)} if v1 else {})}
        yield "vllm:generation_tokens_total", own, GENERATED_PER_S * age_s / engines
        yield "vllm:prompt_tokens_total", own, PROMPT_PER_S * age_s / engines
        for reason, share in (("stop", 0.75), ("length", 0.25)):
            yield (
                "vllm:request_success_total",
                {**own, "finished_reason": reason},
                share * REQUESTS_PER_S * age_s / engines,
            )
        requests, tokens = REQUESTS_PER_S * age_s / engines, GENERATED_PER_S * age_s / engines
        yield from histogram("vllm:time_to_first_token_seconds", own, requests, shares)
        yield from histogram("vllm:e2e_request_latency_seconds", own, requests, shares)
        if v1:
            yield from histogram(
                "vllm:request_time_per_output_token_seconds", own, requests, shares
            )
        between = "vllm:inter_token_latency_seconds" if v1 else "vllm:time_per_output_token_seconds"
        yield from histogram(between, own, tokens, shares)


def sglang(t):
    own, age_s = {"model_name": "llama"}, _age(t, _BEGUN_S)
    yield "sglang:generation_tokens_total", own, GENERATED_PER_S * age_s
    yield "sglang:prompt_tokens_total", own, PROMPT_PER_S * age_s
    yield "sglang:num_requests_total", own, REQUESTS_PER_S * age_s
    yield from histogram("sglang:time_to_first_token_seconds", own, REQUESTS_PER_S * age_s)
    yield from histogram("sglang:inter_token_latency_seconds", own, GENERATED_PER_S * age_s)


def tgi(t):
    age_s = _age(t, _BEGUN_S)
    count = REQUESTS_PER_S * age_s
    yield "tgi_request_success", {}, count
    yield from histogram(
        "tgi_request_generated_tokens", {}, count, mean=GENERATED_PER_S / REQUESTS_PER_S
    )
    yield from histogram("tgi_request_input_length", {}, count, mean=PROMPT_PER_S / REQUESTS_PER_S)
    yield from histogram("tgi_request_duration", {}, count)


def llama_cpp(t, *, cached=0.75):
    """Return the metrics page; `cached` is the share of prompt tokens from the cache."""
    age_s = _age(t, _BEGUN_S)
    yield "llamacpp:tokens_predicted_total", {}, GENERATED_PER_S * age_s
    yield "llamacpp:prompt_tokens_total", {}, (1 - cached) * PROMPT_PER_S * age_s
    yield "llamacpp:prompt_tokens_cached_total", {}, cached * PROMPT_PER_S * age_s


def tensorrt_llm(t):
    own, age_s = {"model_name": "llama", "engine_type": "undefined"}, _age(t, _BEGUN_S)
    yield "trtllm_generation_tokens_total", own, GENERATED_PER_S * age_s
    yield "trtllm_prompt_tokens_total", own, PROMPT_PER_S * age_s
    yield "trtllm_request_success_total", {**own, "finished_reason": "stop"}, REQUESTS_PER_S * age_s
    yield from histogram("trtllm_time_to_first_token_seconds", own, REQUESTS_PER_S * age_s)
    yield from histogram("trtllm_time_per_output_token_seconds", own, REQUESTS_PER_S * age_s)

"""What servers of language models call the tokens, requests and latencies that they count. Pure.

Of several names for the same thing the first that a server shows counts. What a server does not tell is not here:
llama.cpp has no histograms and counts no requests, TGI has no time to first token, and Triton's own metrics count
requests by model, an ensemble's several times, and no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GENERATED, PROMPT, REQUESTS = "generated_tokens", "prompt_tokens", "requests"
PERCENTILES = (50, 90, 95, 99)

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenServer:
    """`counters` by unit of work, `histograms` by what they are of: `ttft`, `tpot` (a request's mean), `itl`, `e2e`."""

    name: str
    counters: Mapping[str, Names]
    histograms: Mapping[str, Names]
    left_out: Mapping[str, Names] = field(default_factory=dict)
    """By unit, what the server counts apart from `counters` and others count in it: it is added."""


# https://docs.vllm.ai/en/latest/design/metrics/, and vllm/engine/metrics.py of v0, where the time between tokens was
# called time per output token
VLLM = TokenServer(
    "vllm",
    {
        GENERATED: ("vllm:generation_tokens_total",),
        PROMPT: ("vllm:prompt_tokens_total",),
        REQUESTS: ("vllm:request_success_total",),
    },
    {
        "ttft": ("vllm:time_to_first_token_seconds",),
        "tpot": ("vllm:request_time_per_output_token_seconds",),
        "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "e2e": ("vllm:e2e_request_latency_seconds",),
    },
)

# https://docs.sglang.io/references/production_metrics.html (--enable-metrics); the second name of itl is that of 2024
SGLANG = TokenServer(
    "sglang",
    {
        GENERATED: ("sglang:generation_tokens_total",),
        PROMPT: ("sglang:prompt_tokens_total",),
        REQUESTS: ("sglang:num_requests_total",),
    },
    {
        "ttft": ("sglang:time_to_first_token_seconds",),
        "itl": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "e2e": ("sglang:e2e_request_latency_seconds",),
    },
)

# https://huggingface.co/docs/text-generation-inference/reference/metrics: tokens are the sums of histograms by request
TGI = TokenServer(
    "tgi",
    {
        GENERATED: ("tgi_request_generated_tokens_sum", "tgi_request_generated_tokens_total"),
        PROMPT: ("tgi_request_input_length_sum",),
        REQUESTS: ("tgi_request_success", "tgi_request_success_total"),
    },
    {"tpot": ("tgi_request_mean_time_per_token_duration",), "e2e": ("tgi_request_duration",)},
)

# https://github.com/ggml-org/llama.cpp, tools/server/README.md (--metrics). A prompt's tokens that are in its cache are
# prompt tokens everywhere else; here they have a counter of their own, which older versions lack.
LLAMA_CPP = TokenServer(
    "llama.cpp",
    {GENERATED: ("llamacpp:tokens_predicted_total",), PROMPT: ("llamacpp:prompt_tokens_total",)},
    {},
    {PROMPT: ("llamacpp:prompt_tokens_cached_total",)},
)

# https://github.com/NVIDIA/TensorRT-LLM, tensorrt_llm/metrics/collector.py (/prometheus/metrics of trtllm-serve): token
# counters since 2026; Dynamo writes trtllm: for trtllm_
TENSORRT_LLM = TokenServer(
    "tensorrt-llm",
    {
        GENERATED: ("trtllm_generation_tokens_total", "trtllm:generation_tokens_total"),
        PROMPT: ("trtllm_prompt_tokens_total", "trtllm:prompt_tokens_total"),
        REQUESTS: ("trtllm_request_success_total", "trtllm:request_success_total"),
    },
    {
        "ttft": ("trtllm_time_to_first_token_seconds", "trtllm:time_to_first_token_seconds"),
        "tpot": ("trtllm_time_per_output_token_seconds", "trtllm:time_per_output_token_seconds"),
        "e2e": ("trtllm_e2e_request_latency_seconds", "trtllm:e2e_request_latency_seconds"),
    },
)

TOKEN_SERVERS: Mapping[str, TokenServer] = {
    server.name: server for server in (VLLM, SGLANG, TGI, LLAMA_CPP, TENSORRT_LLM)
}

"""Metric names of LLM servers for tokens, requests and latencies.

Of several names the first one that a server exports is used. Not exported: by llama.cpp histograms and requests, by TGI
the time to first token. Triton counts no tokens, and the requests of an ensemble several times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GENERATED, PROMPT, REQUESTS = "generated_tokens", "prompt_tokens", "requests"
PERCENTILES = (50, 90, 95, 99)

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenServer:
    """LLM server with `counters` by unit of work and `histograms` by latency: `ttft`, `tpot`, `itl`, `e2e`."""

    name: str
    counters: Mapping[str, Names]
    histograms: Mapping[str, Names]
    left_out: Mapping[str, Names] = field(default_factory=dict)
    """Counters by unit that this server separates from `counters`; they are added."""


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

# https://docs.sglang.io/references/production_metrics.html (--enable-metrics); the second name of itl is from 2024
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

# https://github.com/ggml-org/llama.cpp, tools/server/README.md (--metrics). Cached tokens of a prompt are
# prompt tokens for other servers; here they have a separate counter, which older versions lack.
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

"""Work of LLM servers in a time range, by their counters: tokens, requests, latencies.

Of several metric names the first one that a server exports is used. Not exported: by llama.cpp
histograms and requests, by TGI the time to first token. Triton counts no tokens, and the requests
of an ensemble several times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wattline.contract.metrics import Metric
from wattline.figures import Figure, sum_of_correlated
from wattline_analyzer.core.device_counters import Increase, by_limit, increase, percentile
from wattline_analyzer.core.run_report import Finding
from wattline_analyzer.core.sample_table import SampleTable, join_tables
from wattline_analyzer.core.samples import Samples, clean
from wattline_analyzer.core.sources.base import FetchError, SampleSource
from wattline_analyzer.report.untagged.request import RangeRequest

GENERATED = "generated_tokens"
PROMPT = "prompt_tokens"
REQUESTS = "requests"
PERCENTILES = (50, 90, 95, 99)
Names = tuple[str, ...]
MARGIN_S = 300.0
"""Time before and after the range for which samples are fetched, to include a scrape on either
side.
"""


@dataclass(frozen=True, slots=True)
class TokenServer:
    """LLM server with `counters` by unit of work and `histograms` by latency: `ttft`, `tpot`,
    `itl`, `e2e`.
    """

    name: str
    counters: Mapping[str, Names]
    histograms: Mapping[str, Names]
    left_out: Mapping[str, Names] = field(default_factory=dict)
    """Counters by unit that this server separates from `counters`; they are added."""


# https://docs.vllm.ai/en/latest/design/metrics/, and vllm/engine/metrics.py of v0, where the time
# between tokens was called time per output token
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

# https://docs.sglang.io/references/production_metrics.html (--enable-metrics); the second name of
# itl is from 2024
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

# https://huggingface.co/docs/text-generation-inference/reference/metrics: tokens are the sums of
# histograms by request
TGI = TokenServer(
    "tgi",
    {
        GENERATED: ("tgi_request_generated_tokens_sum", "tgi_request_generated_tokens_total"),
        PROMPT: ("tgi_request_input_length_sum",),
        REQUESTS: ("tgi_request_success", "tgi_request_success_total"),
    },
    {"tpot": ("tgi_request_mean_time_per_token_duration",), "e2e": ("tgi_request_duration",)},
)

# https://github.com/ggml-org/llama.cpp, tools/server/README.md (--metrics). Cached tokens of a
# prompt are prompt tokens for other servers; here they have a separate counter, which older
# versions lack.
LLAMA_CPP = TokenServer(
    "llama.cpp",
    {GENERATED: ("llamacpp:tokens_predicted_total",), PROMPT: ("llamacpp:prompt_tokens_total",)},
    {},
    {PROMPT: ("llamacpp:prompt_tokens_cached_total",)},
)

# https://github.com/NVIDIA/TensorRT-LLM, tensorrt_llm/metrics/collector.py (/prometheus/metrics of
# trtllm-serve): token counters since 2026; Dynamo writes trtllm: for trtllm_
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


@dataclass(frozen=True, slots=True)
class ServerWork:
    """Work by unit with its bounds (`limits`), and results by name, which includes the unit."""

    work: Mapping[str, float]
    results: Mapping[str, float]
    findings: tuple[Finding, ...]
    limits: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True, eq=False)
class _Counter:
    labels: Mapping[str, str]
    samples: Samples


_ByName = defaultdict[str, list[tuple[_Counter, Increase]]]


@dataclass(frozen=True, slots=True)
class _Range:
    source: SampleSource
    matching: Mapping[str, str]
    start_s: float
    end_s: float

    def tracks(self, names: Sequence[str], begin_s: float, until_s: float) -> list[_Counter]:
        metrics = [Metric(name, "counter", (), "") for name in names]
        return (
            list(_tracks(self.source.fetch(metrics, self.matching, begin_s, until_s)))
            if metrics
            else []
        )

    def rise(self, track: _Counter) -> Increase | None:
        return increase(track.samples, self.start_s, self.end_s)


def fetch_server_work(
    source: SampleSource, server: TokenServer, wanted: RangeRequest
) -> ServerWork:
    """Return the servers' work. Raises FetchError if their counters are missing."""
    request = _Range(source, wanted.tokens_matching, wanted.start_s, wanted.end_s)
    names = [
        name
        for kind in (server.counters, server.left_out)
        for names in kind.values()
        for name in names
    ]
    tracks = request.tracks(names, wanted.start_s - MARGIN_S, wanted.end_s + MARGIN_S)
    by_name: _ByName = defaultdict(list)
    for track in tracks:
        if rise := request.rise(track):
            by_name[track.labels["metric"]].append((track, rise))
    chosen = {unit: _first(names, by_name) for unit, names in server.counters.items()}
    if not chosen[GENERATED]:
        labels = " with the labels of --tokens-matching" if wanted.tokens_matching else ""
        raise FetchError(
            f"no {' or '.join(server.counters[GENERATED])} at {source.name} "
            f"{wanted.window}{labels}",
            f"check that {server.name} is scraped by this source; see --tokens",
        )
    for unit, more in server.left_out.items():
        chosen[unit] += _first(more, by_name)
    amounts = {
        unit: sum_of_correlated(rise.bound for _, rise in parts)
        for unit, parts in chosen.items()
        if parts
    }
    every = [rise for parts in chosen.values() for _, rise in parts]
    steady = not any(rise.restarts or rise.partial for rise in every)
    results, hidden = _latencies(request, server, steady=steady)
    work = {
        unit: float(round(bound.number))
        for unit, bound in amounts.items()
        if round(bound.number) > 0
    }
    limits = {unit: bound.limits for unit, bound in amounts.items()}
    return ServerWork(
        work, results, tuple(_findings(server, amounts, chosen[GENERATED], hidden)), limits
    )


def _first(names: Sequence[str], by_name: _ByName) -> list[tuple[_Counter, Increase]]:
    """Return each server's counters of the first name that it exports: names differ between
    versions.
    """
    found: list[tuple[_Counter, Increase]] = []
    for name in names:
        known = {track.labels.get("instance", "") for track, _ in found}
        found += [
            one for one in by_name.get(name, []) if one[0].labels.get("instance", "") not in known
        ]
    return found


def _tracks(table: SampleTable) -> Iterator[_Counter]:
    for texts, rows in table.groups(*table.labels):
        labels = {name: text for name, text in zip(table.labels, texts, strict=True) if text}
        yield _Counter(labels, clean(rows.t, rows.value))


def _latencies(
    request: _Range, server: TokenServer, *, steady: bool
) -> tuple[dict[str, float], list[str]]:
    """Return means and percentiles, and the names of percentiles above a histogram's last bound.

    Histograms have many series: if no server started or stopped, only samples at both edges are
    fetched.
    """
    spans = [(request.start_s - MARGIN_S, request.end_s + MARGIN_S)]
    if steady and request.end_s - request.start_s > 4 * MARGIN_S:
        spans = [
            (edge_s - MARGIN_S, edge_s + MARGIN_S) for edge_s in (request.start_s, request.end_s)
        ]
    results: dict[str, float] = {}
    hidden: list[str] = []
    for what, names in server.histograms.items():
        parts = [f"{name}_{part}" for name in names for part in ("bucket", "sum", "count")]
        by_name: _ByName = defaultdict(list)
        for track in _tracks(join_tables(_fetched(request, parts, *span) for span in spans)):
            if rise := request.rise(track):
                by_name[track.labels["metric"]].append((track, rise))
        found, above = _statistics(what, names, by_name)
        results |= found
        hidden += above
    return results, hidden


def _fetched(request: _Range, names: Sequence[str], begin_s: float, until_s: float) -> SampleTable:
    metrics = [Metric(name, "counter", (), "") for name in names]
    return request.source.fetch(metrics, request.matching, begin_s, until_s)


def _statistics(what: str, names: Names, by_name: _ByName) -> tuple[dict[str, float], list[str]]:
    rises = {
        part: _first([f"{name}_{part}" for name in names], by_name)
        for part in ("bucket", "sum", "count")
    }
    buckets = by_limit(
        (track.labels.get("le", ""), rise.bound.number) for track, rise in rises["bucket"]
    )
    if not buckets or max(buckets.values()) <= 0:
        return {}, []
    sums, counts = (sum(rise.bound.number for _, rise in rises[part]) for part in ("sum", "count"))
    found = {f"{what}_seconds_mean": sums / counts} if counts > 0 else {}
    hidden = []
    for percent in PERCENTILES:
        value = percentile(buckets, percent)
        if value is None:
            hidden.append(f"{what} p{percent}")
        else:
            found[f"{what}_seconds_p{percent}"] = value
    return found, hidden


def _findings(
    server: TokenServer,
    amounts: Mapping[str, Figure],
    generated: Sequence[tuple[_Counter, Increase]],
    hidden: Sequence[str],
) -> Iterator[Finding]:
    who = sorted(
        {
            track.labels.get("instance", "") or track.labels.get("model_name", "?")
            for track, _ in generated
        }
    )
    named = (
        f"{len(who)} server{'s' if len(who) > 1 else ''} "
        f"({', '.join(who[:4])}{' …' if len(who) > 4 else ''})"
    )
    if round(amounts[GENERATED].number) <= 0:
        text = (
            f"{server.name} at {named} counted no generated token in the range: no energy per token"
        )
        yield Finding("warning", "no_tokens", "", text)
    parts = [
        f"{unit.replace('_', ' ')} {bound.value:,.0f} ({bound.low:,.0f} to {bound.high:,.0f})"
        for unit, bound in amounts.items()
    ]
    text = (
        f"work by the counters of {server.name} at {named}: {', '.join(parts)}; interpolated "
        "between the scrapes at "
        "the edges, which bound it. The energy per unit assumes that all of these servers run on "
        "these devices"
    )
    yield Finding("note", "token_counters", "", text)
    restarts = sum(rise.restarts for _, rise in generated)
    if restarts or any(rise.partial for _, rise in generated):
        text = (
            f"servers started or stopped, {restarts} restarted: their work between the last scrape "
            "and the stop is "
            "included only in the upper bound"
        )
        yield Finding("note", "server_restarts", "", text)
    if server.histograms and round(amounts[GENERATED].number) > 0:
        text = (
            "latencies are interpolated in the servers' histograms, with the resolution of the "
            "buckets"
        )
        if hidden:
            text += f"; unknown, above the last common bucket: {', '.join(hidden)}"
        yield Finding("note", "latency_buckets", "", text)

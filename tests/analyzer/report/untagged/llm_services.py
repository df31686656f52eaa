"""Samples of LLM servers by test case, which is a label."""

from tests.analyzer.node import START_S, NodeGpu, scrape_times
from tests.analyzer.report.untagged import foreign_exporters as foreign
from tests.analyzer.report.untagged import real_servers
from tests.analyzer.report.untagged.foreign_exporters import (
    SCRAPES,
    Exporter,
    prometheus_text_of_scrapes,
)

GPU_CASE = "gpu-of-the-services"
STEADY = NodeGpu([(START_S - 100_000, 300.0)], limit_w=700.0)
LATER = [t for t in SCRAPES if t > START_S + 300]
LONG = scrape_times(15, START_S - 296, START_S + 3_900)
RESTART_S = START_S + 301

SERVERS: dict[str, list[tuple[Exporter, str, list[float]]]] = {
    "vllm": [(real_servers.vllm, "a:8000", SCRAPES)],
    "vllm-v0": [(lambda t: real_servers.vllm(t, v1=False), "a:8000", SCRAPES)],
    "vllm-data-parallel": [(lambda t: real_servers.vllm(t, engines=2), "a:8000", SCRAPES)],
    "replicas": [
        (real_servers.vllm, "a:8000", SCRAPES),
        (lambda t: real_servers.vllm(t, speed=0.5), "b:8000", SCRAPES),
    ],
    "restarted": [
        (
            lambda t: real_servers.vllm(
                t, begun_s=RESTART_S if t >= RESTART_S else START_S - 50_000
            ),
            "a:8000",
            SCRAPES,
        )
    ],
    "upgrading": [
        (real_servers.vllm, "a:8000", SCRAPES),
        (
            lambda t: real_servers.vllm(
                t, v1=False, shares=(("0.1", 1.0), ("0.4", 1.0), ("1.0", 1.0), ("+Inf", 1.0))
            ),
            "b:8000",
            SCRAPES,
        ),
    ],
    "came-later": [(real_servers.vllm, "a:8000", SCRAPES), (real_servers.vllm, "b:8000", LATER)],
    "idle": [(lambda t: real_servers.vllm(t, speed=0.0), "a:8000", SCRAPES)],
    "slow": [
        (
            lambda t: real_servers.vllm(t, shares=(("0.1", 0.5), ("0.4", 0.8), ("+Inf", 1.0))),
            "a:8000",
            SCRAPES,
        )
    ],
    "an-hour": [(real_servers.vllm, "a:8000", LONG)],
    "sglang": [(real_servers.sglang, "a:30000", SCRAPES)],
    "tgi": [(real_servers.tgi, "a:8080", SCRAPES)],
    "llama.cpp": [(real_servers.llama_cpp, "a:8080", SCRAPES)],
    "tensorrt-llm": [(real_servers.tensorrt_llm, "a:8000", SCRAPES)],
}


def lines():
    """Return all cases as OpenMetrics; the GPU's samples last as long as the longest service."""
    yield from prometheus_text_of_scrapes(
        lambda t: foreign.dcgm(t, STEADY), "gpu01:9400", LONG, case=GPU_CASE
    )
    for case, replicas in SERVERS.items():
        for server, instance, times in replicas:
            yield from prometheus_text_of_scrapes(server, instance, times, service=case)

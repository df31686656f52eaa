"""Metric names of LLM servers, compared with the metrics pages of real servers."""

from pathlib import Path

import pytest

from wattline_analyzer.report.untagged.tokens import LLAMA_CPP, VLLM

PAGES = Path(__file__).parent / "pages"


def types(page):
    lines = (PAGES / page).read_text().splitlines()
    return {name: kind for _, _, name, kind in (line.split() for line in lines)}


@pytest.mark.parametrize(
    ("server", "page"), [(VLLM, "vllm-0.32.txt"), (LLAMA_CPP, "llama.cpp-0.7.txt")]
)
def test_real_server_exports_names_of_token_servers(server, page):
    shown = types(page)

    for kind, asked in (
        ("counter", server.counters),
        ("counter", server.left_out),
        ("histogram", server.histograms),
    ):
        for what, names in asked.items():
            assert [shown[name] for name in names if name in shown] == [kind], what


def test_llama_cpp_has_no_histograms_and_no_request_count():
    shown = types("llama.cpp-0.7.txt")

    assert set(shown.values()) == {"counter", "gauge"}
    assert not [name for name, kind in shown.items() if kind == "counter" and "request" in name]

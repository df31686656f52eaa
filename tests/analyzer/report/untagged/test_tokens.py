"""Joules per token of a service without runs, by the counters of its LLM servers."""

import json
from functools import partial

import pytest

from tests.analyzer.node import START_S
from tests.analyzer.report.untagged.llm_services import GPU_CASE
from tests.analyzer.report.untagged.range_reports import load_range_report
from tests.analyzer.run_reports import finding_codes, finding_texts
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.report.untagged.request import RangeRequest

END_S = START_S + 600


def report_at(address, service, tokens="vllm", end_s=END_S, **labels):
    chosen = {"matching": {"case": GPU_CASE}, "tokens_matching": {"service": service, **labels}}
    return load_range_report(address, RangeRequest(START_S, end_s, tokens=tokens, **chosen))


@pytest.fixture
def report_of(prometheus):
    return partial(report_at, prometheus)


def amounts(report):
    return {work.unit: pytest.approx(work.amount, rel=1e-4) for work in report.work}


def joules_per(report, unit):
    return next(work.energy_per_unit for work in report.work if work.unit == unit)


@pytest.mark.parametrize(
    ("service", "tokens", "units"),
    [
        ("vllm", "vllm", 3),
        ("vllm-v0", "vllm", 3),
        ("vllm-data-parallel", "vllm", 3),
        ("sglang", "sglang", 3),
        ("tgi", "tgi", 3),
        ("llama.cpp", "llama.cpp", 2),
        ("tensorrt-llm", "tensorrt-llm", 3),
    ],
)
@pytest.mark.parametrize("server", ["prometheus", "victoria_metrics"])
def test_300_w_at_100_tokens_per_s_are_3_joules_per_token(server, service, tokens, units, request):
    """In 600 s: 180,000 J, 60,000 generated tokens, 180,000 prompt tokens (1 J each), 1,200
    requests (150 J each).
    """
    report = report_at(request.getfixturevalue(server), service, tokens)

    expected = {"generated_tokens": 60_000, "prompt_tokens": 180_000, "requests": 1_200}
    assert amounts(report) == {unit: expected[unit] for unit in list(expected)[:units]}
    generated = joules_per(report, "generated_tokens")
    assert abs(generated.value - 3) <= generated.half_width < 0.5
    assert joules_per(report, "prompt_tokens").value == pytest.approx(generated.value / 3, rel=1e-4)
    assert next(
        work.per_second for work in report.work if work.unit == "generated_tokens"
    ) == pytest.approx(100, rel=1e-4)


def test_percentiles_are_of_histogram_increase(report_of):
    """Linear in buckets up to 0.1 s, 0.4 s and 1 s with 50, 30 and 20 %."""
    results = report_of("vllm").results

    for what in ("ttft", "tpot", "itl", "e2e"):
        assert results[f"{what}_seconds_p50"] == pytest.approx(0.1)
        assert results[f"{what}_seconds_p90"] == pytest.approx(0.7)
        assert results[f"{what}_seconds_p99"] == pytest.approx(0.97)
        assert results[f"{what}_seconds_mean"] == pytest.approx(0.25)


def test_replicas_of_two_versions_use_their_own_names(report_of):
    """Half of one server's tokens and all of the other's came within 0.1 s: 75 % of both; the
    median is 2/3 of it.
    """
    report = report_of("upgrading")

    assert amounts(report)["generated_tokens"] == 120_000
    assert report.results["itl_seconds_p50"] == pytest.approx(0.1 * 0.5 / 0.75, rel=1e-3)


def test_energy_per_token_interval_combines_both_intervals(report_of):
    """Scrapes at either edge are up to 15 s apart: 58,500 to 61,500 of 60,000 tokens, so 1,500 /
    58,500 more.
    """
    report = report_of("vllm")

    energy, generated = report.energy["gpu"], joules_per(report, "generated_tokens")
    expected = energy.half_width / 60_000 + energy.value / 60_000 * 1_500 / 58_500
    assert generated.half_width == pytest.approx(expected, rel=1e-2)
    (boundary,) = report.boundaries
    by_unit = {work.unit: work.energy_per_unit.half_width for work in boundary.work}
    assert by_unit["generated_tokens"] == generated.half_width
    assert by_unit["total_tokens"] == pytest.approx(
        generated.half_width / 4, rel=1e-2
    )  # of three prompt tokens for each


def test_energy_of_part_of_range_gives_no_energy_per_token(report_of):
    """The GPU's samples end 15 minutes before the range."""
    report = report_of("an-hour", end_s=START_S + 4_800)

    assert [work.energy_per_unit for work in report.work] == [None, None, None]
    assert [boundary.work for boundary in report.boundaries] == [()]
    assert "there is no energy per unit" in finding_texts(report, "units_uncovered")[0][1]


def test_work_not_exported_is_absent(report_of):
    v0, tgi, llama = (
        report_of("vllm-v0"),
        report_of("tgi", "tgi"),
        report_of("llama.cpp", "llama.cpp"),
    )

    assert {name.partition("_")[0] for name in v0.results} == {"ttft", "itl", "e2e"}
    assert {name.partition("_")[0] for name in tgi.results} == {"e2e"}
    assert llama.results == {}


def test_replicas_add_up_and_labels_select_one(report_of):
    both, first = report_of("replicas"), report_of("replicas", instance="a:8000")

    assert amounts(both)["generated_tokens"] == 90_000
    assert amounts(first)["generated_tokens"] == 60_000
    assert "2 servers (a:8000, b:8000)" in finding_texts(both, "token_counters")[0][1]
    assert both.results["ttft_seconds_p90"] == pytest.approx(0.7)


def test_server_restart_adds_new_count_with_finding(report_of):
    """At most 15 s between the old process's last scrape and the new one's start are missing: 1,500
    tokens.
    """
    report = report_of("restarted")

    generated = next(work.amount for work in report.work if work.unit == "generated_tokens")
    assert 60_000 - 1_500 <= generated <= 60_000
    assert "server_restarts" in finding_codes(report)
    assert report.results["ttft_seconds_p90"] == pytest.approx(0.7)


def test_late_replica_counts_from_first_scrape(report_of):
    """The second one was first scraped 304 s into the range: 60,000 and 29,600."""
    report = report_of("came-later")

    assert amounts(report)["generated_tokens"] == 60_000 + 29_600
    assert "server_restarts" in finding_codes(report)


def test_no_tokens_are_a_finding_without_energy_per_token(report_of):
    report = report_of("idle")

    assert report.work == ()
    assert report.results == {}
    assert "no_tokens" in finding_codes(report)
    assert abs(report.energy["gpu"].value - 180_000) <= report.energy["gpu"].half_width


def test_percentile_above_last_bucket_is_unknown(report_of):
    report = report_of("slow")

    assert "ttft_seconds_p50" in report.results
    assert "ttft_seconds_p99" not in report.results
    assert "ttft p90, ttft p95, ttft p99" in finding_texts(report, "latency_buckets")[0][1]


def test_long_range_fetches_buckets_only_at_edges(report_of):
    report = report_of("an-hour", end_s=START_S + 3_600)

    assert amounts(report)["generated_tokens"] == 360_000
    assert report.results["ttft_seconds_p99"] == pytest.approx(0.97)
    assert report.results["ttft_seconds_mean"] == pytest.approx(0.25)


def test_missing_token_server_is_one_line(report_of):
    with pytest.raises(FetchError) as error:
        report_of("vllm", "sglang")

    assert "no sglang:generation_tokens_total" in str(error.value)
    assert "check that sglang is scraped by this source" in str(error.value)


def test_report_gives_joules_per_token_of_service(analyzer, prometheus):
    range_ = ["--start", int(START_S), "--end", int(END_S), "--matching", f'case="{GPU_CASE}"']
    range_ += ["--carbon", "100", "--embodied-kg", "1000", "--lifetime-years", "4"]
    service = ["--tokens", "vllm", "--tokens-matching", 'service="vllm"']

    completed = analyzer("report", "--source", prometheus, *range_, *service, "--format", "json")

    assert completed.returncode == 0, completed.stderr
    document = json.loads(completed.stdout)
    assert document["work"]["generated_tokens"]["energy_per_unit_joules"] == pytest.approx(
        3, rel=0.02
    )
    assert document["labels"] == {"schema": "dcgm-exporter", "tokens": "vllm"}
    (sci,) = document["software_carbon_intensity"]
    run, each = (
        sci["sci_uncertainty_grams_per_run"],
        sci["sci_uncertainty_grams_per_unit"]["generated_tokens"],
    )
    assert (
        each > 1.2 * run / document["work"]["generated_tokens"]["amount"]
    )  # the tokens between scrapes, too
    assert document["results"]["ttft_seconds_p50"] == pytest.approx(0.1)

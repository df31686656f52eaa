"""Joules per token of a service that nobody tagged: its GPUs' energy over its servers' own counters."""

import json
from functools import partial

import pytest

from analyzer.sources.error import SourceError
from analyzer.sources.untagged.request import Asked
from tests.analyzer.node import START_S
from tests.analyzer.ranges.reporting import reported
from tests.analyzer.ranges.services import GPU_CASE
from tests.analyzer.reported import codes, found

END_S = START_S + 600


def report_at(address, service, tokens="vllm", end_s=END_S, **labels):
    chosen = {"matching": {"case": GPU_CASE}, "tokens_matching": {"service": service, **labels}}
    return reported(address, Asked(START_S, end_s, tokens=tokens, **chosen))


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
def test_300_watts_at_100_tokens_a_second_are_3_joules_a_token(server, service, tokens, units, request):
    """In 600 s: 180,000 J, 60,000 generated tokens, 180,000 prompt tokens (1 J each), 1,200 requests (150 J each)."""
    report = report_at(request.getfixturevalue(server), service, tokens)

    expected = {"generated_tokens": 60_000, "prompt_tokens": 180_000, "requests": 1_200}
    assert amounts(report) == {unit: expected[unit] for unit in list(expected)[:units]}
    generated = joules_per(report, "generated_tokens")
    assert abs(generated.value - 3) <= generated.half < 0.5
    assert joules_per(report, "prompt_tokens").value == pytest.approx(generated.value / 3, rel=1e-4)
    assert next(work.per_second for work in report.work if work.unit == "generated_tokens") == pytest.approx(
        100, rel=1e-4
    )


def test_percentiles_are_those_of_the_histograms_increase(report_of):
    """Linear from 0 to 0.1 s, to 0.4 s and to 1 s, in which lie 50, 30 and 20 %."""
    results = report_of("vllm").results

    for what in ("ttft", "tpot", "itl", "e2e"):
        assert results[f"{what}_seconds_p50"] == pytest.approx(0.1)
        assert results[f"{what}_seconds_p90"] == pytest.approx(0.7)
        assert results[f"{what}_seconds_p99"] == pytest.approx(0.97)
        assert results[f"{what}_seconds_mean"] == pytest.approx(0.25)


def test_replicas_of_two_versions_count_each_under_its_own_name(report_of):
    """Half of the tokens of one came within 0.1 s, and all of the other's: of both 75 %, so the median is 2/3 of it."""
    report = report_of("upgrading")

    assert amounts(report)["generated_tokens"] == 120_000
    assert report.results["itl_seconds_p50"] == pytest.approx(0.1 * 0.5 / 0.75, rel=1e-3)


def test_the_interval_of_a_token_has_that_of_the_energy_and_that_of_the_tokens(report_of):
    """The scrapes at either edge lie up to 15 s apart: 58,500 to 61,500 tokens of 60,000, so 1,500 / 58,500 more."""
    report = report_of("vllm")

    energy, generated = report.energy["gpu"], joules_per(report, "generated_tokens")
    expected = energy.half / 60_000 + energy.value / 60_000 * 1_500 / 58_500
    assert generated.half == pytest.approx(expected, rel=1e-2)
    (boundary,) = report.boundaries
    by_unit = {one.unit: one.energy_per_unit.half for one in boundary.work}
    assert by_unit["generated_tokens"] == generated.half
    assert by_unit["total_tokens"] == pytest.approx(generated.half / 4, rel=1e-2)  # of three prompt tokens for each


def test_energy_of_a_part_of_the_range_is_held_against_none_of_its_work(report_of):
    """The GPU's samples end 15 minutes before the range does."""
    report = report_of("an-hour", end_s=START_S + 4_800)

    assert [work.energy_per_unit for work in report.work] == [None, None, None]
    assert [boundary.work for boundary in report.boundaries] == [()]
    assert "no energy per unit is told" in found(report, "units_uncovered")[0][1]


def test_what_a_server_does_not_tell_is_absent(report_of):
    v0, tgi, llama = report_of("vllm-v0"), report_of("tgi", "tgi"), report_of("llama.cpp", "llama.cpp")

    assert {name.partition("_")[0] for name in v0.results} == {"ttft", "itl", "e2e"}
    assert {name.partition("_")[0] for name in tgi.results} == {"e2e"}
    assert llama.results == {}


def test_replicas_add_up_and_labels_choose_one_of_them(report_of):
    both, first = report_of("replicas"), report_of("replicas", instance="a:8000")

    assert amounts(both)["generated_tokens"] == 90_000
    assert amounts(first)["generated_tokens"] == 60_000
    assert "2 servers (a:8000, b:8000)" in found(both, "token_counters")[0][1]
    assert both.results["ttft_seconds_p90"] == pytest.approx(0.7)


def test_a_restart_adds_what_the_new_process_counted_and_says_so(report_of):
    """Between the last scrape of the old process and the new one's begin at most 15 s are not seen: 1,500 tokens."""
    report = report_of("restarted")

    generated = next(work.amount for work in report.work if work.unit == "generated_tokens")
    assert 60_000 - 1_500 <= generated <= 60_000
    assert "server_restarts" in codes(report)
    assert report.results["ttft_seconds_p90"] == pytest.approx(0.7)


def test_a_replica_that_came_later_counts_from_its_first_scrape(report_of):
    """The second one was first scraped 304 s into the range: 60,000 and 29,600."""
    report = report_of("came-later")

    assert amounts(report)["generated_tokens"] == 60_000 + 29_600
    assert "server_restarts" in codes(report)


def test_no_tokens_are_a_finding_and_no_division(report_of):
    report = report_of("idle")

    assert report.work == ()
    assert report.results == {}
    assert "no_tokens" in codes(report)
    assert abs(report.energy["gpu"].value - 180_000) <= report.energy["gpu"].half


def test_a_percentile_above_the_last_limit_is_not_known(report_of):
    report = report_of("slow")

    assert "ttft_seconds_p50" in report.results
    assert "ttft_seconds_p99" not in report.results
    assert "ttft p90, ttft p95, ttft p99" in found(report, "latency_buckets")[0][1]


def test_of_a_long_range_the_buckets_of_both_edges_are_enough(report_of):
    report = report_of("an-hour", end_s=START_S + 3_600)

    assert amounts(report)["generated_tokens"] == 360_000
    assert report.results["ttft_seconds_p99"] == pytest.approx(0.97)
    assert report.results["ttft_seconds_mean"] == pytest.approx(0.25)


def test_a_server_that_is_not_there_is_one_line(report_of):
    with pytest.raises(SourceError) as error:
        report_of("vllm", "sglang")

    assert "no sglang:generation_tokens_total" in str(error.value)
    assert "is sglang scraped by this source?" in str(error.value)


def test_the_command_gives_joules_per_token_of_a_service(analyzer, prometheus):
    range_ = ["--start", int(START_S), "--end", int(END_S), "--matching", f'case="{GPU_CASE}"']
    range_ += ["--carbon", "100", "--embodied-kg", "1000", "--lifetime-years", "4"]
    service = ["--tokens", "vllm", "--tokens-matching", 'service="vllm"']

    done = analyzer("report", "--source", prometheus, *range_, *service, "--format", "json")

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["work"]["generated_tokens"]["energy_per_unit_joules"] == pytest.approx(3, rel=0.02)
    assert document["labels"] == {"schema": "dcgm-exporter", "tokens": "vllm"}
    (sci,) = document["software_carbon_intensity"]
    run, each = sci["sci_uncertainty_grams_per_run"], sci["sci_uncertainty_grams_per_unit"]["generated_tokens"]
    assert each > 1.2 * run / document["work"]["generated_tokens"]["amount"]  # the tokens between scrapes, too
    assert document["results"]["ttft_seconds_p50"] == pytest.approx(0.1)

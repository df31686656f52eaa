"""Times of a request, service level objectives, and results of a load."""

import argparse
from array import array

import pytest

from tests.workloads.jobs.llm_load.outcomes import failure, load_of, success
from wattline_workloads.jobs.llm_load import summary
from wattline_workloads.jobs.llm_load.stream import RequestOutcome, TokenUsage


def test_slo_is_met_if_each_limit_is_met():
    objective = summary.parse_slo("ttft=1,tpot=0.5,e2e=3")

    assert objective.is_met_by(success())
    assert not objective.is_met_by(success(first_s=1.01))
    assert not objective.is_met_by(success(ended_s=3.01))
    assert not objective.is_met_by(success(tokens=4))  # 0.67 s a token
    assert not objective.is_met_by(failure())


def test_slo_unmeasured_time_is_not_met():
    assert not summary.parse_slo("tpot=9").is_met_by(success(tokens=None))
    assert not summary.parse_slo("ttft=9").is_met_by(success(first_s=None))
    assert summary.parse_slo("tpot=0.001").is_met_by(success(tokens=1, gaps_s=()))
    assert summary.parse_slo("e2e=9").is_met_by(success(tokens=None))


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=", "ttft=fast", "itl=1", "ttft=1,ttft=2", "e2e=-1", "e2e=nan"]
)
def test_parse_slo_invalid_text_is_rejected(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"ttft=0\.5"):
        summary.parse_slo(text)


def test_load_results_rates_use_window_length():
    load = load_of(
        success(ended_s=3, tokens=5), success(due_s=1, first_s=2, ended_s=4, tokens=15), failure()
    )
    results = summary.load_results(load, None)

    assert results["measured_seconds"] == 4
    assert results["requests_per_second"] == 2 / 4
    assert results["generated_tokens_per_second"] == 20 / 4
    assert results["prompt_tokens_per_second"] == 14 / 4
    assert results["concurrency_mean"] == (3 + 3) / 4
    assert results["tokens_per_chunk_mean"] == 20 / 10
    assert (results["error_ratio"], results["requests_failed"]) == (1 / 3, 1)


def test_load_results_percentiles_exclude_failures():
    load = load_of(
        *(success(first_s=0.1 * n, ended_s=n, gaps_s=(0.01 * n,)) for n in range(1, 102)), failure()
    )
    results = summary.load_results(load, None)

    assert results["e2e_seconds_p50"] == pytest.approx(51)
    assert results["e2e_seconds_p90"] == pytest.approx(91)
    assert results["e2e_seconds_p95"] == pytest.approx(96)
    assert results["e2e_seconds_p99"] == pytest.approx(100)
    assert results["e2e_seconds_mean"] == pytest.approx(51)
    assert results["ttft_seconds_p50"] == pytest.approx(5.1)
    assert results["itl_seconds_p50"] == pytest.approx(0.51)
    assert results["tpot_seconds_p50"] == pytest.approx(0.9 * 51 / 4)


def test_load_results_goodput_includes_failed_requests():
    load = load_of(success(), success(), success(ended_s=5), failure())
    results = summary.load_results(load, summary.parse_slo("e2e=3"))

    assert results["goodput_ratio"] == 2 / 4
    assert results["goodput_requests_per_second"] == 2 / 5


def test_load_results_count_failures_by_kind():
    load = load_of(
        success(), failure(), failure("http_429"), failure("http_429"), failure("cut_off")
    )
    results = summary.load_results(load, None)

    assert {
        name: count for name, count in results.items() if name.startswith("requests_failed")
    } == {
        "requests_failed": 4,
        "requests_failed_http_429": 2,
        "requests_failed_timeout": 1,
        "requests_failed_cut_off": 1,
    }


def test_load_results_many_failure_kinds_fit_result_limit():
    load = load_of(success(), *(failure(f"http_{status}") for status in range(400, 500)))
    load.answers[0] = RequestOutcome(0, 0.5, 3, 1, array("d", [1]), TokenUsage(7, 5))
    load.cancelled = 1
    results = summary.load_results(load, summary.parse_slo("e2e=3"))

    assert len(results) <= 64
    assert results["requests_failed"] == 100
    assert (
        sum(count for name, count in results.items() if name.startswith("requests_failed_")) == 100
    )


def test_load_summary_large_rates_have_all_their_digits():
    load = load_of(success())
    results = {
        "requests_per_second": 0.25,
        "generated_tokens_per_second": 12_345.6,
        "ttft_seconds_p50": 0.123456,
        "ttft_seconds_p99": 10_000.4,
    }

    first, second, *_ = summary.load_summary_lines(load, results, None)

    assert first.endswith(" s, 0.25 requests/s, 12,346 generated tokens/s")
    assert second == "median ttft 0.1235 s (p99 10,000 s)"


def test_load_results_without_usage_omit_tokens():
    load = load_of(success(tokens=None), success(tokens=None))
    results = summary.load_results(load, None)

    assert results["requests_without_usage"] == 2
    assert results["requests_per_second"] == 2 / 3
    assert not [name for name in results if "token" in name or "tpot" in name]
    assert "2 of 2 answers came without usage" in "\n".join(
        summary.load_summary_lines(load, results, None)
    )


def test_load_results_without_text_omit_ttft():
    load = load_of(success(), success(first_s=None, gaps_s=()))
    results = summary.load_results(load, summary.parse_slo("ttft=2"))

    assert (results["requests_without_text"], results["goodput_ratio"]) == (1, 1 / 2)
    assert (results["ttft_seconds_mean"], results["e2e_seconds_mean"]) == (1, 3)
    assert "1 of 2 answers had no text" in "\n".join(
        summary.load_summary_lines(load, results, None)
    )


def test_load_results_only_failures_have_no_latencies():
    results = summary.load_results(load_of(failure(), failure()), None)

    assert results == {"requests_failed": 2, "requests_failed_timeout": 2, "error_ratio": 1}


def test_describe_failures_removes_key_and_control_characters():
    text = summary.describe_failures(
        [failure("http_401", message="bad key sk-123\x1b[31m\n" + "x" * 999)], "sk-123"
    )

    assert text.startswith("1 http_401 (bad key [key] [31m xxx")
    assert len(text) < 300
    assert text.endswith("OPENAI_API_KEY or give --api-key-file")

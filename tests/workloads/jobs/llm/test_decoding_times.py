import itertools

import pytest

from wattline_workloads.jobs.llm.common import measured_rounds
from wattline_workloads.jobs.llm.decoding import (
    DecodingSteps,
    TokenRates,
    TokenTimes,
    token_rate_results,
)

# Two texts; one ends with its second token, the other with its fourth.
STEPS = DecodingSteps(began_s=10.0, token_times_s=(10.5, 10.6, 10.8, 11.1), live=(2, 2, 1, 1))


def test_decoding_steps_ttft_counts_from_batch_start():
    assert STEPS.ttft_s == 0.5
    assert STEPS.latency_s == pytest.approx(1.1)


def test_decoding_steps_tokens_after_end_are_idle():
    assert STEPS.generated == 6
    assert STEPS.idle == 2  # two texts times four steps, minus six


def test_decoding_steps_tpot_is_per_text():
    # short text: 0.1 s for one token after the first; long text: 0.6 s for three
    assert STEPS.tpots_s == pytest.approx([0.1, 0.2])


def test_decoding_steps_single_token_has_no_tpot():
    assert DecodingSteps(0.0, (1.0,), (3,)).tpots_s == []
    assert DecodingSteps(0.0, (1.0, 3.0), (3, 1)).tpots_s == [2.0]


def test_token_times_percentiles_cover_all_batches():
    times = TokenTimes()
    times.add(STEPS)
    times.add(DecodingSteps(20.0, (20.7, 20.8), (1, 1)))

    results = times.results()
    assert results["ttft_seconds_p50"] == pytest.approx(0.6)  # of 0.5 and 0.7
    assert results["ttft_seconds_p90"] == pytest.approx(0.68)  # 0.5 + 0.9 x 0.2
    assert results["tpot_seconds_mean"] == pytest.approx(0.4 / 3)  # of 0.1, 0.2 and 0.1
    assert results["itl_seconds_p50"] == pytest.approx(0.15)  # of 0.1, 0.2, 0.3 and 0.1
    assert results["itl_seconds_p99"] == pytest.approx(0.297)  # 0.2 + 0.97 x 0.1
    assert len(results) == 15


def test_token_times_single_tokens_report_only_ttft():
    times = TokenTimes()
    times.add(DecodingSteps(0.0, (0.25,), (4,)))

    assert {name.rpartition("_")[0] for name in times.results()} == {"ttft_seconds"}


def test_token_rates_of_batch_busy_time_and_wall_clock():
    sums = TokenRates(began_s=100.0)
    assert sums.add(10, latency_s=2.0, now_s=104.0) == {
        "tokens_per_second": 5.0,
        "tokens_per_second_busy": 5.0,
        "tokens_per_second_wall": 2.5,
    }
    assert sums.add(20, latency_s=3.0, now_s=110.0) == {
        "tokens_per_second": pytest.approx(20 / 3),
        "tokens_per_second_busy": 6.0,  # 30 in 5 s
        "tokens_per_second_wall": 3.0,  # 30 in 10 s
    }
    assert token_rate_results(sums.tokens, sums.busy_s, sums.wall_s) == {
        "tokens_per_second": 3.0,
        "tokens_per_second_busy": 6.0,
    }


def test_measured_rounds_end_after_count_or_duration():
    ticks = itertools.count(0, 4)  # seconds of consecutive clock reads

    assert list(measured_rounds(3, None)) == [0, 1, 2]
    assert list(measured_rounds(3, 10.0, now=lambda: next(ticks))) == [
        0,
        1,
        2,
    ]  # starts at 0 s; later reads give 4, 8 and 12 s


def test_measured_rounds_tiny_duration_gives_one_round():
    assert list(measured_rounds(None, 1e-9)) == [0]


def test_measured_rounds_stop_when_any_rank_stops():
    assert list(measured_rounds(None, 1e9, any_process=lambda mine: mine or True)) == [0]

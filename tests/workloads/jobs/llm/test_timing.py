import itertools

import pytest

from workloads.jobs.llm.common import measured_rounds
from workloads.jobs.llm.timing import DecodingSteps, TokenRates, TokenTimes, token_rate_results

# Two texts; one ends with its second token, the other with its fourth.
STEPS = DecodingSteps(began_s=10.0, token_times_s=(10.5, 10.6, 10.8, 11.1), live=(2, 2, 1, 1))


def test_the_first_token_is_timed_from_the_handover_of_the_batch():
    assert STEPS.ttft_s == 0.5
    assert STEPS.latency_s == pytest.approx(1.1)


def test_tokens_of_texts_that_have_ended_are_idle_not_generated():
    assert STEPS.generated == 6
    assert STEPS.idle == 2  # two texts times four steps, less six


def test_the_time_per_output_token_is_that_of_each_text():
    # the short one: 0.1 s for its one token after the first; the long one: 0.6 s for three
    assert STEPS.tpots_s == pytest.approx([0.1, 0.2])


def test_a_text_of_one_token_has_no_time_per_output_token():
    assert DecodingSteps(0.0, (1.0,), (3,)).tpots_s == []
    assert DecodingSteps(0.0, (1.0, 3.0), (3, 1)).tpots_s == [2.0]


def test_percentiles_of_token_times_over_batches():
    times = TokenTimes()
    times.add(STEPS)
    times.add(DecodingSteps(20.0, (20.7, 20.8), (1, 1)))

    found = times.results()
    assert found["ttft_seconds_p50"] == pytest.approx(0.6)  # of 0.5 and 0.7
    assert found["ttft_seconds_p90"] == pytest.approx(0.68)  # 0.5 + 0.9 x 0.2
    assert found["tpot_seconds_mean"] == pytest.approx(0.4 / 3)  # of 0.1, 0.2 and 0.1
    assert found["itl_seconds_p50"] == pytest.approx(0.15)  # of 0.1, 0.2, 0.3 and 0.1
    assert found["itl_seconds_p99"] == pytest.approx(0.297)  # 0.2 + 0.97 x 0.1
    assert len(found) == 15


def test_without_a_second_token_there_is_no_time_between_tokens():
    times = TokenTimes()
    times.add(DecodingSteps(0.0, (0.25,), (4,)))

    assert {name.rpartition("_")[0] for name in times.results()} == {"ttft_seconds"}


def test_rates_of_a_batch_of_all_so_far_and_by_wall_clock():
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


def test_rounds_end_after_a_number_or_a_duration():
    ticks = itertools.count(0, 4)  # seconds, one look at the clock after the other

    assert list(measured_rounds(3, None)) == [0, 1, 2]
    assert list(measured_rounds(3, 10.0, now=lambda: next(ticks))) == [0, 1, 2]  # begun at 0: looks at 4, 8 and 12 s


def test_one_round_is_made_however_short_the_duration():
    assert list(measured_rounds(None, 1e-9)) == [0]


def test_all_processes_stop_where_one_of_them_does():
    assert list(measured_rounds(None, 1e9, any_process=lambda mine: mine or True)) == [0]

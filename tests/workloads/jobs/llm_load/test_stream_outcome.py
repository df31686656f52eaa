import pytest

from tests.workloads.jobs.llm_load.outcomes import success


def test_outcome_times_of_answer():
    answer = success(due_s=10, first_s=11, ended_s=13, tokens=5)

    assert (answer.ttft_s, answer.e2e_s, answer.tpot_s) == (
        1,
        3,
        0.5,
    )  # 2 s for the four tokens after the first


@pytest.mark.parametrize(("tokens", "first_s"), [(None, 1.0), (1, 1.0), (0, None), (5, None)])
def test_outcome_tpot_without_two_counted_tokens_is_none(tokens, first_s):
    assert success(first_s=first_s, tokens=tokens).tpot_s is None

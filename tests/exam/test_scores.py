"""Verdicts and scores of answers with known errors."""

import pytest

from tests.exam.scores import Answer, Verdict, by_case, score


def answer(figure_j, uncertainty_j=None, *notes, fault=False, case="constant"):
    return Answer(case, "0", fault, 1_000.0, figure_j, uncertainty_j, notes, 0.01)


@pytest.mark.parametrize(
    ("given", "verdict", "points"),
    [
        (answer(1_049.0), Verdict.RIGHT, 1.0),
        (answer(949.0), Verdict.WRONG, 0.0),
        (answer(700.0, 300.0), Verdict.COVERED, 0.5),
        (answer(700.0, 299.0), Verdict.WRONG, 0.0),
        (answer(700.0, None, "suspect"), Verdict.WRONG, 0.0),
        (answer(700.0, None, "suspect", fault=True), Verdict.DECLARED, 0.5),
        (answer(700.0, None, fault=True), Verdict.WRONG, 0.0),
        (answer(None), Verdict.REFUSED, 0.0),
        (answer(None, fault=True), Verdict.REFUSED, 0.5),
    ],
)
def test_answer_has_verdict_and_points(given, verdict, points):
    assert (given.verdict, given.points) == (verdict, points)


def test_score_of_several_cases_weights_cases_equally():
    answers = [
        answer(1_000.0),
        answer(500.0),
        answer(1_200.0, 300.0, "reset", fault=True, case="counter restarts"),
    ]
    total = score(answers)

    assert total.points == pytest.approx(100 * (0.5 + 0.5) / 2)
    assert total.median_error == pytest.approx(0.25)  # 0 and 50 %
    assert total.wrong == pytest.approx(1 / 3)
    assert (total.covered, total.false_alarms) == (1.0, 0.0)


def test_score_note_without_a_fault_is_a_false_alarm():
    assert score([answer(1_000.0, None, "suspect"), answer(1_000.0)]).false_alarms == 0.5


def test_case_score_counts_intervals_notes_and_refusals():
    (case,) = by_case([answer(1_010.0, 5.0), answer(1_001.0, 5.0, "late"), answer(None)])

    assert (case.covered, case.declared, case.wrong, case.runs) == (0.5, 2, 0, 3)
    assert case.worst_error == pytest.approx(0.01)

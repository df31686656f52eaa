"""Newest samples of series, with the times and limits of earlier ones."""

import numpy as np

from wattline.contract import metrics as m
from wattline_analyzer.core.facts import newest_facts


def series(metric, t, value, **labels):
    return {"__name__": metric.name, **labels}, np.array(t, float), np.array(value, float)


def test_newest_facts_of_several_parts_have_first_time_and_limits():
    first = series(m.RUN_START, [10, 20], [7.0, 9.0], run_id="r", instance="a")
    second = series(m.RUN_START, [30, 40], [5.0, 6.0], run_id="r", instance="a")

    (fact,) = newest_facts([m.RUN_START], [[first], [second]])

    assert (fact.t, fact.value) == (40.0, 6.0)
    assert (fact.first_s, fact.lowest, fact.highest) == (10.0, 5.0, 9.0)
    assert (fact.metric, fact.instance, fact.labels) == (m.RUN_START, "a", {"run_id": "r"})


def test_newest_facts_leave_out_samples_that_are_not_finite():
    ended = series(m.RUN_END, [10, 20], [7.0, np.nan], run_id="r")
    never = series(m.RUN_END, [10, 20], [np.nan, np.inf], run_id="s")

    (fact,) = newest_facts([m.RUN_END], [[ended, never]])

    assert (fact.t, fact.value, fact.highest) == (10.0, 7.0, 7.0)


def test_newest_facts_of_two_jobs_are_one_fact():
    newer = series(m.RUN_START, [10, 30], [1.0, 3.0], run_id="r", job="x")
    older = series(m.RUN_START, [5, 20], [0.5, 2.0], run_id="r", job="y")

    for part in ([newer, older], [older, newer]):
        (fact,) = newest_facts([m.RUN_START], [part])

        assert (fact.t, fact.value, fact.first_s, fact.lowest) == (30.0, 3.0, 5.0, 0.5)
        assert fact.labels == {"run_id": "r"}


def test_newest_facts_have_labels_outside_the_contract_without_empty_ones():
    info = series(m.RUN_INFO, [10], [1.0], run_id="r", workload="w", label_a="1", label_b="")

    (fact,) = newest_facts([m.RUN_INFO], [[info]])

    assert fact.labels == {"run_id": "r", "workload": "w", "label_a": "1"}


def test_newest_facts_are_in_the_order_of_time_then_of_the_series():
    part = [
        series(m.RUN_WORK, [20], [1.0], run_id="r", unit="steps"),
        series(m.RUN_WORK, [10], [1.0], run_id="r", unit="samples"),
        series(m.RUN_WORK, [20], [1.0], run_id="r", unit="flop"),
    ]

    facts = newest_facts([m.RUN_WORK], [part])

    assert [fact.labels["unit"] for fact in facts] == ["samples", "steps", "flop"]

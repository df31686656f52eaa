"""Table and JSON document of the advice on a sweep."""

from dataclasses import replace

from tests.analyzer.recommend.test_advice import near_exact_sweep
from wattline_analyzer.recommend import output as recommend
from wattline_analyzer.recommend.advice import advise
from wattline_analyzer.recommend.objective import SweepQuestion


def shown_marks(advice):
    """Return the marks of each power limit: in the table, and in the JSON document."""
    (table,) = (
        part
        for part in recommend.recommendation_output([advice], "").parts
        if hasattr(part, "rows")
    )
    settings = recommend.recommendation_document([advice], "")["sweeps"][0]["settings"]
    return {
        record["power_limit_watts"]: (row[-1].text, record["marks"])
        for record, row in zip(settings, table.rows, strict=True)
    }


def test_recommend_marks_within_the_tolerance_are_named_in_the_table():
    advice = advise(
        near_exact_sweep({400: (700, 12.0), 500: (703, 11.0), 700: (1000, 10.0)}), SweepQuestion()
    )

    marks = shown_marks(advice)

    assert marks[400][0].startswith("best, frontier")
    assert marks[500][0].startswith("advised, within 1 % of best")  # 703 J are 0.4 % above 700 J
    assert marks[400][1][:2] == ["best", "frontier"]
    assert marks[500][1][:2] == ["advised", "like the best"]


def test_recommend_marks_under_a_constraint_name_the_best_allowed():
    rows = {500: (700, 12.0), 600: (720, 10.4), 700: (1000, 10.0)}

    marks = shown_marks(advise(near_exact_sweep(rows), SweepQuestion(max_slowdown=0.05)))

    assert "best allowed" in marks[600][0].split(", ")
    assert "best" in marks[600][1]
    assert "best allowed" not in marks[600][1]


def answer_text(sweep):
    """Return the headline with the commands."""
    return str(recommend.recommendation_output([advise(sweep, SweepQuestion())], "").parts[1])


def test_recommend_of_simulated_gpus_states_why_it_has_no_command():
    rows = {500: (700, 10.0), 700: (1000, 10.0)}
    real = near_exact_sweep(rows)
    simulated = replace(real, runs=[replace(run, simulated=True) for run in real.runs])

    assert "  nvidia-smi -i 0 -pl 500   (as root)" in answer_text(real)
    assert answer_text(simulated).endswith(
        "\n  no command: the limits of SIMULATED GPUs have no effect on real ones"
    )

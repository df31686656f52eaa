"""Table and JSON document of the advice on a sweep."""

from analyzer.output.studies import recommend
from analyzer.studies.objective import SweepQuestion
from analyzer.studies.recommend import advise
from tests.analyzer.studies.test_recommend import near_exact_sweep


def shown_marks(advice):
    """Return the marks of each power limit: in the table, and in the JSON document."""
    (table,) = (part for part in recommend.recommendation_output([advice], "").parts if hasattr(part, "rows"))
    settings = recommend.recommendation_document([advice], "")["sweeps"][0]["settings"]
    return {
        record["power_limit_watts"]: (row[-1].text, record["marks"])
        for record, row in zip(settings, table.rows, strict=True)
    }


def test_recommend_marks_within_the_tolerance_are_named_in_the_table():
    advice = advise(near_exact_sweep({400: (700, 12.0), 500: (703, 11.0), 700: (1000, 10.0)}), SweepQuestion())

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

"""Tables of the results that a job reports."""

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.analyzer.node import NodeRun
from tests.analyzer.run_reports import run_report, terminal_text
from wattline_analyzer.report.sections.report import latencies, other_results


def test_results_latencies_and_other_results_have_own_tables(tmp_path):
    results = {
        "ttft_seconds_mean": 0.2,
        "ttft_seconds_p50": 0.18,
        "ttft_seconds_p99": 0.314,
        "tpot_seconds_p50": 0.01,
        "tpot_seconds_p99": 0.02,
        "loss": 2.5,
        "window_seconds_mean": 4.0,
    }

    text = terminal_text(run_report(tmp_path, NodeRun(results=results)))

    assert [line.split() for line in text.splitlines() if line.startswith(("TTFT", "TPOT"))] == [
        ["TTFT", "200.0", "180.0", "314.0"],
        ["TPOT", "–", "10.00", "20.00"],
    ]
    assert "Results reported by the job" in text
    assert re.search(r"^window_seconds_mean +4\.000 *$", text, re.MULTILINE)
    assert re.search(r"^loss +2\.500 *$", text, re.MULTILINE)
    assert "ttft" not in text


@given(
    st.dictionaries(
        st.from_regex(r"[a-c]{1,2}_seconds_(mean|p50|p99|p99_9|sum)", fullmatch=True),
        st.floats(0, 9),
    )
)
def test_results_each_result_is_in_one_table(results):
    tabled = {f"{what}_seconds_{name}" for what, of in latencies(results).items() for name in of}

    assert tabled | other_results(results).keys() == results.keys()
    assert not tabled & other_results(results).keys()


def test_result_table_explains_names_of_built_in_jobs(tmp_path):
    results = {"tokens_per_second": 61.0, "tokens_per_second_busy": 64.0, "own_seconds": 2.0}

    text = " ".join(terminal_text(run_report(tmp_path, NodeRun(results=results))).split())

    assert "The job reported these values; the unit is part of the name." in text
    assert "tokens_per_second is tokens by wall-clock time" in text
    assert "tokens_per_second_busy is tokens by the time within batches." in text
    assert "own_seconds is" not in text

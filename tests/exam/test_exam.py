"""The examination itself, with meters whose answers are known."""

import sys
from dataclasses import replace
from itertools import product

import pytest

from tests.exam.__main__ import examine
from tests.exam.cases import CASES
from tests.exam.registry import METERS, ROOT, NoMetersError, meter
from tests.exam.scores import ALL, Verdict
from tests.exam.table import RESULTS
from tests.exam.window import Meter, window
from tests.laboratory.results import stored_rows
from wattline_exporter.simulation import Constant

CONSTANT = replace(CASES["constant"], seconds=0.5, loads=(Constant(500.0),))


def stating(text):
    """Return a meter that answers with this text."""
    program = (
        "import sys; print('starting'); print('ready', flush=True); sys.stdin.read(); "
        f"print('''{text}''')"
    )
    return Meter((sys.executable, "-c", program), {})


def script(name):
    return Meter((sys.executable, str(ROOT / f"tests/exam/meters/{name}.py")), {})


def verdicts(examined, *cases, folder):
    return [answer.verdict for answer in examine(examined, cases, 1, folder)]


def test_exam_energy_counter_of_a_constant_load_is_right(tmp_path):
    case = replace(CONSTANT, seconds=3.0)  # an update of 0.1 s at each end is 3 %
    (answer,) = examine(script("counter"), [case], 1, tmp_path)

    assert answer.verdict == Verdict.RIGHT
    assert answer.true_j == pytest.approx(1_500.0, rel=0.5)  # 3 s at 500 W, later on a busy machine
    assert answer.contains_truth is None


def test_exam_unknown_meter_names_the_known_ones(tmp_path):
    with pytest.raises(
        NoMetersError, match=r"unknown meter 'nosuch'; use one of wattline, zeus, .*, or a command"
    ):
        meter("nosuch", tmp_path)


def test_exam_wrong_meter_scores_nothing(tmp_path):
    assert verdicts(stating('{"energy_joules": {"0": 1}}'), CONSTANT, folder=tmp_path) == [
        Verdict.WRONG
    ]


def test_exam_meter_with_a_wide_interval_is_covered(tmp_path):
    text = '{"energy_joules": {"0": 1}, "uncertainty_joules": {"0": 1e6}}'

    assert verdicts(stating(text), CONSTANT, folder=tmp_path) == [Verdict.COVERED]


def test_exam_sum_of_two_gpus_is_compared_with_the_true_sum(tmp_path):
    two = replace(CASES["two GPUs"], seconds=0.5)
    (answer,) = examine(stating('{"energy_joules": {"sum": 1}}'), [two], 1, tmp_path)

    assert answer.gpu == "sum"
    assert answer.true_j >= 0.45 * (72.0 + 72.0)  # both GPUs at their lowest power


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"energy_joules": {}}',
        '{"energy_joules": {"0": null}}',
        '{"energy_joules": {"0": NaN}}',
    ],
)
def test_exam_meter_without_a_figure_has_refused(text, tmp_path):
    assert verdicts(stating(text), CONSTANT, folder=tmp_path) == [Verdict.REFUSED]


def test_exam_meter_that_fails_to_start_has_refused(tmp_path):
    assert verdicts(Meter(("false",), {}), CONSTANT, folder=tmp_path) == [Verdict.REFUSED]


def test_exam_lost_gpu_makes_a_script_refuse(tmp_path):
    lost = replace(CASES["GPU lost"], seconds=0.5)

    assert verdicts(script("counter"), lost, folder=tmp_path) == [Verdict.REFUSED]


def test_exam_fast_counter_makes_a_script_wrong(tmp_path):
    fast = replace(CASES["counter 30 % fast"], seconds=3.0, loads=(Constant(500.0),))
    (answer,) = examine(script("counter"), [fast], 1, tmp_path)

    assert answer.verdict == Verdict.WRONG
    assert answer.error == pytest.approx(
        0.15, abs=0.07
    )  # 30 % in 40 to 60 % of the time, ± 3 % at the edges


def test_exam_wattline_short_job_is_inside_its_interval(tmp_path):
    job = replace(CASES["job 1 s"], seconds=0.6)
    (answer,) = examine(meter("wattline", tmp_path), [job], 1, tmp_path)

    assert answer.contains_truth
    assert answer.notes == ()


@pytest.mark.parametrize(
    ("begin_s", "end_s", "expected"),
    [
        (None, None, (10.0, 20.0)),
        (9.5, 20.5, (9.5, 20.5)),
        (10.2, 19.0, (10.0, 20.0)),
        (1.0, 30.0, (10.0, 20.0)),
    ],
)
def test_exam_stated_window_counts_only_around_the_calls(begin_s, end_s, expected):
    assert window({"begin_s": begin_s, "end_s": end_s}, 10.0, 20.0, 21.0) == expected


def test_exam_recorded_results_have_every_meter_and_case():
    found = {(row["meter"], row["case"]) for row in stored_rows(RESULTS)}

    assert found == set(product(METERS, (ALL, *CASES)))

"""Summaries on the page of evidence."""

import pytest

from tests.laboratory import evidence
from tests.laboratory.results import FOLDER, stored_rows


def row(name, coverage):
    return {"load": name, "coverage": coverage}


def test_least_coverage_names_its_class_and_counts_those_below_93_percent():
    rows = [row("flat", 0.97), row("wave", 0.9), row("steps", 0.929), row("ramp", 0.93)]

    text = evidence._least(rows, ["load"])

    assert text == "2 of 4 classes below 93 %; least: 90.0 % of *wave*"


def test_least_coverage_of_nested_levels_is_that_of_95_percent():
    rows = [row("run", [0.3, 0.6, 0.96, 1.0]), row("phase", [0.6, 0.8, 0.95, 0.97])]

    text = evidence._least(rows, ["load"])

    assert text == "0 of 2 classes below 93 %; least: 95.0 % of *phase*"


def test_sum_over_devices_has_its_least_coverage_of_all_counts():
    names = {"period": 1.0, "one_job": True, "in_phase": True}
    rows = [{**names, "linear_1": [1.0, 2], "linear_2": [0.9, 2], "linear_8": [0.95, 2]}]

    assert evidence._of_devices(rows).startswith("1 of 1 classes below 93 %; least: 90.0 % of")


def test_every_file_of_results_is_a_study_of_the_page():
    assert {file.stem for file in FOLDER.glob("*.json")} | {"windows"} == set(evidence.STUDIES)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no counter: power 0 W", "without an energy counter"),
        ("no counter for 6 s", "energy counter: "),
        ("counter jumps +200 J", "energy counter: "),
        ("power 0 W", "power and fields"),
        ("field type 99", "power and fields"),
        ("UNKNOWN in 10 % of calls", "NVML errors"),
        ("all calls and GPUs UNKNOWN for 5 s", "NVML errors"),
        ("driver unloaded for 5 s, counters from 0", "driver, worker"),
        ("lost for 6 s", "driver, worker"),
    ],
)
def test_fault_has_its_group(fault, words):
    assert words in evidence._group(fault)


def test_fault_table_has_each_run_once():
    cells = [line.split(" | ") for line in evidence.fault_table().splitlines()[2:]]
    stored = stored_rows(FOLDER / "fault_trials.json")

    assert sum(int(line[1]) for line in cells) == len(stored)
    assert sum(int(line[2]) for line in cells) == sum(one["runs"] for one in stored)

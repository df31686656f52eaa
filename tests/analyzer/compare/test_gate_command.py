"""Command `gate`: exit codes, messages, JSON and the summary."""

import json

import pytest

from tests.analyzer.experiments import Job, series
from tests.analyzer.node import START_S, write_history

WATTS = {"main": 300.0, "same": 300.0, "more": 330.0}
"""At 10 steps a second: 30 and 33 J per step on one GPU, with a scatter of 0.1 %."""


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    jobs, at_s = [], START_S
    for repeat in range(4):
        for variant, watts in WATTS.items():
            labels = {"experiment": "ci", "variant": variant, "repeat": str(repeat)}
            rate = 10.0 * (1 + (repeat - 1.5) / 1_000)
            jobs.append(Job(f"{variant}-{repeat}", at_s, labels, (0,), watts, rate))
            at_s += 15.0
    return write_history(tmp_path_factory.mktemp("gate"), series(START_S, jobs))


def gate(analyzer, history, candidate, *options):
    sides = ("--baseline", "variant=main", "--candidate", candidate)
    return analyzer("gate", *sides, "--source", history, "--since", "36500d", *options)


def test_gate_equal_energy_exits_zero(analyzer, history):
    result = gate(analyzer, history, "variant=same")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("pass\nenergy per unit, steps: 30.0")
    assert "compared repeat by repeat" in result.stdout
    assert ", so it is less than +3.0 %.\n" in result.stdout
    assert (
        "99 % that the change is above the lower one, 95 % that it is below the upper one"
        in result.stdout
    )


def test_gate_ten_percent_more_exits_three_with_a_summary(analyzer, history, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    result = gate(analyzer, history, "variant=more", "--format", "json", "--summary", summary)
    document = json.loads(result.stdout)
    assert (result.returncode, document["verdict"]) == (3, "regression")
    assert document["figure"] == "energy_per_steps_joules"
    assert document["baseline"] == pytest.approx(30.0, rel=0.002)
    assert document["ratio"] == pytest.approx(1.1, rel=0.002)
    text = summary.read_text()
    mark = "<!-- analyzer gate: variant=main, variant=more, energy_per_steps_joules -->\n"
    assert text.startswith(f"before\n{mark}### Energy gate: regression\n")
    assert text.endswith(mark)
    assert "| geometric mean | 30.0" in text
    assert "- The energy increased: the change is between +9." in text
    assert (document["confidence_low"], document["confidence_high"]) == (0.99, 0.95)


def test_gate_summary_has_one_section_of_each_pair_of_groups(analyzer, history, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    for candidate in ("variant=more", "variant=same", "variant=more"):
        gate(analyzer, history, candidate, "--summary", summary)
    text = summary.read_text()
    assert text.startswith("before\n")
    assert text.count("### Energy gate: regression\n") == 1
    assert text.count("### Energy gate: pass\n") == 1
    assert text.count("| geometric mean |") == 2


def test_gate_allows_the_given_increase(analyzer, history):
    assert gate(analyzer, history, "variant=more", "--max-increase", "15%").returncode == 0


def test_gate_names_runs_that_do_not_count(analyzer, history):
    result = gate(analyzer, history, "variant=same", "--repeats", "2")
    assert (
        "warning: variant=main: only the first 2 of 4 runs count; select the runs of one experiment"
        in result.stdout
    )


def test_gate_one_repeat_each_exits_four(analyzer, history):
    sides = ("--baseline", "main-0", "--candidate", "more-0")
    result = analyzer("gate", *sides, "--source", history, "--since", "36500d")
    assert result.returncode == 4
    assert result.stdout.startswith("cannot tell\n")
    assert "run each side again" in result.stdout
    assert "Confidence" not in result.stdout


@pytest.mark.parametrize("text", ["0.5", "0.03", "3", "-3%", "0%", "three", "nan%"])
def test_gate_increase_that_is_no_percentage_is_refused(analyzer, history, text):
    result = gate(analyzer, history, "variant=same", "--max-increase", text)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"--max-increase: expected a percentage such as 3%, not '{text}'" in result.stderr


def test_gate_missing_runs_exit_one(analyzer, history):
    result = gate(analyzer, history, "variant=none")
    assert (result.returncode, result.stdout) == (1, "")
    assert "no run with variant=none at" in result.stderr


def test_gate_names_runs_of_unknown_uncertainty(analyzer, history):
    options = ("--figure", "duration_seconds", "--format", "json")
    document = json.loads(gate(analyzer, history, "variant=same", *options).stdout)
    text = gate(analyzer, history, "variant=same", *options[:2]).stdout
    runs = document["runs_without_uncertainty"]
    assert {"main-0", "same-0"} <= set(runs)
    assert f"The measurement uncertainty is unknown for {', '.join(runs)}: the limits" in text

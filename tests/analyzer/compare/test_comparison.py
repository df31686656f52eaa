"""Comparison of groups of runs, and the text of differences."""

import csv
import dataclasses
import io
import json
import math

import pytest

from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    run_series,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from wattline.figures import Figure
from wattline_analyzer.compare.comparison import (
    GroupMember,
    MixedRunsError,
    RepeatedRunError,
    RunFigure,
    RunGroup,
    compare_groups,
)
from wattline_analyzer.compare.output import comparison_output, difference_text
from wattline_analyzer.core.statistics import RatioDifference

ENERGY = RunFigure("energy_gpu_joules", "energy", "energy, GPU")
ALIKE = {"hosts": "a", "drivers": "560", "GPUs": "1 × A100", "units": "steps", "boundaries": "GPU"}
SINCE = ("--since", "36500d")


def group(name, *values, half=None, **identity):
    """Return runs of these energies, which are intervals or numbers."""
    identity, gpus = {**ALIKE, **identity}, frozenset({"GPU-0"})
    energies = [value if isinstance(value, Figure) else Figure(value, half) for value in values]
    members = (
        GroupMember(f"{name}-{i}", None, identity, gpus, {ENERGY: one})
        for i, one in enumerate(energies)
    )
    return RunGroup(name, tuple(members))


def test_comparison_levels_are_rounded_to_the_accuracy_of_the_sensor():
    """The runs differ by 5.06 %, which is clear, but neither energy is known better than to 12 %."""
    groups = [
        group(name, *2 * [Figure(joules, 3.7, bias=(-0.03 * joules, 0.12 * joules))])
        for name, joules in (("a", 3_160.0), ("b", 3_000.0))
    ]
    output = comparison_output(compare_groups(groups))
    levels, differences = output.parts[:2]

    assert [cell.text for cell in levels.rows[0][1:]] == [
        "3,200 J (±0.08 %)",
        "3,000 J (±0.09 %)",
    ]
    assert differences.rows[0][2].text.startswith("saves 5.06 % (")
    assert output.rows[0]["value"] == pytest.approx(3_160.0)


def difference(comparison):
    (line,) = comparison.lines
    return difference_text(line.differences[1], line.less, line.more)


def test_difference_beyond_scatter_has_its_interval():
    comparison = compare_groups([group("a", 100, 101, 99, 100), group("b", 90, 91, 89, 90)])

    (line,) = comparison.lines
    assert line.levels[0].value == pytest.approx((100 * 101 * 99 * 100) ** 0.25)
    assert line.differences[1].ratio == pytest.approx(
        (90 * 91 * 89 * 90 / (100 * 101 * 99 * 100)) ** 0.25
    )
    # Student's t of 6 degrees of freedom: s of the logs 0.0087, 2.45 x 0.0087 x sqrt(1/4 + 1/4) =
    # 0.015
    assert line.differences[1].low == pytest.approx(0.9 * math.exp(-0.015), abs=0.006)
    assert difference(comparison).startswith("saves 10")
    assert difference(comparison).endswith("%, n = 8)")


def test_difference_within_scatter_is_not_clear():
    assert difference(
        compare_groups([group("a", 100, 110, 90), group("b", 99, 108, 93)])
    ).startswith("no clear difference (−")


def test_difference_single_runs_use_measurement_uncertainty():
    comparison = compare_groups([group("a", 100, half=1), group("b", 120, half=1.2)])

    (line,) = comparison.lines
    assert line.differences[1].low == pytest.approx(
        1.2 * math.exp(-0.01 * math.sqrt(2))
    )  # 1 % each, in quadrature
    assert difference(comparison).startswith(
        "+20.0 % (+18.3 to +21.7 %, 1 vs. 1 run, measurement uncertainty only"
    )


def test_difference_without_uncertainty_has_no_interval():
    assert (
        difference(compare_groups([group("a", 100), group("b", 93)]))
        == "−7.0 %, confidence unknown (1 vs. 1 run)"
    )


@pytest.mark.parametrize(
    ("comparison", "text"),
    [
        (
            RatioDifference(0.93, 0.90, 0.96, 12, clear=True, repeated=True),
            "saves 7.0 % (4.0 to 10.0 %, n = 12)",
        ),
        (
            RatioDifference(0.5, 0.3, 0.7, 12, clear=True, repeated=True),
            "saves 50 % (30 to 70 %, n = 12)",
        ),
        (
            RatioDifference(1.0, 0.98, 1.03, 5, clear=False, repeated=True),
            "no clear difference (−2.0 to +3.0 %, n = 5)",
        ),
    ],
)
def test_difference_text_digits_follow_the_interval(comparison, text):
    assert difference_text(comparison, "saves {}", "costs {} more") == text


@pytest.mark.parametrize("aspect", list(ALIKE))
def test_compare_mixed_runs_are_refused_unless_forced(aspect):
    groups = [group("a", 1, 2), group("b", 1, 2, **{aspect: "another"})]

    with pytest.raises(MixedRunsError, match=f"{aspect}: .*a-0, a-1.*and another .b-0, b-1"):
        compare_groups(groups)
    forced = compare_groups(groups, force=True)
    assert aspect in forced.warnings[0]


def test_compare_run_in_two_groups_is_refused():
    with pytest.raises(RepeatedRunError, match="run a-0 is in a and in a"):
        compare_groups([group("a", 1), group("a", 1)])


def working(name, *amounts):
    """Return a group of runs of 100 J; a run with work also has an energy per unit."""
    per_step = RunFigure("energy_per_steps_joules", "energy_per_unit", "energy per unit", "steps")
    members = [
        dataclasses.replace(
            one,
            figures={**one.figures, **({per_step: Figure(100 / steps)} if steps else {})},
            work={"steps": steps},
        )
        for one, steps in zip(group(name, *(100 for _ in amounts)).members, amounts, strict=True)
    ]
    return RunGroup(name, tuple(members))


def test_compare_names_run_that_hides_a_figure_of_its_group():
    comparison = compare_groups([working("a", 50, 50), working("b", 50, 0)])

    assert (
        comparison.warnings[0]
        == "no energy per unit, steps of b-1: a group with such a run has no value"
    )
    assert [line.levels[1] is None for line in comparison.lines] == [False, True]


@pytest.mark.parametrize(
    ("amounts", "warns"), [((50, 50.5), False), ((50, 54), True), ((100, 100), True)]
)
def test_compare_warns_of_different_amounts_of_work(amounts, warns):
    warnings = compare_groups([working("a", 50, 50), working("b", *amounts)]).warnings

    assert (
        any(
            "did different amounts of work (mean steps of a run: a 50, b " in text
            for text in warnings
        )
        is warns
    )


def test_compare_large_amounts_of_work_have_all_their_digits():
    warnings = compare_groups([working("a", 20_000, 20_001), working("b", 40_000)]).warnings

    assert any("(mean steps of a run: a 20,000, b 40,000)" in text for text in warnings)


def write_runs(folder, gpu, first, others):
    """Write a history of runs on one GPU; the series of `others` end a minute after their run."""
    scrapes = []
    for t in scrape_times(1, START_S - 60, START_S + 700):
        values = list(scrape([gpu], first, t))
        for run in others:
            values += run_series([gpu], run, t) if run.start_s <= t <= run.end_s + 60 else []
        scrapes.append((t, values))
    return write_history(folder, series_of_scrapes(scrapes))


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Return a history: three runs of model a at 300 W and of model b at 270 W for 20 s, so 6,000
    and 5,400 J.
    """
    runs, steps = [], [(START_S - 500, 60)]
    for i in range(6):
        start_s, took_s = START_S + 100 * i, 20 + (0, 0, 0.1, 0.2, 0.2, 0.1)[i]
        labels = {"model": "ab"[i % 2], "repeat": str(i // 2)}
        runs.append(
            NodeRun(f"r{i}", start_s, start_s + took_s, labels=labels, work={"steps": 100.0})
        )
        steps += [(start_s, (300, 270)[i % 2]), (start_s + took_s, 60)]
    failed = NodeRun("bad", START_S + 650, START_S + 660, labels={"model": "a"}, outcome="failed")
    return write_runs(tmp_path_factory.mktemp("compare"), NodeGpu(steps), failed, runs)


def test_compare_command_groups_by_label_in_each_format(analyzer, history):
    command = ("compare", "model=a", "model=b", "--source", history, *SINCE)
    completed = analyzer(*command)
    read = json.loads(analyzer(*command, "--format", "json").stdout)

    assert completed.returncode == 0, completed.stderr
    assert "left out: run bad: failed" in completed.stderr
    assert "saves 10" in completed.stdout
    figures = {(row["figure"], row["group"]): row for row in read["figures"]}
    assert figures["energy_gpu_joules", "model=b"]["ratio"] == pytest.approx(0.9, abs=1e-3)
    assert figures["energy_per_steps_joules", "model=a"]["value"] == pytest.approx(
        60.3, abs=0.1
    )  # 20.1 s x 300 W / 100
    assert figures["duration_seconds", "model=b"]["text"].startswith("no clear difference")
    rows = list(csv.DictReader(io.StringIO(analyzer(*command, "--format", "csv").stdout)))
    assert [row["figure"] for row in rows] == [row["figure"] for row in read["figures"]]


@pytest.mark.parametrize(
    ("arguments", "code", "stderr"),
    [
        (["r0", "=x"], 2, "invalid selector '=x'"),
        (["r0", "bad"], 1, "the runs differ in units: steps (r0) and generated_tokens (bad)"),
    ],
)
def test_compare_command_bad_input_is_one_line(analyzer, history, arguments, code, stderr):
    completed = analyzer("compare", *arguments, "--source", history, *SINCE)

    assert completed.returncode == code
    assert stderr in completed.stderr
    assert "Traceback" not in completed.stderr


def test_compare_command_one_group_has_means_without_differences(analyzer, history):
    command = ("compare", "model=a", "--source", history, *SINCE)
    completed = analyzer(*command)
    read = json.loads(analyzer(*command, "--format", "json").stdout)

    assert completed.returncode == 0, completed.stderr
    assert "model=a (n = 3)" in completed.stdout
    assert "Difference" not in completed.stdout
    (energy,) = [row for row in read["figures"] if row["figure"] == "energy_per_steps_joules"]
    # 20, 20.1 and 20.2 s at 300 W for 100 steps: s / √3 is 0.29 % of the mean, with t = 4.303
    assert energy["value"] == pytest.approx(60.3, abs=0.1)
    assert energy["value_high"] / energy["value"] == pytest.approx(1.0125, abs=0.001)
    assert energy["ratio"] is None


def test_compare_leaves_out_outliers_and_names_them():
    """A first run of 25 % more, of six that differ by 0.1 %: the mean of the others is 100 J."""
    comparison = compare_groups(
        [group("a", 125, 100.1, 99.9, 100, 100.1, 99.9), group("b", 110, 110.1, 109.9, 110)]
    )

    (line,) = comparison.lines
    assert line.outliers == ("a-0",)
    assert line.levels[0].value == pytest.approx(100, rel=1e-5)
    assert line.differences[1].ratio == pytest.approx(1.1, rel=1e-5)
    assert line.differences[1].n == 9
    notes = comparison_output(comparison).parts[0].notes
    assert "Left out as outliers of energy, GPU: a-0." in notes


def test_compare_limits_that_say_nothing_are_words():
    """Runs of 2 ms, whose energy is known to ± 22 times itself."""
    comparison = compare_groups([group("a", 1.0, half=22.0), group("b", 1.1, half=22.0)])

    assert difference(comparison) == "+10 %, the runs are too short for limits (1 vs. 1 run)"
    notes = comparison_output(comparison).parts[0].notes
    assert (
        "No CI of energy, GPU of a; energy, GPU of b: the runs are too short for limits." in notes
    )


def test_compare_failed_run_by_id_is_a_warning(analyzer, history):
    arguments = ("compare", "bad", "r0", "--force", "--source", history, *SINCE)
    completed = analyzer(*arguments, "--format", "json")

    assert completed.returncode == 0, completed.stderr
    assert "compared all the same: run bad: failed" in completed.stderr
    assert (
        "run bad: failed; its figures are not those of a complete run"
        in json.loads(completed.stdout)["warnings"]
    )


@pytest.mark.parametrize(
    ("options", "figure"),
    [
        ((), "emissions_average_ledger_grams"),
        (("--carbon", "300"), "emissions_average_given_intensity_grams"),
    ],
)
def test_compare_command_has_emissions_of_one_origin(analyzer, tmp_path, options, figure):
    """300 W for 20 s are 6,000 J, which cause 0.5 g at 300 g/kWh, at the node and by --carbon."""
    gpu = NodeGpu(
        [
            (START_S - 500, 60),
            (START_S, 300),
            (START_S + 20, 60),
            (START_S + 100, 300),
            (START_S + 120, 60),
        ]
    )
    runs = [
        NodeRun(f"r{i}", START_S + 100 * i, START_S + 100 * i + 20, emissions_g=0.5)
        for i in range(2)
    ]
    source = write_runs(tmp_path, gpu, runs[0], runs[1:])

    completed = analyzer(
        "compare", "r0", "r1", "--source", source, *SINCE, *options, "--format", "json"
    )

    rows = [
        row
        for row in json.loads(completed.stdout)["figures"]
        if row["figure"].startswith("emissions")
    ]
    assert [row["figure"] for row in rows] == [figure] * 2, completed.stderr
    assert [row["value"] for row in rows] == pytest.approx([0.5] * 2, rel=1e-3)

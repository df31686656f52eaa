"""Groups of runs beside each other: what is pooled, what is refused, and how a difference is put into words."""

import csv
import io
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.model.interval import Interval
from analyzer.studies.compare import Figure, Group, Member, MixedError, TwiceError, compare
from analyzer.studies.contrast import Difference, Sample, differences, words
from tests.analyzer.node import START_S, Gpu, Run, every, run_series, scrape, scraped, write_history

ENERGY = Figure("energy_gpu_joules", "energy", "energy, GPU")
ALIKE = {"hosts": "a", "drivers": "560", "GPU models": "1 × A100", "units": "steps", "boundaries": "GPU"}
EVER = ("--since", "36500d")


def group(name, *values, half=None, **identity):
    return Group(
        name,
        tuple(
            Member(f"{name}-{i}", None, {**ALIKE, **identity}, frozenset({"GPU-0"}), {ENERGY: Interval(value, half)})
            for i, value in enumerate(values)
        ),
    )


def told(found):
    (line,) = found.lines
    return words(line.differences[1], line.less, line.more)


def test_a_saving_beyond_the_scatter_of_the_repeats_is_named_with_its_interval():
    found = compare([group("a", 100, 101, 99, 100), group("b", 90, 91, 89, 90)])

    (line,) = found.lines
    assert line.levels[0].value == pytest.approx((100 * 101 * 99 * 100) ** 0.25)
    assert line.differences[1].ratio == pytest.approx((90 * 91 * 89 * 90 / (100 * 101 * 99 * 100)) ** 0.25)
    # Student's t of 6 degrees of freedom: s of the logs 0.0087, 2.45 x 0.0087 x sqrt(1/4 + 1/4) = 0.015
    assert line.differences[1].low == pytest.approx(0.9 * math.exp(-0.015), abs=0.006)
    assert told(found).startswith("saves 10")
    assert told(found).endswith("%, n = 8)")


def test_what_may_as_well_be_chance_is_no_clear_difference():
    assert told(compare([group("a", 100, 110, 90), group("b", 99, 108, 93)])).startswith("no clear difference (−")


def test_single_runs_have_the_interval_of_the_measurement_and_the_words_say_so():
    found = compare([group("a", 100, half=1), group("b", 120, half=1.2)])

    (line,) = found.lines
    assert line.differences[1].low == pytest.approx(1.2 * math.exp(-0.01 * math.sqrt(2)))  # 1 % each, in quadrature
    assert told(found).startswith("costs 20.0 % more (18.3 to 21.7 %, n = 2, by the measurement alone")


def test_a_single_run_without_uncertainty_has_no_interval():
    assert told(compare([group("a", 100), group("b", 93)])) == "−7.0 %, how sure nobody knows (n = 2)"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Difference(0.93, 0.90, 0.96, 12, clear=True, repeated=True), "saves 7.0 % (4.0 to 10.0 %, n = 12)"),
        (Difference(0.5, 0.3, 0.7, 12, clear=True, repeated=True), "saves 50 % (30 to 70 %, n = 12)"),
        (Difference(1.0, 0.98, 1.03, 5, clear=False, repeated=True), "no clear difference (−2.0 to +3.0 %, n = 5)"),
    ],
)
def test_words_have_no_more_digits_than_the_interval_allows(found, text):
    assert words(found, "saves {}", "costs {} more") == text


@pytest.mark.parametrize("aspect", list(ALIKE))
def test_runs_that_differ_in_what_matters_are_not_pooled_unless_forced(aspect):
    groups = [group("a", 1, 2), group("b", 1, 2, **{aspect: "another"})]

    with pytest.raises(MixedError, match=f"{aspect}: .*a-0, a-1.*against another .b-0, b-1"):
        compare(groups)
    forced = compare(groups, force=True)
    assert aspect in forced.warnings[0]


def test_a_run_is_in_one_group_only():
    with pytest.raises(TwiceError, match="run a-0 is in a and in a"):
        compare([group("a", 1), group("a", 1)])


@settings(deadline=None)  # the first call imports scipy
@given(st.lists(st.floats(1, 2), min_size=2, max_size=6), st.floats(0.01, 100))
def test_a_ratio_does_not_depend_on_the_unit_and_lies_in_its_interval(values, factor):
    one = [
        [Sample(Interval(v), i) for i, v in enumerate(values)],
        [Sample(Interval(2 * v), i) for i, v in enumerate(values)],
    ]
    other = [[Sample(Interval(factor * sample.value.value), sample.block) for sample in group] for group in one]

    (first,), (second,) = differences(one), differences(other)
    assert first.ratio == pytest.approx(2)
    assert second.ratio == pytest.approx(first.ratio)
    assert first.low <= first.ratio * (1 + 1e-12)
    assert first.high >= first.ratio * (1 - 1e-12)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Model a draws 300 W for 20 s, three times, or little more, model b 270 W: 6,000 and 5,400 J."""
    runs, steps = [], [(START_S - 500, 60)]
    for i in range(6):
        start_s, took_s = START_S + 100 * i, 20 + (0, 0, 0.1, 0.2, 0.2, 0.1)[i]
        labels = {"model": "ab"[i % 2], "repeat": str(i // 2)}
        runs.append(Run(f"r{i}", start_s, start_s + took_s, labels=labels, work={"steps": 100.0}))
        steps += [(start_s, (300, 270)[i % 2]), (start_s + took_s, 60)]
    failed = Run("bad", START_S + 650, START_S + 660, labels={"model": "a"}, outcome="failed")
    gpu = Gpu(steps)
    scrapes = []
    for t in every(1, START_S - 60, START_S + 700):
        values = list(scrape([gpu], failed, t))
        for run in runs:
            values += run_series([gpu], run, t) if run.start_s <= t <= run.end_s + 60 else []
        scrapes.append((t, values))
    return write_history(tmp_path_factory.mktemp("compare"), scraped(scrapes))


def test_groups_by_label_are_compared_in_each_format(analyzer, history):
    asked = ("compare", "model=a", "model=b", "--source", history, *EVER)
    done = analyzer(*asked)
    read = json.loads(analyzer(*asked, "--format", "json").stdout)

    assert done.returncode == 0, done.stderr
    assert "left out: run bad: failed" in done.stderr
    assert "saves 10" in done.stdout
    figures = {(row["figure"], row["group"]): row for row in read["figures"]}
    assert figures["energy_gpu_joules", "model=b"]["ratio"] == pytest.approx(0.9, abs=1e-3)
    assert figures["energy_per_steps_joules", "model=a"]["value"] == pytest.approx(
        60.3, abs=0.1
    )  # 20.1 s x 300 W / 100
    assert figures["duration_seconds", "model=b"]["text"].startswith("no clear difference")
    rows = list(csv.DictReader(io.StringIO(analyzer(*asked, "--format", "csv").stdout)))
    assert [row["figure"] for row in rows] == [row["figure"] for row in read["figures"]]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["r0"], 2, "only one run or group given"),
        (["r0", "=x"], 2, "'=x' is no selector"),
        (["r0", "bad"], 1, "the runs differ in units: steps (r0) against generated_tokens (bad)"),
    ],
)
def test_what_cannot_be_compared_is_one_line(analyzer, history, arguments, code, said):
    done = analyzer("compare", *arguments, "--source", history, *EVER)

    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr

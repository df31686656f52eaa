"""Tables of samples: labels, newest samples, parts and joins."""

import numpy as np

from wattline.contract import metrics as m
from wattline_analyzer.core.sample_table import (
    around,
    join_tables,
    last,
    rows_of,
    samples,
    table_of,
)

POWER, WORK = m.GPU_POWER.name, m.RUN_WORK.name


def series(name, times, values, **labels):
    return (
        {"__name__": name, **labels},
        np.array(times, dtype=np.float64),
        np.array(values, dtype=np.float64),
    )


def node():
    return table_of(
        [
            series(POWER, [1, 2, 3], [10, 20, np.nan], instance="b", uuid="GPU-1", job="x"),
            series(POWER, [1, 2.5], [11, 21], instance="a", uuid="GPU-1", rack="r"),
            series(WORK, [2], [7], instance="a", run_id="r", unit="steps"),
        ]
    )


def test_table_leaves_out_samples_that_are_not_finite():
    assert node().value.tolist() == [10, 20, 11, 21, 7]


def test_table_label_that_a_series_lacks_is_empty():
    table = node()

    assert table.labels == (
        "metric",
        "instance",
        "rack",
        "run_id",
        "unit",
        "uuid",
    )  # the job is no label
    assert table.texts("unit") == ["", "", "", "", "steps"]
    assert table.texts("unknown") == [""] * 5
    assert table.distinct("rack") == ["", "r"]
    assert table.where("instance", ["a", "c"]).tolist() == [False, False, True, True, True]
    assert rows_of(table, m.GPU_POWER, rack="").texts("instance") == ["b", "b"]


def test_table_part_of_a_part_keeps_its_labels():
    part = rows_of(node(), m.GPU_POWER).take(np.array([3, 0]))

    assert [(row.t, row.value, row.instance, row.labels) for row in part.rows()] == [
        (2.5, 21.0, "a", {"uuid": "GPU-1", "rack": "r"}),
        (1.0, 10.0, "b", {"uuid": "GPU-1"}),
    ]
    assert part.take(part.t > 2).distinct("instance") == ["a"]


def test_table_groups_are_in_order_of_their_texts():
    groups = {texts: part.value.tolist() for texts, part in node().groups("instance", "uuid")}

    assert list(groups.items()) == [
        (("a", ""), [7]),
        (("a", "GPU-1"), [11, 21]),
        (("b", "GPU-1"), [10, 20]),
    ]
    assert list(table_of([]).groups("instance")) == []


def test_table_last_ignores_labels_outside_the_contract():
    table = join_tables(
        [node(), table_of([series(POWER, [2.2], [25], instance="b", uuid="GPU-1", rack="moved")])]
    )

    newest = [(row.instance, row.t, row.value) for row in last(table, m.GPU_POWER)]
    assert newest == [("b", 2.2, 25.0), ("a", 2.5, 21.0)]
    assert [row.value for row in last(table, m.GPU_POWER, instance="b")] == [25.0]


def test_table_join_keeps_all_samples_and_labels():
    joined = join_tables(
        [node(), table_of([]), table_of([series(WORK, [9], [8], run_id="q", phase="p")])]
    )

    assert joined.value.tolist() == [10, 20, 11, 21, 7, 8]
    assert joined.texts("phase") == ["", "", "", "", "", "p"]
    assert joined.texts("instance") == ["b", "b", "a", "a", "a", ""]
    assert joined.texts("run_id") == ["", "", "", "", "r", "q"]


def test_table_of_instance_replaces_only_the_instance():
    moved = node().of_instance("gpu01")

    assert moved.distinct("instance") == ["gpu01"]
    assert moved.texts("unit") == node().texts("unit")


def test_samples_are_in_time_order_and_once_per_time():
    table = table_of(
        [series(POWER, [3, 1], [30, 10], uuid="u"), series(POWER, [1, 2], [99, 20], uuid="u")]
    )

    assert samples(table, m.GPU_POWER, uuid="u").t.tolist() == [1, 2, 3]
    assert samples(table, m.GPU_POWER, uuid="u").value.tolist() == [10, 20, 30]


def test_around_includes_the_scrapes_next_to_the_range():
    table = table_of([series(POWER, [5, 1, 2, 3, 9, 8], [5, 1, 2, 3, 9, 8], uuid="u")])

    assert around(table, 2.5, 4).t.tolist() == [2, 3, 5]
    assert around(table, 0, 1.5).t.tolist() == [1, 2]
    assert around(table, 10, 11).t.tolist() == [9]

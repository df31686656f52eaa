"""Intervals by class of load, sensor and edges."""

import random
from itertools import product

import numpy as np
import pytest

from tests.calibration.windows import SENSORS
from tests.exporter.meter.replay import START_S
from tests.laboratory.classes import RESULTS, class_table, loaded_gpu, measure_class
from tests.laboratory.clients import EDGES, LATEST_S
from tests.laboratory.loads import CLASSES
from tests.laboratory.results import stored_rows

INSTANT = SENSORS[0]


@pytest.mark.parametrize("edges", EDGES)
def test_flat_load_is_inside_its_interval_at_all_edges(edges):
    draws = measure_class(random.Random(edges), "flat", INSTANT, edges, 20)

    assert sum(abs(draw.error_j) <= draw.half_width_j for draw in draws) == 20


def powers_w(load, seed, begin_s, seconds):
    """Return the powers of a drawn load in a run."""
    gpu = loaded_gpu(random.Random(seed), load, seconds).gpu
    segment = gpu.segments[-1]
    times = np.linspace(begin_s, begin_s + seconds, 2_000) - segment.begin_s
    return {segment.load.demand_w(t) for t in times}


@pytest.mark.parametrize("begin_s", [START_S, START_S + LATEST_S])
@pytest.mark.parametrize("load", [name for name in CLASSES if name != "flat"])
def test_load_changes_during_the_earliest_and_the_latest_run(load, begin_s):
    """A wave of 20 s may not change in a run of 10 s; the other loads change in each."""
    changed = [len(powers_w(load, seed, begin_s, 10.0)) > 1 for seed in range(40)]

    assert sum(changed) >= 36


def test_same_seed_gives_the_same_runs():
    name = "wave that beats with the updates"
    first, second = (
        measure_class(random.Random(7), name, INSTANT, "at random", 2) for _ in range(2)
    )

    assert first == second


def test_stored_classes_are_all_combinations():
    found = [(row["load"], row["sensor"], row["edges"]) for row in stored_rows(RESULTS)]

    assert sorted(found) == sorted(product(CLASSES, [sensor.title for sensor in SENSORS], EDGES))


def test_class_table_has_a_row_for_each_load():
    lines = class_table().splitlines()[2:]

    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == list(CLASSES)

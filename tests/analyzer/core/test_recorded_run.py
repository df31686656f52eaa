"""A run read from the samples of its series on several instances."""

from dataclasses import replace

import numpy as np
import pytest

from wattline.contract import metrics as m
from wattline.contract.api import RunGpu
from wattline.contract.run import Run, RunDevice, RunFormatError, RunPhase
from wattline.contract.run_series import to_rows
from wattline.figures import Figure
from wattline_analyzer.core.devices import DeviceKey, GpuModel
from wattline_analyzer.core.facts import newest_facts
from wattline_analyzer.core.recorded_run import RUN_FACTS, RUN_TIMES, read_run
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.core.timeline import Window

START_S = 1.8e9
TIMES = [metric.name for metric in RUN_TIMES]
SIMULATED = {"GPU-a": GpuModel("SIMULATED NVIDIA H100", "Hopper")}
RUN = Run(
    run_id="r-1",
    workload="train",
    state="ended",
    started_at=START_S,
    duration_s=60.0,
    outcome="ok",
    ended_at=START_S + 60,
    gpus=(RunGpu("0", "GPU-a", "SIMULATED NVIDIA H100", "Hopper"),),
    devices=(RunDevice("gpu", "GPU-a", Figure(6_000.0, 30.0), node="a"),),
    work={"steps": 30.0},
)
OTHER = replace(
    RUN,
    started_at=START_S + 1,
    gpus=(),
    devices=(RunDevice("cpu", "0", Figure(600.0, 4.0), node="b"),),
    work={"steps": 20.0},
)


def series(run, instance, at_s=START_S + 62, metrics=m.METRICS):
    """Return the run's series with one sample each."""
    return [
        (
            {"__name__": row.metric.name, "instance": instance, **row.labels},
            np.array([at_s]),
            np.array([row.value]),
        )
        for row in to_rows(run)
        if row.metric in metrics
    ]


def read(found, models=SIMULATED, **options):
    """Return the run of these series and its scrapes."""
    times = table_of(one for one in found if one[0]["__name__"] in TIMES)
    facts = newest_facts(m.METRICS, [found])
    return read_run([fact for fact in facts if fact.metric in RUN_FACTS], times, models, **options)


def test_read_run_of_one_instance_is_the_recorded_run():
    run, scrapes = read(series(RUN, "a"))

    assert run == RUN
    assert scrapes.windows["a"].end_s == START_S + 60
    assert scrapes.ages["a"].value.tolist() == [60.0]
    assert not scrapes.aliases


def test_read_run_of_two_instances_adds_them():
    run, _ = read([*series(RUN, "a"), *series(OTHER, "b")])

    assert [(one.node, one.component) for one in run.devices] == [("a", "gpu"), ("b", "cpu")]
    assert run.work == {"steps": 50.0}
    assert (run.started_at, run.duration_s) == (START_S, 60.0)


def test_read_run_counts_the_newest_samples_only():
    earlier = series(replace(RUN, work={"steps": 10.0}), "a", START_S + 30)

    run, _ = read([*series(RUN, "a"), *earlier])

    assert run.work == {"steps": 30.0}


def test_read_run_leaves_out_an_alias_but_not_in_a_range():
    found = [*series(RUN, "a"), *series(RUN, "b")]

    run, scrapes = read(found)
    whole, _ = read(found, untagged=True)

    assert scrapes.aliases == {"b": "a"}
    assert list(scrapes.windows) == ["a"]
    assert scrapes.instances == ["a", "b"]
    assert run == RUN
    assert len(whole.devices) == 2


def test_read_run_of_ledger_that_began_again_has_the_time_of_both():
    """60 s at the old address, 10 s without a ledger, and 30 s at the new one."""
    again = replace(RUN, started_at=START_S + 70, ended_at=START_S + 100, duration_s=30.0)

    run, scrapes = read([*series(RUN, "b"), *series(again, "a", START_S + 101)])

    assert scrapes.windows == {"a": Window(START_S, START_S + 100, True, 100.0)}
    assert scrapes.aliases == {"b": "a"}
    assert run.work == {"steps": 60.0}
    assert run.energy("gpu").value == 12_000.0


def test_read_run_names_devices_without_covered_ratio():
    known = [metric for metric in m.METRICS if metric is not m.RUN_COVERED_RATIO]

    _, scrapes = read([*series(RUN, "a"), *series(OTHER, "b", metrics=known)])

    assert scrapes.without_ratio == {DeviceKey("b", "cpu", "0")}


def test_read_run_phases_have_the_order_of_their_first_starts():
    """`load` is entered again after `measure`."""
    phases = tuple(
        RunPhase(name, start_s, 10.0, {}, {}, start_s)
        for name, start_s in (("measure", START_S + 10), ("load", START_S + 40))
    )
    first = RunPhase("load", START_S, 5.0, {}, {}, START_S)
    earlier = series(replace(RUN, phases=(first,)), "a", START_S + 8)

    run, _ = read([*earlier, *series(replace(RUN, phases=phases), "a")])

    assert [(one.name, one.started_at, one.last_started_at) for one in run.phases] == [
        ("load", START_S, START_S + 40),
        ("measure", START_S + 10, START_S + 10),
    ]
    assert [one.duration_s for one in run.phases] == [10.0, 10.0]


def test_read_run_phases_of_one_scrape_have_the_order_of_their_starts():
    phases = (
        RunPhase("warmup", START_S, 10.0, {}, {}, START_S),
        RunPhase("measure", START_S + 10, 20.0, {}, {}, START_S + 10),
    )

    run, _ = read(series(replace(RUN, phases=phases), "a"))

    assert run.phases == phases


def test_read_run_without_start_is_refused():
    known = [metric for metric in m.METRICS if metric is not m.RUN_START]

    with pytest.raises(RunFormatError, match="no series of its start"):
        read(series(RUN, "a", metrics=known), {})

"""Energy of the work of each run, from the tallies of its series."""

from dataclasses import replace

import numpy as np
import pytest

from wattline.contract.api import RunGpu
from wattline.contract.run import Run, RunDevice, RunPhase
from wattline.contract.run_series import to_rows
from wattline.figures import Figure
from wattline_analyzer.usage.tallies import METRICS, read_window, run_of
from wattline_analyzer.usage.unit_energy import METRICS as UNIT_METRICS
from wattline_analyzer.usage.unit_energy import joules_of_work

START_S = 1.8e9
RUN = Run(
    run_id="r-1",
    workload="train",
    state="ended",
    started_at=START_S,
    duration_s=10.0,
    outcome="ok",
    ended_at=START_S + 10,
    gpus=(RunGpu("0", "GPU-a", "NVIDIA H100"),),
    devices=(RunDevice("gpu", "GPU-a", Figure(3_000.0, 3.0)),),
    work={"steps": 10.0},
)


def joules(runs, *, by_node=False):
    """Return the joules of the work of `runs` by node, from one scrape of each."""
    metrics = (*METRICS, *UNIT_METRICS)
    part = [
        (
            {"__name__": row.metric.name, "instance": node, **row.labels},
            np.array([START_S + 12]),
            np.array([row.value]),
        )
        for node, run in runs.items()
        for row in to_rows(run)
        if row.metric in metrics
    ]
    window = read_window([part], START_S - 60, metrics)
    return joules_of_work(window, run_of if by_node else lambda tally: ("", run_of(tally)[1]))


def test_joules_of_work_are_those_of_the_run():
    assert joules({"a": RUN}) == {(("", "r-1"), "steps"): pytest.approx(3_000)}


def test_joules_of_work_in_a_phase_are_those_of_the_phase():
    phase = RunPhase("measure", START_S, 5.0, {"gpu": Figure(1_800.0)}, {"steps": 10.0})

    found = joules({"a": replace(RUN, phases=(phase,))})

    assert found == {(("", "r-1"), "steps"): pytest.approx(1_800)}


def test_joules_of_work_on_a_shared_gpu_and_another_one_add():
    """1,200 J of the shared GPU are the run's, and all 2,000 J of the other one."""
    shared = RunDevice("gpu", "GPU-a", Figure(3_000.0, 3.0), attributed_j=1_200.0)
    alone = replace(
        RUN,
        gpus=(RunGpu("0", "GPU-b", "NVIDIA H100"),),
        devices=(RunDevice("gpu", "GPU-b", Figure(2_000.0, 3.0)),),
        work={},
    )

    found = joules({"a": replace(RUN, devices=(shared,)), "b": alone})

    assert found == {(("", "r-1"), "steps"): pytest.approx(3_200)}


def test_joules_of_work_by_node_have_the_energy_of_each_node():
    other = replace(RUN, gpus=(), devices=(RunDevice("cpu", "0", Figure(500.0, 1.0)),))

    assert joules({"a": RUN, "b": other}, by_node=True) == {
        (("a", "r-1"), "steps"): pytest.approx(3_000),
        (("b", "r-1"), "steps"): pytest.approx(500),
    }

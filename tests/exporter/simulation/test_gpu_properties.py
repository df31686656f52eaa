"""Properties of simulated GPUs with any history of loads and limits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exporter.simulation.conftest import H200, STEPS
from wattline_exporter.simulation import Constant, Ramp, Square, Trace, counter_j, make_gpus
from wattline_exporter.simulation.card import Segment, SimulatedGpuState
from wattline_exporter.simulation.gpu import cumulative_capped_s, energy_j, with_limit, with_load

watts = st.floats(0, 800)


loads = st.one_of(
    st.builds(Constant, watts),
    st.builds(Square, watts, watts, st.floats(0.01, 10), st.floats(0, 1), st.floats(0, 10)),
    st.builds(Ramp, watts, watts, st.floats(0.1, 20)),
    st.builds(Trace, st.just(STEPS), st.floats(0, 5)),
)


@st.composite
def gpus(draw) -> SimulatedGpuState:
    """Return a GPU with a history of up to 30 loads and limits from 1000 s on."""
    gpu = make_gpus(8, H200)[draw(st.integers(0, 7))]
    gpu = replace(
        gpu, segments=(Segment(1_000.0, 0.0, gpu.limit_w, 1_000.0, Constant(78)),), changes=1
    )
    now = 1_000.0
    for pause_s, change in draw(
        st.lists(st.tuples(st.floats(0, 5), st.one_of(loads, st.floats(200, 700))), max_size=30)
    ):
        now += pause_s
        gpu = (
            with_limit(gpu, change, now)
            if isinstance(change, float)
            else with_load(gpu, change, now)
        )
    return gpu


instants = st.floats(990, 1_200)


@given(gpus(), st.tuples(instants, instants, instants).map(sorted))
def test_gpu_energies_of_adjacent_windows_add_up(gpu, times):
    t0, t1, t2 = times

    assert energy_j(gpu, t0, t1) + energy_j(gpu, t1, t2) == pytest.approx(
        energy_j(gpu, t0, t2), abs=1e-6
    )


@given(gpus(), instants, instants)
def test_gpu_energy_is_between_zero_and_the_limit(gpu, t0, t1):
    t0, t1 = min(t0, t1), max(t0, t1)

    assert -1e-6 <= energy_j(gpu, t0, t1) <= 700 * (t1 - t0) + 1e-6


@given(gpus(), st.lists(instants, min_size=2).map(sorted))
def test_gpu_capped_time_rises_no_faster_than_time(gpu, times):
    for before_s, after_s in itertools.pairwise(times):
        capped_s = cumulative_capped_s(gpu, after_s) - cumulative_capped_s(gpu, before_s)
        assert -1e-6 <= capped_s <= after_s - before_s + 1e-6


@given(gpus(), st.lists(instants, min_size=2).map(sorted))
def test_gpu_counter_never_falls(gpu, times):
    counted = [counter_j(gpu, t) for t in times]

    assert counted == sorted(counted)


@given(gpus(), instants)
def test_gpu_counter_is_the_true_energy_at_its_last_update(gpu, t):
    truth_j = energy_j(gpu, 1_000.0, max(1_000.0, t))

    assert truth_j - 0.1 * 700 - 0.002 <= counter_j(gpu, t) <= truth_j + 1e-5

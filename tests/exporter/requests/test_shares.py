"""Shares of two runs in the energy of a GPU of 300 W."""

from types import SimpleNamespace

import numpy as np
import pytest

from exporter.model import Device
from exporter.requests.shares import GpuShares

GPU = Device("gpu", "GPU-1")
METER = SimpleNamespace(mark=lambda t_s: SimpleNamespace(joules=300.0 * t_s, half_width_j=1.0))


@pytest.fixture
def shares():
    """Run a uses 200 W and run b 100 W from 10 s on; their energies are known from 20 s on."""
    now = [0.0]
    shares = GpuShares(lambda _, run_id: {"a": 200.0, "b": 100.0}[run_id] * max(0.0, now[0] - 10.0))
    shares.join("a", GPU, 10.0, 10.0)
    shares.join("b", GPU, 15.0, 10.0)
    for now[0] in (20.0, 21.0, 22.0):
        shares.note_energies(now[0])
    return shares


def energies(shares, *edges_s):
    return {name: np.diff(shares.energy_at(name, GPU, METER, np.array(edges_s))[0]).tolist() for name in "ab"}


def test_shares_follow_the_attributed_energies(shares):
    assert energies(shares, 20.0, 20.5, 22.0) == {"a": [100.0, 300.0], "b": [50.0, 150.0]}


def test_time_before_the_first_tick_has_the_shares_of_the_first_second(shares):
    found = energies(shares, 10.0, 15.0, 20.0)

    assert found["a"] == pytest.approx([1_500.0, 1_000.0])
    assert found["b"] == pytest.approx([0.0, 500.0])


def test_energies_that_are_not_known_yet_give_equal_shares():
    shares = GpuShares(lambda *_: 0.0)
    for name in "ab":
        shares.join(name, GPU, 0.0, 0.0)
    shares.note_energies(5.0)

    assert energies(shares, 0.0, 10.0) == {"a": [1_500.0], "b": [1_500.0]}


def test_run_that_reports_late_has_its_share_of_the_time_before():
    """Run b holds the GPU from 10 s on. Its first report, at 30 s, is of a request since 22 s."""
    now = [0.0]
    shares = GpuShares(lambda _, run_id: {"a": 200.0, "b": 100.0}[run_id] * max(0.0, now[0] - 10.0))
    shares.join("a", GPU, 10.0, 10.0)
    for now[0] in range(12, 31):
        shares.note_energies(float(now[0]), ["b"])
    shares.join("b", GPU, 22.0, 10.0)

    found = energies(shares, 20.0, 22.0, 24.0, 30.0)

    assert found["a"] == pytest.approx([600.0, 400.0, 1_200.0])
    assert found["b"] == pytest.approx([0.0, 200.0, 600.0])


def test_shares_of_a_final_run_stay_for_the_other_one():
    """Run b ends at 15 s, and its requests are final at 20 s; slots of run a may wait longer."""
    shares = GpuShares(lambda *_: 0.0)
    shares.join("a", GPU, 0.0, 0.0)
    shares.join("b", GPU, 0.0, 5.0)
    shares.end("b", 15.0)
    shares.note_energies(20.0)
    shares.leave("b")

    edges_s = np.array([0.0, 4.0, 8.0, 14.0, 16.0])

    assert shares.idle_shares("a", GPU, edges_s).tolist() == pytest.approx([1.0, 0.625, 0.5, 0.75])
    assert [run_id for run_id, *_ in shares.starts_s()] == ["a"]
    for now_s in range(21, 621):
        shares.note_energies(float(now_s))
    assert shares.idle_shares("a", GPU, edges_s).tolist() == [1.0] * 4

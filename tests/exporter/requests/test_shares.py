"""Shares of two runs in the energy of a GPU of 300 W."""

from types import SimpleNamespace

import numpy as np
import pytest

from wattline_exporter.attribution.device_loads import GpuLoadPeriod
from wattline_exporter.requests.shares import GpuShares
from wattline_exporter.sensors.readings import Device

GPU = Device("gpu", "GPU-1")
METER = SimpleNamespace(energy_at=lambda times_s: (300.0 * times_s, np.ones(len(times_s))))


def shares_of(a, b, *, begin_s=20.0, idle_w=None, from_s=(10.0, 15.0)):
    """Runs a and b, open since 10 s, whose processes are read each second, with their loads in each
    of them.
    """
    read = [
        GpuLoadPeriod(begin_s + k, begin_s + k + 1, {"a": u, "b": v})
        for k, (u, v) in enumerate(zip(a, b, strict=True))
    ]
    shares = GpuShares(
        lambda _, since_s: [each for each in read if each.end_s > since_s], lambda _: idle_w
    )
    for name, join_s in zip("ab", from_s, strict=True):
        shares.join(name, GPU, join_s, 10.0)
    shares.note_loads(begin_s + len(read))
    return shares


def energies(shares, *edges_s):
    return {
        name: np.diff(shares.energy_at(name, GPU, METER, np.array(edges_s))[0]).tolist()
        for name in "ab"
    }


def test_shares_follow_the_loads():
    found = energies(shares_of([0.4] * 3, [0.2] * 3), 20.0, 20.5, 22.0)

    assert found == {"a": pytest.approx([100.0, 300.0]), "b": pytest.approx([50.0, 150.0])}


def test_idle_power_is_shared_equally():
    """The runs have equal parts of 60 W, and 2 : 1 of the 240 W above."""
    found = energies(shares_of([0.4] * 3, [0.2] * 3, idle_w=60.0), 20.0, 22.0)

    assert found == {"a": pytest.approx([380.0]), "b": pytest.approx([220.0])}


def test_loads_that_change_within_a_period_change_once():
    """The load of b grows from 0 to 0.6 at 21.75 s, so that its mean of that second is 0.15."""
    shares = shares_of([0.4] * 4, [0.0, 0.15, 0.6, 0.6])

    found = energies(shares, 20.0, 21.0, 21.75, 22.0, 23.0)

    assert found["a"] == pytest.approx([300.0, 225.0, 30.0, 120.0])
    assert found["b"] == pytest.approx([0.0, 0.0, 45.0, 180.0])


def test_peak_of_a_load_within_a_period_keeps_its_mean():
    found = energies(shares_of([0.2] * 4, [0.1, 0.4, 0.1, 0.1]), 21.0, 21.5, 22.0)

    assert found["b"] == pytest.approx([100.0, 100.0])


def test_loads_are_known_up_to_the_last_but_one_reading():
    shares = shares_of([0.4] * 3, [0.2] * 3)

    assert shares.known_s([GPU], 23.5) == 22.0
    assert shares.known_s([GPU], 40.0) == 35.5, "loads that stay unknown delay no energy"


def test_time_before_the_first_period_has_its_shares():
    found = energies(shares_of([0.4] * 3, [0.2] * 3), 10.0, 15.0, 20.0)

    assert found["a"] == pytest.approx([1_500.0, 1_000.0])
    assert found["b"] == pytest.approx([0.0, 500.0])


def test_loads_that_are_not_known_yet_give_equal_shares():
    found = energies(shares_of([], [], begin_s=5.0, from_s=(0.0, 0.0)), 10.0, 20.0)

    assert found == {"a": [1_500.0], "b": [1_500.0]}


def test_load_that_was_not_read_is_that_of_the_nearest_period():
    """Run b ends at 22.5 s; the processes of the last second are read after that, without it."""
    read = [
        GpuLoadPeriod(20.0 + k, 21.0 + k, {"a": 0.4, "b": 0.2} if k < 2 else {"a": 0.4})
        for k in range(4)
    ]
    shares = GpuShares(lambda *_: read, lambda _: None)
    shares.join("a", GPU, 10.0, 10.0)
    shares.join("b", GPU, 10.0, 10.0)
    shares.end("b", 22.5)
    shares.note_loads(24.0)

    found = energies(shares, 22.0, 22.5, 23.0)

    assert found == {"a": pytest.approx([100.0, 150.0]), "b": pytest.approx([50.0, 0.0])}


def test_run_that_reports_late_has_its_share_of_the_time_before():
    """Run b holds the GPU from 10 s on. Its first report, at 30 s, is of a request since 22 s."""
    found = energies(
        shares_of([0.4] * 20, [0.2] * 20, begin_s=10.0, from_s=(10.0, 22.0)), 20.0, 22.0, 24.0, 29.0
    )

    assert found["a"] == pytest.approx([600.0, 400.0, 1_000.0])
    assert found["b"] == pytest.approx([0.0, 200.0, 500.0])


def test_shares_of_a_final_run_stay_for_the_other_one():
    """Run b ends at 15 s, and its requests are final at 20 s; slots of run a may wait longer."""
    shares = GpuShares(lambda *_: (), lambda _: None)
    shares.join("a", GPU, 0.0, 0.0)
    shares.join("b", GPU, 0.0, 5.0)
    shares.end("b", 15.0)
    shares.note_loads(20.0)
    shares.leave("b")

    edges_s = np.array([0.0, 4.0, 8.0, 14.0, 16.0])

    assert shares.idle_shares("a", GPU, edges_s).tolist() == pytest.approx([1.0, 0.625, 0.5, 0.75])
    assert [run_id for run_id, *_ in shares.starts_s()] == ["a"]
    shares.note_loads(616.0)
    assert shares.idle_shares("a", GPU, edges_s).tolist() == [1.0] * 4

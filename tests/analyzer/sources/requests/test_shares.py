"""Energy of a GPU of two servers whose true joules are known."""

import numpy as np
import pytest

from analyzer.model.samples import Samples
from analyzer.sources.requests.shares import RunsOnGpu

TIMES_S = np.arange(0.0, 101.0)
METER = Samples(TIMES_S, 300.0 * TIMES_S)
"""300 W."""


def used(power_w, begin_s=0.0, end_s=100.0):
    return Samples(TIMES_S, power_w * (np.clip(TIMES_S, begin_s, end_s) - begin_s))


def own_energies(starts_s, loads, edges_s):
    return {name: RunsOnGpu(name, starts_s, loads).own_energy(METER, np.array(edges_s)) for name in starts_s}


def test_run_has_the_part_that_is_attributed_to_it():
    found = own_energies({"a": -5.0, "b": -5.0}, {"a": used(200.0), "b": used(100.0)}, [0.0, 0.5, 7.25, 100.0])

    assert found["a"].joules.tolist() == pytest.approx([100.0, 1350.0, 18_550.0], rel=1e-12)
    assert found["b"].joules.tolist() == pytest.approx([50.0, 675.0, 9_275.0], rel=1e-12)
    assert found["a"].idle_ratio.tolist() == pytest.approx([0.5, 0.5, 0.5])


def test_run_alone_has_all_energy_until_the_other_reports_requests():
    """Run b uses half of the GPU from 20 s on, and its first report counts from 40.5 s on."""
    loads = {"a": Samples(TIMES_S, 300.0 * TIMES_S - 150.0 * np.maximum(TIMES_S - 20.0, 0.0)), "b": used(150.0, 20.0)}

    found = own_energies({"a": 10.0, "b": 40.5}, loads, [0.0, 40.0, 41.0, 100.0])

    assert found["a"].joules.tolist() == pytest.approx([300 * 40.0 - 0.0, 225.0, 150 * 59.0])
    assert found["b"].joules.tolist() == pytest.approx([0.0, 75.0, 150 * 59.0])
    assert found["a"].idle_ratio.tolist() == pytest.approx([1.0, 0.75, 0.5])


def test_time_before_all_requests_is_divided_by_attribution():
    found = own_energies({"a": 50.0, "b": 60.0}, {"a": used(100.0), "b": used(200.0)}, [0.0, 50.0, 60.0, 100.0])

    assert found["a"].joules.tolist() == pytest.approx([5_000.0, 3_000.0, 4_000.0])
    assert found["b"].joules.tolist() == pytest.approx([10_000.0, 0.0, 8_000.0])


def test_run_has_all_energy_after_the_end_of_the_other():
    found = own_energies({"a": 0.0, "b": 0.0}, {"a": used(300.0), "b": used(0.0)}, [0.0, 100.0])

    assert (found["a"].joules[0], found["b"].joules[0]) == (30_000.0, 0.0)
    assert (found["a"].idle_ratio[0], found["b"].idle_ratio[0]) == (1.0, 0.0)


def test_energy_without_attribution_is_divided_equally():
    none = Samples(np.empty(0), np.empty(0))

    found = own_energies({"a": 0.0, "b": 25.0, "c": 25.0}, {"a": none, "b": none, "c": none}, [0.0, 25.0, 100.0])

    assert found["a"].joules.tolist() == pytest.approx([7_500.0, 7_500.0])
    assert found["b"].joules.tolist() == pytest.approx([0.0, 7_500.0])


def test_parts_of_random_loads_add_up_to_the_meter():
    rng = np.random.default_rng(7)
    times_s = np.cumsum(rng.uniform(0.5, 1.5, 5_000))
    meter = Samples(times_s, np.cumsum(rng.uniform(0, 700, 5_000)))
    loads = {name: Samples(times_s, np.cumsum(rng.uniform(0, 300, 5_000))) for name in "abc"}
    starts_s = {"a": -np.inf, "b": 1_000.3, "c": 2_000.7}
    edges_s = np.sort(rng.uniform(times_s[0], times_s[-1], 3_000))

    parts = [RunsOnGpu(name, starts_s, loads).own_energy(meter, edges_s).joules for name in "abc"]

    whole = np.diff(np.interp(edges_s, meter.t, meter.value))
    assert np.abs(sum(parts) - whole).max() <= 1e-9 * whole.max()
    assert sum(part.sum() for part in parts) == pytest.approx(whole.sum(), rel=1e-12)

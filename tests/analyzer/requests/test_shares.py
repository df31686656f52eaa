"""Energy of a GPU of two servers whose true joules are known."""

import numpy as np
import pytest

from wattline_analyzer.core.samples import Samples
from wattline_analyzer.requests.shares import RunsOnGpu, RunUse, by_loads

TIMES_S = np.arange(0.0, 101.0)
NOTHING = Samples(np.empty(0), np.empty(0))
METER = Samples(TIMES_S, 300.0 * TIMES_S)
"""300 W."""


def used(power_w, begin_s=0.0, end_s=100.0):
    return Samples(TIMES_S, power_w * (np.clip(TIMES_S, begin_s, end_s) - begin_s))


def own_energies(starts_s, loads, edges_s, open_s=None):
    """Return the parts of all runs, which are open all the time or by `open_s`."""
    always = dict.fromkeys(starts_s, (-np.inf, np.inf))
    uses = {
        name: RunUse(at, (always | (open_s or {}))[name], loads[name])
        for name, at in starts_s.items()
    }
    return {
        name: RunsOnGpu(name, uses, NOTHING).own_energy(METER, np.array(edges_s))
        for name in starts_s
    }


def test_run_has_the_part_that_is_attributed_to_it():
    found = own_energies(
        {"a": -5.0, "b": -5.0}, {"a": used(200.0), "b": used(100.0)}, [0.0, 0.5, 7.25, 100.0]
    )

    assert found["a"].joules.tolist() == pytest.approx([100.0, 1350.0, 18_550.0], rel=1e-12)
    assert found["b"].joules.tolist() == pytest.approx([50.0, 675.0, 9_275.0], rel=1e-12)
    assert found["a"].idle_ratio.tolist() == pytest.approx([0.5, 0.5, 0.5])


def test_run_alone_has_all_energy_until_the_other_reports_requests():
    """Run b uses half of the GPU from 20 s on, and its first report counts from 40.5 s on."""
    loads = {
        "a": Samples(TIMES_S, 300.0 * TIMES_S - 150.0 * np.maximum(TIMES_S - 20.0, 0.0)),
        "b": used(150.0, 20.0),
    }

    found = own_energies({"a": 10.0, "b": 40.5}, loads, [0.0, 40.0, 41.0, 100.0])

    assert found["a"].joules.tolist() == pytest.approx([300 * 40.0 - 0.0, 225.0, 150 * 59.0])
    assert found["b"].joules.tolist() == pytest.approx([0.0, 75.0, 150 * 59.0])
    assert found["a"].idle_ratio.tolist() == pytest.approx([1.0, 0.75, 0.5])


def test_time_before_all_requests_is_divided_by_attribution():
    found = own_energies(
        {"a": 50.0, "b": 60.0}, {"a": used(100.0), "b": used(200.0)}, [0.0, 50.0, 60.0, 100.0]
    )

    assert found["a"].joules.tolist() == pytest.approx([5_000.0, 3_000.0, 4_000.0])
    assert found["b"].joules.tolist() == pytest.approx([10_000.0, 0.0, 8_000.0])


def test_run_has_all_energy_after_the_end_of_the_other():
    """Run b ends between two samples, with the last of its 200 J at 2.5 s; run a uses the rest."""
    a = Samples(TIMES_S, 300.0 * TIMES_S - 80.0 * np.minimum(TIMES_S, 2.5))

    found = own_energies(
        {"a": 0.0, "b": 0.0},
        {"a": a, "b": used(80.0, 0.0, 2.5)},
        [0.0, 2.5, 100.0],
        {"b": (0, 2.5)},
    )

    assert found["b"].joules.tolist() == pytest.approx([200.0, 0.0])
    assert found["a"].joules.tolist() == pytest.approx([2 * 220 + 0.5 * 260, 0.5 * 260 + 97 * 300])
    assert found["a"].idle_ratio.tolist() == pytest.approx([0.5, 1.0])


def test_energy_after_both_runs_have_ended_belongs_to_none():
    """Both runs end at 2.5 s, between two samples; the GPU then uses 60 W."""
    meter = Samples(
        TIMES_S, 300.0 * np.minimum(TIMES_S, 2.5) + 60.0 * np.maximum(TIMES_S - 2.5, 0.0)
    )
    uses = {
        name: RunUse(0.0, (0.0, 2.5), used(power_w, 0.0, 2.5))
        for name, power_w in (("a", 200.0), ("b", 100.0))
    }
    rest = Samples(TIMES_S, 60.0 * np.maximum(TIMES_S - 2.5, 0.0))

    parts = [
        RunsOnGpu(name, uses, rest).own_energy(meter, np.array([0.0, 1.0, 2.5])).joules.sum()
        for name in "ab"
    ]

    assert parts == pytest.approx([500.0, 250.0], rel=0.02)


def test_energy_of_the_first_second_of_a_run_counts():
    """Run b begins at 10.5 s; its first sample, at 11 s, already has 100 J."""
    b = Samples(TIMES_S[11:], 100.0 + 200.0 * (TIMES_S[11:] - 11.0))
    a = Samples(TIMES_S, 300.0 * TIMES_S - 200.0 * np.maximum(TIMES_S - 10.5, 0.0))

    found = own_energies(
        {"a": 0.0, "b": 0.0}, {"a": a, "b": b}, [0.0, 10.5, 11.0, 100.0], {"b": (10.5, np.inf)}
    )

    assert found["b"].joules.tolist() == pytest.approx([0.0, 100.0, 200 * 89.0])
    assert found["a"].joules.tolist() == pytest.approx([3_100.0, 100.0, 100 * 89.0])


def test_energy_without_attribution_is_divided_equally():
    found = own_energies(
        {"a": 0.0, "b": 25.0, "c": 25.0}, dict.fromkeys("abc", NOTHING), [0.0, 25.0, 100.0]
    )

    assert found["a"].joules.tolist() == pytest.approx([7_500.0, 7_500.0])
    assert found["b"].joules.tolist() == pytest.approx([0.0, 7_500.0])


def test_parts_of_random_loads_add_up_to_the_meter():
    rng = np.random.default_rng(7)
    times_s = np.cumsum(rng.uniform(0.5, 1.5, 5_000))
    meter = Samples(times_s, np.cumsum(rng.uniform(0, 700, 5_000)))
    loads = {name: Samples(times_s, np.cumsum(rng.uniform(0, 300, 5_000))) for name in "abc"}
    starts_s = {"a": -np.inf, "b": 1_000.3, "c": 2_000.7}
    edges_s = np.sort(rng.choice(times_s, 3_000, replace=False))

    open_s = {"a": (-np.inf, np.inf), "b": (900.2, 4_000.1), "c": (2_000.0, np.inf)}
    uses = {name: RunUse(starts_s[name], open_s[name], loads[name]) for name in "abc"}
    parts = [RunsOnGpu(name, uses, NOTHING).own_energy(meter, edges_s).joules for name in "abc"]

    whole_j = np.interp(edges_s[[0, -1]], meter.t, meter.value)
    assert sum(part.sum() for part in parts) == pytest.approx(whole_j[1] - whole_j[0], rel=1e-9)
    assert all(part.min() >= 0 for part in parts)


def loads(at_s, **joules):
    """Return the samples of energies by load, each 2 s after its time."""
    times = np.array(at_s) + 2.0
    return {name: Samples(times, np.array(each)) for name, each in joules.items()}, Samples(
        times, np.array(at_s)
    )


def energy_at(found, *times_s):
    return np.diff(np.interp(times_s, found.t, found.value)).tolist()


def test_energy_by_loads_replaces_the_attributed_one_where_it_is_known():
    """Attribution has 100 W all the time; by the loads, the run has 300 W from 20.5 to 21.5 s, and
    50 W until then.
    """
    known, read_at = loads([18.5, 19.5, 20.5, 21.5], a=[7.0, 57.0, 107.0, 407.0])

    found = by_loads({"a": used(100.0), "b": used(200.0)}, known, read_at, METER)

    steps_j = energy_at(found["a"], 18.0, 18.5, 20.5, 21.0, 21.5, 22.0, 100.0)
    assert steps_j == pytest.approx([50.0, 100.0, 150.0, 150.0, 50.0, 7_800.0])


def test_energy_by_loads_is_attributed_over_a_restart_and_a_gap():
    """Energies by load, of 300 W, begin again at 22 s, and in the time from 23 to 33 s."""
    known, read_at = loads(
        [20.0, 21.0, 22.0, 23.0, 33.0, 34.0], a=[900.0, 1200.0, 0.0, 300, 900, 1200]
    )

    found = by_loads({"a": used(100.0), "b": used(200.0)}, known, read_at, METER)

    steps_j = energy_at(found["a"], 20.0, 21.0, 22.0, 23.0, 33.0, 34.0)
    assert steps_j == pytest.approx([300.0, 100.0, 300.0, 1_000.0, 300.0])


def test_energy_by_loads_is_attributed_over_a_restart_to_more_energy():
    """The run has 300 W. Its energy begins again at 23.5 s, after 90 J, and has 150 J in the next
    sample.
    """
    known, read_at = loads([20.0, 20.3, 24.0, 25.0, 26.0], a=[0.0, 90.0, 150.0, 450.0, 750.0])

    found = by_loads({"a": used(100.0), "b": used(200.0)}, known, read_at, METER)

    assert energy_at(found["a"], 20.3, 24.0, 25.0, 26.0) == pytest.approx([370.0, 300.0, 300.0])


def test_energy_without_loads_is_the_attributed_one():
    """A history of an earlier version has no energies by load."""
    found = by_loads({"a": used(100.0)}, {}, NOTHING, METER)

    assert energy_at(found["a"], 0.0, 50.0, 100.0) == pytest.approx([5_000.0, 5_000.0])


def test_attributed_energy_counts_from_zero_after_a_restart():
    """The state folder was new at about 25 s; 5 J are known at 30 s. The sample at 40 s is late."""
    counter = Samples(
        np.array([10.0, 20.0, 30.0, 40.0, 50.0]), np.array([1_000.0, 2_000.0, 5.0, 4.5, 105.0])
    )

    found = by_loads({"a": counter, "b": NOTHING}, {}, NOTHING, METER)

    run = RunUse(0.0, (-np.inf, np.inf), found["a"])
    assert len(found["b"]) == 0
    assert run.powers(np.array([10.0, 20.0, 30.0, 50.0])) == pytest.approx([100.0, 0.5, 5.0])


@pytest.mark.parametrize(
    "sample_s",
    [
        [*range(21), *range(25, 61)],
        [*range(30), *np.arange(30.0, 59.0, 2.4), 60.0],
        [0.0, 1.0, 2.0, 3.9, 4.9, 9.8, 11.8, 12.8, 13.8, 14.8, 27.0, 28.0, 30.4, 31.4, 33.9, 60.0],
    ],
    ids=["gap", "slow", "irregular"],
)
def test_two_servers_with_equal_loads_have_half_of_the_energy_each(sample_s):
    """A job has the process of server a, to which 0 J are attributed therefore. Loads are known 2 s
    later.
    """
    times = np.array(sample_s)
    at_s = np.maximum(times - 2.0, 0.0)
    by_load = {
        name: Samples(times, begin_j + 150.0 * at_s) for name, begin_j in (("a", 400.0), ("b", 7.0))
    }
    meter = Samples(times, 300.0 * times)
    attributed = {
        "a": Samples(times, np.zeros(len(times))),
        "b": Samples(times, 150.0 * times),
        "": NOTHING,
    }

    found = by_loads(attributed, by_load, Samples(times, at_s), meter)

    uses = {name: RunUse(-np.inf, (-np.inf, np.inf), found[name]) for name in "ab"}
    parts = [
        RunsOnGpu(name, uses, found[""]).own_energy(meter, np.array([0.0, 18.0, 34.0, 60.0]))
        for name in "ab"
    ]
    for part in parts:
        assert part.joules.tolist() == pytest.approx([2_700.0, 2_400.0, 3_900.0], rel=1e-6)
    assert sum(part.joules.sum() for part in parts) == pytest.approx(18_000.0, rel=1e-9)


def test_server_whose_job_has_its_energy_keeps_its_load_over_a_restart():
    """Energies by load begin again at 30 s. A job has the energy of server a, a third of that of
    the GPU.
    """
    at_s = np.concatenate([np.arange(0.0, 28.0), np.arange(32.0, 60.0)])
    since_s = at_s - np.where(at_s < 30.0, -100.0, 30.0)
    known, read_at = loads(at_s, a=100.0 * since_s, b=200.0 * since_s)
    attributed = {"a": used(0.0), "b": used(200.0), "": NOTHING}

    found = by_loads(attributed, known, read_at, METER)

    assert energy_at(found["a"], 0.0, 27.0, 32.0, 59.0, 62.0) == pytest.approx(
        [2_700.0, 500.0, 2_700.0, 300.0]
    )
    assert energy_at(found["b"], 0.0, 27.0, 32.0, 59.0, 62.0) == pytest.approx(
        [5_400.0, 1_000.0, 5_400.0, 600.0]
    )


def test_run_that_begins_between_two_readings_has_its_energy_since_then():
    """Run b begins at 20.4 s and has 150 W from then on."""
    at_s = np.arange(10.0, 31.0)
    begun_s = np.maximum(at_s - 20.4, 0.0)
    by_load, read_at = loads(at_s, a=300.0 * at_s - 150.0 * begun_s)
    by_load["b"] = Samples(read_at.t[11:], 150.0 * begun_s[11:])
    attributed = {"a": Samples(TIMES_S, np.zeros(101)), "b": NOTHING}

    found = by_loads(attributed, by_load, read_at, METER)

    assert energy_at(found["b"], 10.0, 20.0, 21.0, 30.0) == pytest.approx([0.0, 90.0, 1_350.0])
    assert energy_at(found["a"], 10.0, 20.0, 21.0, 30.0) == pytest.approx([3_000.0, 210.0, 1_350.0])


def test_whole_energy_of_slots_has_the_change_at_the_begin_of_a_run():
    """The GPU has 0 W before 2.5 s, between two samples, and 300 W from then on."""
    meter = Samples(TIMES_S, 300.0 * np.maximum(TIMES_S - 2.5, 0.0))
    uses = {
        name: RunUse(0.0, (2.5, np.inf), used(power_w, 2.5))
        for name, power_w in (("a", 200.0), ("b", 100.0))
    }

    found = RunsOnGpu("b", uses, NOTHING).own_energy(meter, np.array([2.5, 3.0, 100.0]))

    assert found.whole_j.tolist() == pytest.approx([150.0, 300 * 97.0])
    assert found.joules.tolist() == pytest.approx([50.0, 100 * 97.0])

"""Steps of the wall clock and system sleep: energy and durations are unaffected."""

import functools
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import pytest
import requests

from tests.daemon import begin, daemon, end
from tests.fakes import nvml
from tests.fakes.clock import Clock
from tests.polling import eventually
from wattline_exporter.simulation import (
    FILE_NAME,
    PRODUCTS,
    Constant,
    Fault,
    Simulation,
    create,
    make_gpus,
)

OPTIONS = ("--no-collector.rapl", "--no-collector.host")
HOUR_S = 3_600.0
SLEEP_S = 600.0
LOAD_W = 500.0
RISING = ("wattline_gpu_energy_joules_total", "wattline_gpu_integrated_energy_joules_total")


@pytest.fixture
def clock(tmp_path):
    with open_clock(tmp_path) as clock:
        yield clock


@contextmanager
def open_clock(folder):
    clock = Clock(folder / "clock")
    yield clock
    clock.close()


@pytest.fixture
def node(tmp_path, clock):
    with open_node(tmp_path, clock) as simulation:
        yield simulation


@contextmanager
def open_node(folder, clock):
    """Yield two GPUs; the first one draws 500 W."""
    path = folder / FILE_NAME
    create(path, make_gpus(2, PRODUCTS["H200"]), clock.boottime() - 10)
    with Simulation.open(path) as simulation:
        simulation.set_load(0, Constant(LOAD_W), at=clock.boottime() - 9)
        yield simulation


@pytest.fixture
def environment(clock, node):
    return environment_of(clock, node)


def environment_of(clock, node):
    return {**nvml.environment(node.path), **clock.environment()}


@pytest.fixture
def started(tmp_path, environment):
    with daemon(tmp_path, *OPTIONS, env=environment) as exporter:
        yield exporter


def counters(exporter):
    return {
        (name, labels["uuid"]): value
        for name in RISING
        for labels, value in exporter.metrics().get(name, ())
    }


def no_counter_fell(before, after):
    return set(before) <= set(after) and all(
        after[series] >= value for series, value in before.items()
    )


def history_of(exporter, at, window_s, name=RISING[0], gpu="0"):
    query = f'{name}{{gpu="{gpu}"}}[{window_s:.3f}s]'
    parameters = {"query": query, "time": f"{at:.3f}"}
    samples = requests.get(f"{exporter.url}/api/v1/query", params=parameters, timeout=30).json()[
        "data"
    ]["result"]
    return [(t, float(value)) for t, value in samples[0]["values"]] if samples else []


def interval_contains(run, uuid, true_j):
    return (
        abs(run["energy_joules"]["gpu"][uuid] - true_j)
        <= run["energy_uncertainty_joules"]["gpu"][uuid]
    )


STEPS = {
    "forward": (HOUR_S,),
    "back": (-HOUR_S,),
    "forward and back": (HOUR_S, -HOUR_S, -HOUR_S, HOUR_S),
}


@dataclass(frozen=True)
class SteppedRun:
    """Run of a daemon whose wall clock was set, and the daemon's metrics."""

    run: dict
    uuids: tuple[str, ...]
    shortest_s: float
    longest_s: float
    scrapes: list
    ended_at: float
    history_at: float
    all_samples: list
    samples: list
    log: str


@pytest.fixture(scope="module")
def stepped_run(tmp_path_factory):
    """Return a function that sets the clock during a run, once for all tests of the same steps."""

    @functools.cache
    def run_with_steps(name):
        folder = tmp_path_factory.mktemp("stepped")
        with (
            open_clock(folder) as clock,
            open_node(folder, clock) as node,
            daemon(folder, *OPTIONS, env=environment_of(clock, node)) as exporter,
        ):
            return set_clock_in_a_run(clock, node, exporter, STEPS[name])

    return run_with_steps


def set_clock_in_a_run(clock, node, exporter, steps):
    before_begin_s = clock.boottime()
    run = begin(exporter)
    after_begin_s = clock.boottime()
    scrapes = [counters(exporter)]
    for step_s in steps:
        time.sleep(2.2)
        clock.step(step_s)
        scrapes.append(counters(exporter))
    time.sleep(2.2)
    before_end_s = clock.boottime()
    run = end(exporter, run["run_id"])
    after_end_s, ended_at = clock.boottime(), clock.time()
    scrapes.append(counters(exporter))
    eventually(
        lambda: (samples := recent_history(exporter, clock)) and samples[-1][0] > run["ended_at"],
        "the second after the end in the history",
        exporter.log,
    )
    return SteppedRun(
        run,
        tuple(gpu.uuid for gpu in node.gpus),
        shortest_s=before_end_s - after_begin_s,
        longest_s=after_end_s - before_begin_s,
        scrapes=scrapes,
        ended_at=ended_at,
        history_at=clock.time(),
        all_samples=recent_history(exporter, clock),
        samples=history_of(exporter, run["ended_at"], run["duration_seconds"]),
        log=exporter.log(),
    )


def recent_history(exporter, clock):
    return history_of(exporter, clock.time() + 2 * HOUR_S, 4 * HOUR_S)


@pytest.mark.parametrize("steps", STEPS)
def test_clock_step_during_a_run_changes_neither_energy_nor_duration(stepped_run, steps):
    stepped = stepped_run(steps)
    run, uuids = stepped.run, stepped.uuids

    assert stepped.shortest_s <= run["duration_seconds"] <= stepped.longest_s
    assert interval_contains(run, uuids[0], LOAD_W * run["duration_seconds"])
    assert interval_contains(run, uuids[1], 78.0 * run["duration_seconds"])
    assert run["covered_ratio"]["gpu"][uuids[0]] > 0.9
    integrated_j = run["integrated_energy_joules"][uuids[0]]
    assert integrated_j == pytest.approx(LOAD_W * run["duration_seconds"], rel=0.1)
    assert all(no_counter_fell(before, after) for before, after in pairwise(stepped.scrapes))
    assert "Traceback" not in stepped.log


@pytest.mark.parametrize("steps", STEPS)
def test_clock_step_moves_the_run_to_the_clock_at_its_end(stepped_run, steps):
    stepped = stepped_run(steps)
    run = stepped.run

    assert run["ended_at"] == pytest.approx(stepped.ended_at, abs=5)
    assert run["ended_at"] - run["started_at"] == pytest.approx(run["duration_seconds"], abs=0.1)


@pytest.mark.parametrize("steps", STEPS)
def test_clock_step_keeps_history_of_a_run_in_order_and_complete(stepped_run, steps):
    stepped = stepped_run(steps)
    run, samples = stepped.run, stepped.samples

    assert all(a[1] <= b[1] for a, b in pairwise(stepped.all_samples))
    assert stepped.all_samples[-1][0] == pytest.approx(stepped.history_at, abs=5)
    assert samples[-1][0] - samples[0][0] > run["duration_seconds"] - 2.5
    # 500 W, also across each step
    joules, seconds = samples[-1][1] - samples[0][1], samples[-1][0] - samples[0][0]
    assert joules == pytest.approx(LOAD_W * seconds, rel=0.1, abs=LOAD_W * 1.1)


def test_clock_step_during_downtime_continues_the_run(tmp_path, clock, node, environment):
    for step_s in (HOUR_S, -2 * HOUR_S):
        with daemon(tmp_path, *OPTIONS, env=environment) as first:
            run_id = begin(first)["run_id"]
            time.sleep(1.0)
            before = counters(first)
        clock.step(step_s)
        with daemon(tmp_path, *OPTIONS, env=environment) as second:
            after = counters(second)
            time.sleep(1.0)
            run = end(second, run_id)

        assert no_counter_fell(before, after)
        assert interval_contains(run, node.gpus[0].uuid, LOAD_W * run["duration_seconds"])
        assert run["duration_seconds"] < 60


# -- system sleep: GPUs draw nothing, CLOCK_BOOTTIME and the wall clock go on, CLOCK_MONOTONIC stops


def suspend(clock, node):
    """Suspend the system for ten minutes and return the time of resume.

    Both instants are in the simulation before, so the true energy is known.
    """
    asleep_s = clock.boottime() + 0.3
    for i, awake_w in ((0, LOAD_W), (1, 78.0)):
        node.set_load(i, Constant(0.0), at=asleep_s)
        node.set_load(i, Constant(awake_w), at=asleep_s + SLEEP_S)
    time.sleep(max(0.0, asleep_s - clock.boottime()))
    clock.suspend(SLEEP_S)
    return asleep_s + SLEEP_S


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.NO_COUNTER], ids=["a counter", "no counter"])
def test_system_sleep_adds_no_energy(tmp_path, clock, node, environment, fault):
    node.set_fault(0, fault, on=True)
    with daemon(tmp_path, *OPTIONS, env=environment) as started:
        time.sleep(1.0)
        run = begin(started, gpus=["0"])
        before = counters(started)
        time.sleep(1.5)
        suspend(clock, node)
        time.sleep(2.0)
        after = counters(started)
        run = end(started, run["run_id"])
    uuid = node.gpus[0].uuid
    awake_s = run["duration_seconds"] - SLEEP_S
    true_j = LOAD_W * awake_s

    assert 3.0 < awake_s < 30.0
    assert no_counter_fell(before, after)
    assert interval_contains(run, node.gpus[0].uuid, true_j)
    assert run["energy_joules"]["gpu"][uuid] < true_j + LOAD_W * 0.5
    assert run["integrated_energy_joules"][uuid] < true_j + LOAD_W * 0.5
    if fault is Fault.NONE:  # the counter covers the sleep
        assert run["energy_joules"]["gpu"][uuid] == pytest.approx(true_j, rel=0.05)
    assert run["covered_ratio"]["gpu"][uuid] == pytest.approx(
        awake_s / run["duration_seconds"], abs=0.003
    )


def test_system_sleep_gpus_recover_without_a_new_worker(clock, node, started):
    (sampler,) = started.children()
    suspend(clock, node)
    for gpu in ("0", "1"):
        started.wait_for_metric(lambda up: up == 1, "wattline_gpu_up", gpu=gpu)

    assert [child.pid for child in started.children()] == [sampler.pid]
    assert started.wait_for_metric(lambda up: up == 1, "wattline_source_up", source="nvml") == 1


def test_system_sleep_extends_the_lease(clock, node, started):
    run_id = begin(started, lease_seconds=60)["run_id"]
    time.sleep(1.0)
    suspend(clock, node)
    time.sleep(2.5)

    assert started.get(f"/api/v1/runs/{run_id}")[1]["state"] == "running"
    assert end(started, run_id)["outcome"] == "ok"

"""Counters that freeze, jump or disagree, in a running exporter and in replayed minutes."""

import time
from dataclasses import replace

import pytest

from tests.daemon import begin, daemon, end
from tests.exporter.meter.replay import ReplayedGpu
from tests.fakes import nvml
from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.meter.plausibility import EnergyCheck
from wattline_exporter.sensors.readings import boottime
from wattline_exporter.simulation import (
    FILE_NAME,
    PRODUCTS,
    Constant,
    Segment,
    Simulation,
    Square,
    create,
    make_gpus,
)

OPTIONS = ("--no-collector.rapl", "--no-collector.host")
LOAD_W = 500.0
JUMP_J = 1e6
STALE_S = 5.0
"""Largest age of a value in a scrape of a busy host."""
ENERGY, SUSPECT = "wattline_gpu_energy_joules_total", "wattline_gpu_energy_suspect"
MOST_W = 1.5 * 700.0
START_S = 1_000.0


# -- in a running exporter


@pytest.fixture
def node(tmp_path):
    """Two simulated GPUs that draw 500 W."""
    path = tmp_path / FILE_NAME
    create(path, make_gpus(2, PRODUCTS["H200"]), boottime() - 10)
    with Simulation.open(path) as simulation:
        for i in range(2):
            simulation.set_load(i, Constant(LOAD_W), at=boottime() - 9)
        yield simulation


@pytest.fixture
def started(tmp_path, node):
    with daemon(tmp_path, *OPTIONS, env=nvml.environment(node.path)) as exporter:
        yield exporter


def suspects(exporter):
    return {
        (labels["gpu"], labels["reason"])
        for labels, value in exporter.metrics().get(SUSPECT, ())
        if value
    }


def test_daemon_implausible_jump_adds_nothing_and_is_flagged(node, started):
    time.sleep(2.0)
    run = begin(started)
    time.sleep(1.0)
    before_s, before_j = time.monotonic(), started.value(ENERGY, gpu="0")
    node.jump_counter(0, JUMP_J)
    started.wait_for_metric(lambda flag: flag == 1, SUSPECT, gpu="0", reason="implausible")
    time.sleep(1.0)
    added_j, elapsed_s = started.value(ENERGY, gpu="0") - before_j, time.monotonic() - before_s
    run = end(started, run["run_id"])
    uuid = node.gpus[0].uuid
    off_j = abs(run["energy_joules"]["gpu"][uuid] - LOAD_W * run["duration_seconds"])

    assert added_j <= LOAD_W * (elapsed_s + STALE_S)
    assert off_j <= run["energy_uncertainty_joules"]["gpu"][uuid] < 0.3 * JUMP_J
    assert off_j < LOAD_W * 2.0
    assert suspects(started) == {("0", "implausible")}
    assert "GPU 0" in started.log()


def test_daemon_jump_forth_and_back_is_not_counted_twice(node, started):
    time.sleep(1.0)
    before_s, before_j = time.monotonic(), started.value(ENERGY, gpu="1")
    node.jump_counter(1, JUMP_J)
    time.sleep(1.5)
    node.jump_counter(1, -JUMP_J)
    time.sleep(2.5)
    after_j, elapsed_s = started.value(ENERGY, gpu="1"), time.monotonic() - before_s

    assert 0 < after_j - before_j <= LOAD_W * (elapsed_s + STALE_S) + node.counter_j(1, boottime())
    assert after_j - before_j < 0.1 * JUMP_J


def test_daemon_frozen_counter_is_flagged_until_it_moves(node, started):
    run_id = begin(started)["run_id"]
    time.sleep(1.0)
    before_j = started.value(ENERGY, gpu="0")
    node.freeze(0)
    frozen_s = time.monotonic()
    started.wait_for_metric(lambda flag: flag == 1, SUSPECT, gpu="0", reason="frozen")
    assert {gpu for gpu, _ in suspects(started)} == {"0"}
    shown_j, shown_s = started.value(ENERGY, gpu="0"), time.monotonic()
    assert before_j <= shown_j <= before_j + LOAD_W * (shown_s - frozen_s + STALE_S)
    node.thaw(0)
    started.wait_for_metric(lambda flag: not flag, SUSPECT, gpu="0", reason="frozen")
    time.sleep(0.5)
    run = end(started, run_id)
    off_j = abs(run["energy_joules"]["gpu"][node.gpus[0].uuid] - LOAD_W * run["duration_seconds"])

    assert off_j <= run["energy_uncertainty_joules"]["gpu"][node.gpus[0].uuid]


# -- replayed in virtual time


def replayed(load, *, product="H200", since_s=900.0):
    (gpu,) = make_gpus(1, PRODUCTS[product])
    idle_w = gpu.product.idle_w
    segments = (
        Segment(0.0, 0.0, gpu.limit_w, 0.0, Constant(idle_w)),
        Segment(since_s, since_s * idle_w, gpu.limit_w, since_s, load),
    )
    return ReplayedGpu(replace(gpu, segments=segments, changes=2))


def reported_reasons(polls, period_s):
    """Return all reasons reported, those at the end, and the meter, checked once a second."""
    meter, check, all_reasons, checked_s = DeviceMeter(period_s=period_s), EnergyCheck(), set(), 0.0
    meter.max_w = MOST_W
    for poll in polls:
        meter.push(poll)
        if poll.after_s - checked_s >= 1.0:
            checked_s = poll.after_s
            check.update(meter, checked_s)
            all_reasons |= check.reasons
    return all_reasons, check.reasons, meter


def poll_every(period_s, seconds, gpu, fault=lambda _t, poll: poll):
    return (
        fault(START_S + n * period_s, gpu.poll(START_S + n * period_s))
        for n in range(int(seconds / period_s))
    )


@pytest.mark.parametrize("duty", [0.2, 0.5])
@pytest.mark.parametrize("burst_s", [0.024, 0.033, 0.1, 0.31, 1.0, 1.73, 2.0])
@pytest.mark.parametrize(
    ("period_s", "minutes"), [(0.047, 3), (1.0, 15)], ids=["polled fast", "polled slowly"]
)
def test_replay_healthy_gpu_with_bursts_is_never_flagged(burst_s, duty, period_s, minutes):
    gpu = replayed(Square(72.0, 640.0, burst_s, duty=duty))
    all_reasons, _, meter = reported_reasons(poll_every(period_s, 60 * minutes, gpu), period_s)

    assert all_reasons == set()
    assert meter.totals.energy_j == pytest.approx(
        gpu.joules(START_S, meter.latest.after_s), abs=640 * 0.3
    )


@pytest.mark.parametrize(
    "load", [Constant(75.0), Constant(2.0), Constant(690.0)], ids=["idle", "asleep", "full"]
)
def test_replay_steady_gpu_is_never_flagged(load):
    assert reported_reasons(poll_every(1.0, 900, replayed(load)), 1.0)[0] == set()


@pytest.mark.parametrize("share", [0.85, 1.15])
@pytest.mark.parametrize("period_s", [0.047, 1.0])
def test_replay_counter_with_wrong_scale_disagrees_within_a_minute(share, period_s):
    gpu = replayed(Constant(LOAD_W), since_s=START_S + 0.5)  # the average follows for a second

    def fault(_t, poll):
        return poll._replace(counter_j=poll.counter_j * share)

    all_reasons, at_end, _ = reported_reasons(poll_every(period_s, 60, gpu, fault), period_s)
    assert all_reasons == at_end == {"disagrees"}


@pytest.mark.parametrize("period_s", [0.047, 1.0])
def test_replay_implausible_jump_is_excluded_and_flagged_for_a_minute(period_s):
    gpu = replayed(Constant(LOAD_W))

    def fault(t, poll):
        return poll if t < START_S + 20 else poll._replace(counter_j=poll.counter_j + JUMP_J)

    all_reasons, _, _ = reported_reasons(poll_every(period_s, 40, gpu, fault), period_s)
    assert all_reasons == {"implausible"}
    all_reasons, at_end, meter = reported_reasons(poll_every(period_s, 100, gpu, fault), period_s)
    assert (all_reasons, at_end) == ({"implausible"}, frozenset())
    truth_j = gpu.joules(START_S, meter.latest.after_s)
    assert (
        truth_j - LOAD_W * (2 * period_s + 0.2) <= meter.totals.energy_j <= truth_j + LOAD_W * 0.2
    )


@pytest.mark.parametrize("period_s", [0.047, 1.0])
def test_replay_one_garbled_value_changes_nothing(period_s):
    gpu = replayed(Constant(LOAD_W))

    def fault(t, poll):
        return (
            poll._replace(counter_j=poll.counter_j + JUMP_J)
            if t == START_S + 120 * period_s
            else poll
        )

    _, _, meter = reported_reasons(poll_every(period_s, 300 * period_s, gpu, fault), period_s)
    truth_j = gpu.joules(START_S, meter.latest.after_s)
    assert meter.totals.energy_j == pytest.approx(truth_j, abs=LOAD_W * 0.2)


@pytest.mark.parametrize("period_s", [0.047, 1.0])
def test_replay_frozen_counter_is_flagged_and_catches_up(period_s):
    gpu = replayed(Constant(LOAD_W))
    frozen_j = gpu.poll(START_S + 20).counter_j

    def fault(t, poll):
        return poll._replace(counter_j=frozen_j) if START_S + 20 <= t < START_S + 50 else poll

    all_reasons, at_end, meter = reported_reasons(poll_every(period_s, 58, gpu, fault), period_s)
    assert "frozen" in all_reasons
    assert "frozen" not in at_end
    assert meter.totals.energy_j == pytest.approx(
        gpu.joules(START_S, meter.latest.after_s), abs=LOAD_W * 0.2
    )

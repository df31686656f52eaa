"""A counter that freezes, jumps or disagrees is flagged and guarded; a healthy card is never flagged."""

import time
from dataclasses import replace

import pytest

from exporter.energy.meter import DeviceMeter
from exporter.energy.plausibility import EnergyCheck
from exporter.model import boottime
from exporter.simulation import FILE_NAME, PRODUCTS, Constant, Segment, Simulation, Square, create, make_gpus
from tests.daemon import begin, daemon, end
from tests.exporter.replay import Card
from tests.fakes import nvml

OPTIONS = ("--no-collector.rapl", "--no-collector.host")
LOAD_W = 500.0
JUMP_J = 1e6
ENERGY, SUSPECT = "wattline_gpu_energy_joules_total", "wattline_gpu_energy_suspect"
MOST_W = 1.5 * 700.0
START_S = 1_000.0


# -- as a scrape shows it


@pytest.fixture
def node(tmp_path):
    """Two GPUs that draw 500 W."""
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


def suspected(exporter):
    return {(labels["gpu"], labels["reason"]) for labels, value in exporter.metrics().get(SUSPECT, ()) if value}


def test_a_counter_that_jumps_by_what_no_card_draws_adds_nothing_and_is_flagged(node, started):
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

    assert added_j <= LOAD_W * (elapsed_s + 1.0)
    assert off_j <= run["energy_uncertainty_joules"]["gpu"][uuid] < 0.3 * JUMP_J
    assert off_j < LOAD_W * 2.0
    assert suspected(started) == {("0", "implausible")}
    assert "GPU 0" in started.log()


def test_a_counter_that_goes_back_by_a_jump_does_not_count_it_twice(node, started):
    time.sleep(1.0)
    before_s, before_j = time.monotonic(), started.value(ENERGY, gpu="1")
    node.jump_counter(1, JUMP_J)
    time.sleep(1.5)
    node.jump_counter(1, -JUMP_J)
    time.sleep(2.5)
    after_j, elapsed_s = started.value(ENERGY, gpu="1"), time.monotonic() - before_s

    assert 0 < after_j - before_j <= LOAD_W * (elapsed_s + 1.0) + node.counter_j(1, boottime())
    assert after_j - before_j < 0.1 * JUMP_J


def test_a_counter_that_stands_still_while_power_flows_is_flagged_until_it_moves(node, started):
    run_id = begin(started)["run_id"]
    time.sleep(1.0)
    before_j = started.value(ENERGY, gpu="0")
    node.freeze(0)
    frozen_s = time.monotonic()
    started.wait_for_metric(lambda flag: flag == 1, SUSPECT, gpu="0", reason="frozen")
    assert suspected(started) == {("0", "frozen")}
    shown_j, shown_s = started.value(ENERGY, gpu="0"), time.monotonic()
    assert before_j <= shown_j <= before_j + LOAD_W * (shown_s - frozen_s + 1.5)
    node.thaw(0)
    started.wait_for_metric(lambda flag: not flag, SUSPECT, gpu="0", reason="frozen")
    time.sleep(0.5)
    run = end(started, run_id)
    off_j = abs(run["energy_joules"]["gpu"][node.gpus[0].uuid] - LOAD_W * run["duration_seconds"])

    assert off_j <= run["energy_uncertainty_joules"]["gpu"][node.gpus[0].uuid]


# -- replayed, in minutes that take a moment


def card(load, *, product="H200"):
    (gpu,) = make_gpus(1, PRODUCTS[product])
    idle_w = gpu.product.idle_w
    segments = (
        Segment(0.0, 0.0, gpu.limit_w, 0.0, Constant(idle_w)),
        Segment(900.0, 900.0 * idle_w, gpu.limit_w, 900.0, load),
    )
    return Card(replace(gpu, segments=segments, changes=2))


def reasons(polls, period_s):
    """All that was ever suspected, and the line at the end; looked at once a second."""
    line, check, found, looked_s = DeviceMeter(period_s=period_s), EnergyCheck(), set(), 0.0
    line.most_w = MOST_W
    for poll in polls:
        line.push(poll)
        if poll.after_s - looked_s >= 1.0:
            looked_s = poll.after_s
            check.look(line, looked_s)
            found |= check.reasons
    return found, check.reasons, line


def every(period_s, seconds, of, wrong=lambda _t, poll: poll):
    return (wrong(START_S + n * period_s, of.poll(START_S + n * period_s)) for n in range(int(seconds / period_s)))


@pytest.mark.parametrize("duty", [0.2, 0.5])
@pytest.mark.parametrize("burst_s", [0.024, 0.033, 0.1, 0.31, 1.0, 1.73, 2.0])
@pytest.mark.parametrize(("period_s", "minutes"), [(0.047, 3), (1.0, 15)], ids=["polled fast", "polled slowly"])
def test_a_healthy_card_is_never_flagged_whatever_its_bursts(burst_s, duty, period_s, minutes):
    of = card(Square(72.0, 640.0, burst_s, duty=duty))
    found, _, line = reasons(every(period_s, 60 * minutes, of), period_s)

    assert found == set()
    assert line.totals.energy_j == pytest.approx(of.joules(START_S, line.latest.after_s), abs=640 * 0.3)


@pytest.mark.parametrize("load", [Constant(75.0), Constant(2.0), Constant(690.0)], ids=["idle", "asleep", "full"])
def test_a_steady_card_is_never_flagged(load):
    assert reasons(every(1.0, 900, card(load)), 1.0)[0] == set()


@pytest.mark.parametrize("share", [0.85, 1.15])
@pytest.mark.parametrize("period_s", [0.047, 1.0])
def test_a_counter_that_counts_other_than_power_flows_disagrees_after_minutes_and_not_before(share, period_s):
    of = card(Constant(LOAD_W))

    def wrong(_t, poll):
        return poll._replace(counter_j=poll.counter_j * share)

    assert reasons(every(period_s, 55, of, wrong), period_s)[0] == set()
    found, at_end, _ = reasons(every(period_s, 200, of, wrong), period_s)
    assert found == at_end == {"disagrees"}


@pytest.mark.parametrize("period_s", [0.047, 1.0])
def test_one_impossible_jump_is_taken_out_and_forgiven_after_a_minute(period_s):
    of = card(Constant(LOAD_W))

    def wrong(t, poll):
        return poll if t < START_S + 20 else poll._replace(counter_j=poll.counter_j + JUMP_J)

    found, _, _ = reasons(every(period_s, 40, of, wrong), period_s)
    assert found == {"implausible"}
    found, at_end, line = reasons(every(period_s, 100, of, wrong), period_s)
    assert (found, at_end) == ({"implausible"}, frozenset())
    truth_j = of.joules(START_S, line.latest.after_s)
    assert truth_j - LOAD_W * (2 * period_s + 0.2) <= line.totals.energy_j <= truth_j + LOAD_W * 0.2


@pytest.mark.parametrize("period_s", [0.047, 1.0])
def test_one_garbled_reading_costs_nothing(period_s):
    of = card(Constant(LOAD_W))

    def wrong(t, poll):
        return poll._replace(counter_j=poll.counter_j + JUMP_J) if t == START_S + 120 * period_s else poll

    _, _, line = reasons(every(period_s, 300 * period_s, of, wrong), period_s)
    truth_j = of.joules(START_S, line.latest.after_s)
    assert line.totals.energy_j == pytest.approx(truth_j, abs=LOAD_W * 0.2)


@pytest.mark.parametrize("period_s", [0.047, 1.0])
def test_a_counter_that_froze_for_a_while_is_flagged_only_meanwhile_and_catches_up(period_s):
    of = card(Constant(LOAD_W))
    still_j = of.poll(START_S + 20).counter_j

    def wrong(t, poll):
        return poll._replace(counter_j=still_j) if START_S + 20 <= t < START_S + 50 else poll

    found, at_end, line = reasons(every(period_s, 58, of, wrong), period_s)
    assert (found, at_end) == ({"frozen"}, frozenset())
    assert line.totals.energy_j == pytest.approx(of.joules(START_S, line.latest.after_s), abs=LOAD_W * 0.2)

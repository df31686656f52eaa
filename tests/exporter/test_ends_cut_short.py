"""A run whose end was under way when the exporter was killed, and a carbon slot that changes in a run, or after it."""

from __future__ import annotations

import asyncio
import time

import pytest

from exporter.attribution import procfs as processes
from exporter.attribution.policy import Changes
from exporter.attribution.procfs import Process
from exporter.contract.run import BeginRequest, EndRequest
from exporter.energy.marks import MeterTotals
from exporter.latest_values import GpuState
from exporter.live_state import Past, Store
from exporter.model import Device, Gpu, Poll, Slot, boottime
from exporter.runs.clock_steps import Moment
from exporter.runs.ledger import Ledger
from exporter.runs.record import STORED
from exporter.storage.state_file import Snapshot, State

GPU = Device("gpu", "GPU-1")


def slot(begin_s: float, grams_per_kwh: float) -> Slot:
    return Slot(begin_s, begin_s + 1_800, grams_per_kwh, "test", "test", "average", "actual")


class Node:
    """A store and a ledger on a GPU of 360 W, in a time of the test's own."""

    def __init__(self, state: State, slots_at=lambda _: ()) -> None:
        self.now_s = self.first_s = boottime()
        self.first_at = time.time()
        self.store = Store(Past(), version="test", slots_at=slots_at)
        self.store.gpus[GPU.id] = GpuState(Gpu("0", GPU.id, "test", "", "", ""), GPU, self.now_s)
        self.begun_s = self.now_s
        self.ledger = Ledger(self.store, state, sense=self.sense, clock=self.now)
        self.run_for(3)

    def now(self) -> Moment:
        return Moment(self.now_s, self.first_at + self.now_s - self.first_s, self.now_s)

    async def sense(self) -> None:
        self.run_for(0.3)

    def run_for(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            self.now_s += 0.05
            joules = 360.0 * (self.now_s - self.begun_s)
            self.store._push(Poll(GPU, self.now_s, self.now_s, joules, 360.0, 360.0))


def test_a_run_killed_between_its_end_and_its_last_marks_is_ended_by_the_next_exporter(tmp_path):
    state = State(tmp_path)
    node = Node(state)
    run, _ = asyncio.run(node.ledger.begin(BeginRequest(workload="test", run_id="r")))
    node.run_for(10)
    run.end_s, run.ended_at, run.outcome = node.now_s, run.started_at + 10, "ok"  # as `end` does before it waits
    stored = [(run.run_id, run.started_at, run.is_open, STORED.dump_json(run).decode())]
    state.save(Snapshot({GPU: node.store.lines[GPU].totals}, {}, stored, {}, Changes({}, set()), {}, node.now_s))
    saved = state.load()
    later = Node(state)
    later.ledger.restore(saved, same_boot=True)
    again = asyncio.run(later.ledger.end("r", EndRequest()))
    state.close()

    assert [run.run_id for run in saved.running] == ["r"]
    assert (again.outcome, again.is_open) == ("ok", False)
    assert again.final[f"gpu:{GPU.id}"].joules - again.begin[f"gpu:{GPU.id}"].joules > 3_000
    assert any("killed while the run ended" in note for note in again.notes)
    assert isinstance(saved.totals[GPU], MeterTotals)


def test_a_run_begun_just_after_a_boundary_leaves_the_others_their_new_slot(tmp_path):
    state = State(tmp_path)
    slots = [slot(0, 100)]
    node = Node(state, slots_at=lambda _: (slots[-1],))
    first, _ = asyncio.run(node.ledger.begin(BeginRequest(workload="first")))
    node.run_for(8)
    node.ledger.tick()
    slots.append(slot(0, 300))
    asyncio.run(node.ledger.begin(BeginRequest(workload="second")))
    node.ledger.tick()
    node.run_for(10)
    node.ledger.tick()
    ended = asyncio.run(node.ledger.end(first.run_id, EndRequest()))
    state.close()

    grams = sum(emission.grams for emission in ended.emissions)
    seconds = (ended.end_s or 0) - ended.begin_s
    before_s = 8.3  # until the slot changed: 8 s, and the moment in which the sensors were read at the begin
    expected = 360 / 3.6e6 * (100 * before_s + 300 * (seconds - before_s))
    assert abs(grams - expected) < 0.05 * expected


def test_a_run_has_each_joule_at_its_own_slot_also_where_the_machine_slept_over_several(tmp_path):
    state = State(tmp_path)
    node = Node(state, slots_at=lambda at: (half_hour(at),))
    run, _ = asyncio.run(node.ledger.begin(BeginRequest(workload="test")))
    node.run_for(8)
    node.ledger.tick()
    node.now_s += 7_200.0  # 360 W go on: two hours, four slots
    node.run_for(0.05)
    node.ledger.tick()
    node.run_for(8)
    node.ledger.tick()
    ended = asyncio.run(node.ledger.end(run.run_id, EndRequest()))
    state.close()

    begun_at, ended_at = ended.started_at, ended.started_at + (ended.end_s or 0) - ended.begin_s
    expected = sum(
        360 / 3.6e6 * half_hour(at).grams_per_kwh * (min(at + 1_800, ended_at) - max(at, begun_at))
        for at in range(int(begun_at // 1_800) * 1_800, int(ended_at) + 1, 1_800)
    )
    assert sum(emission.grams for emission in ended.emissions) == pytest.approx(expected, rel=0.01)


class Dying(Node):
    """Its run has a process that is there for ten seconds; `after_s` later another slot of intensity begins."""

    def __init__(self, state: State, monkeypatch: pytest.MonkeyPatch, after_s: float) -> None:
        self.is_there, self.changes_at = True, float("inf")
        super().__init__(state, slots_at=self.slots_at)
        self.run, _ = asyncio.run(self.ledger.begin(BeginRequest(workload="test")))
        self.run.processes.append(Process(4711, 1.0))
        monkeypatch.setattr(processes, "is_alive", lambda _: self.is_there)
        self.changes_at = self.now().at + 10 + after_s
        self.tick_for(10)
        self.is_there = False

    def slots_at(self, at: float) -> tuple[Slot, ...]:
        change_at = self.changes_at
        return (slot(change_at - 1_800, 100.0) if at < change_at else slot(change_at, 200.0),)

    def tick_for(self, seconds: int) -> None:
        for _ in range(seconds):
            self.run_for(1)
            self.ledger.tick()


@pytest.mark.parametrize("after_s", [2, 6, 1_000])
def test_a_slot_that_changes_after_the_last_process_has_gone_adds_no_energy_to_the_run(tmp_path, monkeypatch, after_s):
    state = State(tmp_path)
    node = Dying(state, monkeypatch, after_s)
    node.tick_for(10)
    state.close()

    run = node.run
    joules = run.final[f"gpu:{GPU.id}"].joules - run.begin[f"gpu:{GPU.id}"].joules
    assert run.outcome == "interrupted"
    assert joules == pytest.approx(360.0 * 10.3, abs=1.0)  # 0.3 s are those of the begin
    assert sum(emission.grams for emission in run.emissions) == pytest.approx(joules * 100.0 / 3.6e6)


def test_a_slot_that_changes_while_a_launcher_starts_the_next_process_counts_from_then_on(tmp_path, monkeypatch):
    state = State(tmp_path)
    node = Dying(state, monkeypatch, after_s=2.5)
    node.tick_for(5)
    node.is_there = True
    node.tick_for(10)
    ended = asyncio.run(node.ledger.end(node.run.run_id, EndRequest()))
    state.close()

    # 360 W at 100 g/kWh for 0.3 + 10 + 2.5 s, then at 200 g/kWh for 12.5 s
    expected = 360 / 3.6e6 * (100 * 12.8 + 200 * 12.5)
    assert sum(emission.grams for emission in ended.emissions) == pytest.approx(expected, rel=0.005)


def test_the_highest_power_is_of_the_time_between_begin_and_end(tmp_path):
    state = State(tmp_path)
    node = Node(state)
    run, _ = asyncio.run(node.ledger.begin(BeginRequest(workload="test")))
    node.store._push(Poll(GPU, run.begin_s - 0.01, run.begin_s - 0.01, 0.0, 700.0))  # polls come in late
    node.run_for(2)
    run.end_s = node.now_s  # as `end` does before it waits
    node.store._push(Poll(GPU, run.end_s - 0.01, run.end_s - 0.01, 0.0, 500.0))
    node.store._push(Poll(GPU, run.end_s + 0.01, run.end_s + 0.01, 0.0, 600.0))
    state.close()

    assert run.power_max_w == {GPU.id: 500.0}


def half_hour(at: float) -> Slot:
    """Each half hour's intensity is another."""
    begin_s = at // 1_800 * 1_800
    return slot(begin_s, 100.0 + begin_s // 1_800 % 7 * 50)


def test_a_run_that_could_not_be_written_is_not_forgotten(tmp_path):
    state = State(tmp_path)
    node = Node(state)
    run, _ = asyncio.run(node.ledger.begin(BeginRequest(workload="test")))
    asyncio.run(node.ledger.end(run.run_id, EndRequest()))
    node.ledger.changed, node.ledger.disk_is_well = set(), False
    node.ledger.tick()
    node.run_for(700)
    node.ledger.tick()
    assert run.run_id in node.ledger.runs

    node.ledger.disk_is_well = True
    node.ledger.tick()
    assert run.run_id not in node.ledger.runs
    state.close()


def test_the_counters_of_a_run_never_fall_while_its_begin_settles(tmp_path):
    from exporter.runs.view import view

    state = State(tmp_path)
    node = Node(state)
    run, _ = asyncio.run(node.ledger.begin(BeginRequest(workload="test")))
    shown: list[float] = []
    for _ in range(60):
        node.run_for(0.25)
        node.ledger.tick()
        seen = view(run, node.store.lines, node.now_s, None).energy_joules.get("gpu", {})
        shown += seen.values()
    state.close()

    assert shown == sorted(shown)
    assert len(shown) > 20

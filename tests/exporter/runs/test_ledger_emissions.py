"""Emissions of runs by the intensity of each carbon slot."""

from __future__ import annotations

import pytest

from tests.exporter.runs.ledger_node import GPU, LedgerNode
from tests.exporter.runs.test_marks import run_of
from wattline_exporter.attribution.policy import Attribution
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.runs.holders import DeviceHolders
from wattline_exporter.runs.ledger import Ledger
from wattline_exporter.runs.run_record import Cut
from wattline_exporter.sensors.processes.procfs import ProcessKey
from wattline_exporter.sensors.readings import ClockReading, Slot
from wattline_exporter.storage.state_file import StateFile

HOUR_S = 3_600.0


def slot(begin_s: float, grams_per_kwh: float) -> Slot:
    return Slot(begin_s, begin_s + 1_800, grams_per_kwh, "test", "test", "average", "actual")


def test_ledger_run_begun_after_slot_change_leaves_others_the_new_slot(tmp_path):
    state = StateFile(tmp_path)
    slots = [slot(0, 100)]
    node = LedgerNode(state, slots_at=lambda _: (slots[-1],))
    first = node.begin()
    node.run_for(8)
    node.ledger.tick()
    slots.append(slot(0, 300))
    node.begin()
    node.ledger.tick()
    node.run_for(10)
    node.ledger.tick()
    ended = node.end(first.run_id)
    state.close()

    grams = sum(emission.grams for emission in ended.emissions)
    seconds = (ended.end_s or 0) - ended.begin_s
    before_s = 8.3  # 8 s until the slot changed, and the update of the sensors at the begin
    expected = 360 / 3.6e6 * (100 * before_s + 300 * (seconds - before_s))
    assert abs(grams - expected) < 0.05 * expected


def test_ledger_emissions_use_each_slot_of_a_system_sleep(tmp_path):
    state = StateFile(tmp_path)
    node = LedgerNode(state, slots_at=lambda at: (half_hour(at),))
    run = node.begin()
    node.run_for(8)
    node.ledger.tick()
    node.now_s += 7_200.0  # 360 W continue for two hours, which are four slots
    node.run_for(0.05)
    node.ledger.tick()
    node.run_for(8)
    node.ledger.tick()
    ended = node.end(run.run_id)
    state.close()

    begun_at, ended_at = ended.started_at, ended.started_at + (ended.end_s or 0) - ended.begin_s
    expected = sum(
        360 / 3.6e6 * half_hour(at).grams_per_kwh * (min(at + 1_800, ended_at) - max(at, begun_at))
        for at in range(int(begun_at // 1_800) * 1_800, int(ended_at) + 1, 1_800)
    )
    assert sum(emission.grams for emission in ended.emissions) == pytest.approx(expected, rel=0.01)


class DyingRunNode(LedgerNode):
    """Node with a run whose process lives ten seconds; `after_s` later the carbon slot changes."""

    def __init__(self, state: StateFile, after_s: float) -> None:
        self.is_there, self.changes_at = True, float("inf")
        super().__init__(state, slots_at=self.slots_at, is_alive=lambda _: self.is_there)
        self.run = self.begin()
        self.run.processes.append(ProcessKey(4711, 1.0))
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
def test_ledger_slot_change_after_death_adds_no_energy(tmp_path, after_s):
    state = StateFile(tmp_path)
    node = DyingRunNode(state, after_s)
    node.tick_for(10)
    state.close()

    run = node.run
    joules = run.final[GPU].joules - run.begin[GPU].joules
    assert run.outcome == "interrupted"
    assert joules == pytest.approx(360.0 * 10.3, abs=1.0)  # 0.3 s is the update at the begin
    assert sum(emission.grams for emission in run.emissions) == pytest.approx(
        joules * 100.0 / 3.6e6
    )


def test_ledger_slot_change_between_two_processes_counts(tmp_path):
    state = StateFile(tmp_path)
    node = DyingRunNode(state, after_s=2.5)
    node.tick_for(5)
    node.is_there = True
    node.tick_for(10)
    ended = node.end(node.run.run_id)
    state.close()

    # 360 W at 100 g/kWh for 0.3 + 10 + 2.5 s, then at 200 g/kWh for 12.5 s
    expected = 360 / 3.6e6 * (100 * 12.8 + 200 * 12.5)
    assert sum(emission.grams for emission in ended.emissions) == pytest.approx(expected, rel=0.005)


def half_hour(at: float) -> Slot:
    """Return the slot of a half hour, each with another intensity."""
    begin_s = at // 1_800 * 1_800
    return slot(begin_s, 100.0 + begin_s // 1_800 % 7 * 50)


def test_ledger_resumed_run_keeps_intensity_until_the_provider_answers(tmp_path):
    state = StateFile(tmp_path)
    slots = [(slot(0, 100),)]
    node = LedgerNode(state, slots_at=lambda _: slots[-1])
    run = node.begin()
    node.run_for(8)
    node.ledger.tick()
    slots.append(())  # as after a restart, until the provider has answered
    for _ in range(9):
        node.run_for(1)
        node.ledger.tick()
    slots.append((slot(0, 100),))
    node.run_for(8)
    node.ledger.tick()
    ended = node.end(run.run_id)
    state.close()
    grams = sum(emission.grams for emission in ended.emissions)

    assert grams == pytest.approx(
        (ended.final[GPU].joules - ended.begin[GPU].joules) / 3.6e6 * 100, rel=1e-9
    )


def test_ledger_intensity_unknown_for_long_is_left_out(tmp_path):
    state = StateFile(tmp_path)
    slots = [(slot(0, 100),)]
    node = LedgerNode(state, slots_at=lambda _: slots[-1])
    run = node.begin()
    node.run_for(8)
    node.ledger.tick()
    slots.append(())
    for _ in range(60):
        node.run_for(1)
        node.ledger.tick()
    ended = node.end(run.run_id)
    state.close()
    grams = sum(emission.grams for emission in ended.emissions)

    assert grams == pytest.approx(
        360 * 8.3 / 3.6e6 * 100, rel=0.15
    )  # 8 s, the update at the start, up to a tick


def test_clock_step_to_another_slot_keeps_past_energy_in_its_slot():
    """An hour forward at a tick: energy before the step belongs to the slot in which it was
    consumed.
    """
    now_at = 1_800_001_000.0
    clock_reading = [ClockReading(100.0, now_at, 100.0)]

    def slots_at(at):
        begin_s = at - at % 1_800.0
        return (Slot(begin_s, begin_s + 1_800.0, 230.0, "GB", "gb", "average", "actual"),)

    live = LiveState(slots_at=slots_at)
    ledger = Ledger(
        live, DeviceHolders(live, Attribution(), 0.0), None, clock=lambda: clock_reading[0]
    )
    run = run_of(Cut(90.0, None, slots_at(now_at - 10)))
    ledger.runs[run.run_id] = run
    ledger.tick()
    before = [cut.t_s for cut in run.cuts]
    clock_reading[0] = ClockReading(101.0, now_at + 1 + HOUR_S, 101.0)
    ledger.tick()

    assert before == [90.0]
    assert 100.0 <= run.cuts[-1].t_s <= 101.0
    assert run.cuts[-1].slots == slots_at(now_at + 1 + HOUR_S)


def test_view_of_running_run_has_emissions_of_its_energy(tmp_path):
    state = StateFile(tmp_path)
    slots = [slot(0, 100)]
    node = LedgerNode(state, slots_at=lambda _: (slots[-1],))
    run = node.begin()
    grams = []
    for intensity in (100, 100, 100, 300, 300):
        if intensity != slots[-1].grams_per_kwh:
            slots.append(slot(0, intensity))
            node.ledger.tick()
        node.run_for(4)
        node.ledger.tick()
        measured = node.ledger.measured(run, so_far=True)
        grams.append(
            (
                measured.energy("gpu").number,
                sum(one.grams for one in measured.emissions),
            )
        )
    state.close()

    before_j = 360 * 12.3  # until the slot changed, with the update of the sensors at the begin
    expected = [
        (min(joules, before_j) * 100 + max(0.0, joules - before_j) * 300) / 3.6e6
        for joules, _ in grams
    ]
    assert [joules for joules, _ in grams] == pytest.approx(
        [360 * s for s in (4.3, 8.3, 12.3, 16.3, 20.3)], rel=0.01
    )
    assert [mass_g for _, mass_g in grams] == pytest.approx(expected, rel=0.01)

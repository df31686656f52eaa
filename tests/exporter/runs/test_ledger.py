"""Restored, unsaved and changed runs of the ledger."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from tests.exporter.runs.ledger_node import GPU, LedgerNode
from tests.exporter.runs.two_gpu_node import UUIDS, TwoGpuNode, job
from wattline.contract.metrics import RUN_ATTRIBUTED_ENERGY, RUN_DURATION
from wattline_exporter.attribution.policy import AttributionChanges
from wattline_exporter.meter.totals import MeterTotals
from wattline_exporter.meter.uncertainty import energy_between
from wattline_exporter.runs.admission import RunEnd, RunStart
from wattline_exporter.runs.run_record import STORED
from wattline_exporter.sensors.processes.procfs import ProcessKey
from wattline_exporter.sensors.readings import Device, Poll, RunError
from wattline_exporter.storage.saved_state import StateChanges, StoredRun
from wattline_exporter.storage.state_file import StateFile


def test_ledger_changes_include_the_gpus_with_a_short_window(tmp_path):
    state = StateFile(tmp_path)
    node = LedgerNode(state)
    node.run_for(2)
    before = node.ledger.take_changes().short_windows
    node.live.energy.restore_short_windows({GPU})
    after = node.ledger.take_changes().short_windows
    state.close()

    assert before == set()
    assert after == {GPU}


def test_ledger_restore_finishes_run_killed_between_end_and_final_marks(tmp_path):
    state = StateFile(tmp_path)
    node = LedgerNode(state)
    run = node.begin(run_id="r")
    node.run_for(10)
    run.end_s, run.ended_at, run.outcome = (
        node.now_s,
        run.started_at + 10,
        "ok",
    )  # as `end` does before it waits
    body = STORED.dump_json(run).decode()
    stored = [StoredRun(run.run_id, run.started_at, run.is_open, False, run.request, body)]
    state.save(
        StateChanges(
            {GPU: node.live.energy.meters[GPU].totals},
            {},
            stored,
            {},
            AttributionChanges({}, set()),
            {},
            node.now(),
            node.live.energy.last_polls(),
        )
    )
    saved = state.load()
    later = LedgerNode(state)
    later.ledger.restore(saved, same_boot=True)
    again = later.end("r")
    state.close()

    assert [STORED.validate_json(body).run_id for body in saved.runs] == ["r"]
    assert (again.outcome, again.is_open) == ("ok", False)
    assert again.final[GPU].joules - again.begin[GPU].joules > 3_000
    assert any("killed while the run ended" in note for note in again.notes)
    assert isinstance(saved.totals[GPU], MeterTotals)


def test_ledger_restore_run_saved_before_its_first_marks_has_those_of_the_save(tmp_path):
    """The GPU had 360 W for 2.95 s since its first poll, the last one at the run's start. Its
    counter shows what was used up to 0.1 s before; since then 2,667 W may have flowed.
    """
    state = StateFile(tmp_path)
    node = LedgerNode(state)
    node.ledger.begin(RunStart(workload="test", run_id="r"))
    state.save(node.ledger.take_changes())
    later = LedgerNode(state)
    later.ledger.restore(state.load(), same_boot=True)
    begin = later.ledger.find("r").begin[GPU]
    state.close()

    assert begin.joules == pytest.approx(360.0 * 2.95, abs=1e-6)
    assert begin.half_width_j == pytest.approx(4_000.0 / 1.5 * 0.1, abs=1e-6)


def test_ledger_maximum_power_is_within_start_and_end(tmp_path):
    state = StateFile(tmp_path)
    node = LedgerNode(state)
    run = node.begin()
    node.live.energy.push(
        [Poll(GPU, run.begin_s - 0.01, run.begin_s - 0.01, 0.0, 700.0)]
    )  # polls arrive late
    node.run_for(2)
    run.end_s = node.now_s  # as `end` does before it waits
    node.live.energy.push([Poll(GPU, run.end_s - 0.01, run.end_s - 0.01, 0.0, 500.0)])
    node.live.energy.push([Poll(GPU, run.end_s + 0.01, run.end_s + 0.01, 0.0, 600.0)])
    node.live.energy.push(
        [Poll(Device("gpu", "GPU-of-another-run"), run.end_s - 0.01, run.end_s - 0.01, 0.0, 650.0)]
    )
    state.close()

    node.ledger.update()
    assert run.power_max_w == {GPU.id: 500.0}


def test_ledger_unsaved_run_is_not_forgotten(tmp_path):
    state = StateFile(tmp_path)
    node = LedgerNode(state)
    run = node.begin()
    node.end(run.run_id)
    changes = node.ledger.take_changes()
    node.ledger.tick()
    node.run_for(700)
    node.ledger.tick()
    assert run.run_id in node.ledger.runs

    node.ledger.put_back(changes)
    node.ledger.tick()
    assert run.run_id in node.ledger.runs

    node.ledger.confirm(node.ledger.take_changes())
    node.ledger.tick()
    assert run.run_id not in node.ledger.runs
    state.close()


def test_ledger_final_run_is_archived_as_the_api_showed_it(tmp_path):
    """600 s after its end the run loses its series; its figures are saved, and read from then
    on.
    """
    state = StateFile(tmp_path)
    node = LedgerNode(state)
    request = RunStart("train", run_id="r", labels={"model": "gpt2"})
    run, _ = node.ledger.begin(request)
    node.ledger.confirm_begin(run)
    node.run_for(10)
    node.end("r")
    shown = node.ledger.measured(node.ledger.find("r"))
    save(node, state)
    assert not state.run("r").is_final
    node.ledger.tick()
    node.run_for(601)
    node.ledger.tick()
    assert node.ledger.ids() == ([], [])
    save(node, state)
    node.ledger.tick()

    assert node.ledger.runs == {}
    assert node.ledger.find("r") == shown
    assert json.loads(state.run("r").body) == shown.to_json()
    assert node.ledger.begin(request) == (shown, False)
    with pytest.raises(RunError, match="already used by another run"):
        node.ledger.begin(replace(request, workload="other"))
    with pytest.raises(RunError, match=r"run 'r' has ended \(ok\)"):
        node.ledger.work("r", "", {"steps": 1.0})
    state.close()


@pytest.mark.parametrize(("away_s", "has_series"), [(590.0, True), (700.0, False)])
def test_ledger_restore_has_series_of_runs_that_ended_recently(tmp_path, away_s, has_series):
    state = StateFile(tmp_path)
    node = LedgerNode(state)
    node.begin(run_id="r")
    node.run_for(10)
    node.end("r")
    save(node, state)
    later = LedgerNode(state)
    later.first_at = node.first_at + node.now_s - later.now_s + away_s
    later.ledger.restore(state.load(), same_boot=False)
    state.close()

    assert later.ledger.ids() == ([], ["r"] if has_series else [])


def save(node, state):
    changes = node.ledger.take_changes()
    state.save(changes)
    node.ledger.confirm(changes)


def test_measure_counters_do_not_fall_while_start_settles(tmp_path):
    from wattline_exporter.runs.run_figures import run_with_figures

    state = StateFile(tmp_path)
    node = LedgerNode(state)
    run = node.begin()
    values: list[float] = []
    for _ in range(60):
        node.run_for(0.25)
        node.ledger.tick()
        measured = run_with_figures(run, node.live.energy.meters, node.now_s, None)
        values += [device.energy_j.number for device in measured.devices]
    state.close()

    assert values == sorted(values)
    assert len(values) > 20


def test_measure_energy_does_not_fall_when_processes_were_gone(tmp_path):
    alive, state = [True], StateFile(tmp_path)
    node = LedgerNode(state, is_alive=lambda _: alive[0])
    run = node.begin(gpus=["0"])
    run.processes.append(ProcessKey(1, 1.0))
    for _ in range(10):
        node.run_for(1)
        node.ledger.tick()
    alive[0], died_s, shown_j = False, node.now_s, []
    while run.running:
        node.run_for(1)
        node.ledger.tick()
        shown_j.append(node.ledger.measured(run).energy("gpu").number)
    state.close()

    assert shown_j == sorted(shown_j)
    assert shown_j[-1] == pytest.approx(360.0 * (died_s - run.begin_s), abs=20.0)


def test_ledger_phase_entered_again_has_first_and_last_start(tmp_path):
    """Phases of 10, 8 and 12 s: train starts at 0 and again at 18 s; the wall clock is set 100 s
    ahead at 25 s.
    """
    state = StateFile(tmp_path)
    node = LedgerNode(state)
    run = node.begin(run_id="r")
    first_at = run.started_at
    for name, lasting_s in (("train", 10), ("validate", 8), ("train", 7)):
        node.ledger.phase("r", name)
        for _ in range(lasting_s):
            node.run_for(1)
            node.ledger.tick()
    node.first_at += 100
    node.ledger.tick()
    node.run_for(5)
    node.end("r")
    phases = {phase.name: phase for phase in node.ledger.measured(node.ledger.find("r")).phases}
    state.close()

    shift_s = first_at + 100.3  # the start of a run takes 0.3 s
    assert phases["train"].started_at == pytest.approx(shift_s, abs=0.1)
    assert phases["train"].last_started_at == pytest.approx(shift_s + 18, abs=0.1)
    assert phases["train"].duration_s == pytest.approx(22, abs=0.4)
    assert (
        phases["validate"].last_started_at
        == phases["validate"].started_at
        == pytest.approx(shift_s + 10, abs=0.1)
    )


def test_ledger_work_has_the_time_of_its_latest_report(tmp_path):
    """A report after 4 s, none for 6 s, and the wall clock set 100 s ahead at 10 s; the end adds no
    work.
    """
    state = StateFile(tmp_path)
    node = LedgerNode(state)
    run = node.begin(run_id="r")
    first_at = run.started_at
    assert node.ledger.measured(run).work_reported_at is None
    node.run_for(4)
    node.ledger.work("r", "", {"steps": 40.0})
    reported_at = node.ledger.measured(run).work_reported_at
    node.run_for(6)
    node.ledger.tick()  # a step is the difference from the reading of the tick before
    node.first_at += 100
    node.ledger.tick()
    node.end("r")
    ended = node.ledger.measured(node.ledger.find("r"))
    state.close()

    assert reported_at == pytest.approx(first_at + 4.3, abs=0.1)  # the start of a run takes 0.3 s
    assert ended.work_reported_at == pytest.approx(first_at + 104.3, abs=0.1)


def test_ledger_restore_has_phases_and_end_saved_before_any_later_poll(tmp_path):
    """The run is saved as it is answered, before the sensors are read again, and then the exporter
    is killed.
    """
    state = StateFile(tmp_path)
    node = LedgerNode(state)
    run = node.begin(run_id="r")
    node.run_for(6)
    node.ledger.tick()
    node.ledger.phase("r", "first")
    node.run_for(2)
    node.ledger.phase("r", "second")
    node.run_for(2)
    node.ledger.stop(run, RunEnd())
    state.save(node.ledger.take_changes())
    later = LedgerNode(state)
    later.ledger.restore(state.load(), same_boot=True)
    ended = later.ledger.find("r")
    state.close()
    energy = energy_between(ended.begin[GPU], ended.final[GPU])
    true_j = 360.0 * ((ended.end_s or 0.0) - ended.begin_s)

    assert [phase.name for phase in ended.phases] == ["first", "second"]
    assert [phase.seconds for phase in ended.phases] == [pytest.approx(2.0), pytest.approx(2.0)]
    assert sum(phase.joules[GPU] for phase in ended.phases) <= energy.joules
    assert abs(energy.joules - true_j) <= energy.half_width_j
    assert energy.half_width_j < 0.1 * true_j


@pytest.mark.parametrize(("gpus", "named"), [(None, "GPU 0"), ([], "no GPU yet")])
def test_ledger_logs_the_gpus_of_a_new_run(tmp_path, caplog, gpus, named):
    state = StateFile(tmp_path)
    with caplog.at_level("INFO"):
        LedgerNode(state).begin(run_id="r", gpus=gpus)
    state.close()

    assert f"run r (test) began on {named}" in caplog.messages


@pytest.mark.parametrize(("late_s", "kept_s"), [(4.0, 0.0), (40.0, 28.0)])
def test_ledger_late_end_has_the_time_of_the_request(tmp_path, late_s, kept_s):
    state = StateFile(tmp_path)
    node = LedgerNode(state)
    run = node.begin(run_id="r")
    node.run_for(5 - 0.3)  # the begin takes 0.3 s
    ended_at = node.now().at
    node.run_for(late_s)
    asyncio.run(node.service.end("r", RunEnd(ended_at=ended_at)))
    state.close()

    run = node.ledger.find("r")
    duration_s = 5 + kept_s  # the meters keep the polls of 12 s
    assert run.ended_at - run.started_at == pytest.approx(duration_s, abs=0.1)
    assert run.final[GPU].joules - run.begin[GPU].joules == pytest.approx(
        360 * duration_s, rel=0.03
    )
    assert any("no longer kept" in note for note in run.notes) == (kept_s > 0)


def test_ledger_late_end_discards_a_phase_that_was_late_as_well(tmp_path):
    state = StateFile(tmp_path)
    node = LedgerNode(state)
    run = node.begin(run_id="r")
    node.ledger.phase("r", "train")
    node.run_for(5)
    ended_at = node.now().at
    node.run_for(2)
    node.ledger.phase("r", "rest")
    node.run_for(1)
    asyncio.run(node.service.end("r", RunEnd(ended_at=ended_at)))
    state.close()

    assert [(phase.name, phase.seconds) for phase in run.phases] == [
        ("train", pytest.approx(5.0, abs=0.1))
    ]
    assert run.final[GPU].joules - run.begin[GPU].joules == pytest.approx(360 * 5.3, rel=0.03)


def test_ledger_end_in_the_future_or_before_the_start_is_bounded(tmp_path):
    state = StateFile(tmp_path)
    node = LedgerNode(state)
    durations_s = []
    for ended_at in (node.first_at - 100, node.first_at + 1_000):
        run = node.begin()
        node.run_for(2)
        asyncio.run(node.service.end(run.run_id, RunEnd(ended_at=ended_at)))
        durations_s.append(run.end_s - run.begin_s)
    state.close()

    assert durations_s == [0.0, pytest.approx(2.3)]


FIRST_GPU = Device("gpu", UUIDS[0])


@pytest.fixture
def two_gpu_node(tmp_path):
    node = TwoGpuNode(tmp_path)
    yield node
    node.file.close()


def test_ledger_run_changes_until_all_its_devices_are_divided(two_gpu_node):
    """The GPU was read for 9 s at 80 W. Its last poll before the run's end is 2 s old, the next one
    comes 1 s after it: of the 80 J between them, two thirds are the run's.
    """
    run = two_gpu_node.begin("job-1", job(1), {}, [0])
    two_gpu_node.run_for(10)
    two_gpu_node.s += 2.0
    two_gpu_node.end(run)
    ledger = two_gpu_node.ledger
    assert ledger.ids() == (["job-1"], [])
    assert shares_j(ledger.ended_attribution("job-1")) == [720.0]
    assert shares_j(ledger.attribution_readings([FIRST_GPU], recorded=True)) == [720.0]

    two_gpu_node.run_for(1)

    assert ledger.ids() == ([], ["job-1"])
    final_j = pytest.approx(720 + 160 / 3, abs=1e-5)
    assert shares_j(ledger.ended_attribution("job-1")) == [final_j]
    assert shares_j(ledger.attribution_readings([FIRST_GPU], recorded=True)) == []


def test_page_has_the_attributed_energies_of_an_ended_run_once(two_gpu_node):
    run = two_gpu_node.begin("job-1", job(1), {}, [0])
    two_gpu_node.run_for(10)
    two_gpu_node.end(run)
    two_gpu_node.run_for(1)
    series = two_gpu_node.collector.series()
    (ended,) = series.ended

    assert shares_j(series.readings) == []
    assert shares_j(ended.readings) == [720.0]


def test_ended_runs_on_the_same_gpu_keep_their_own_readings(two_gpu_node):
    for run_id, duration_s in (("job-1", 10), ("job-2", 20)):
        run = two_gpu_node.begin(run_id, job(int(run_id[-1])), {}, [0])
        two_gpu_node.run_for(duration_s)
        two_gpu_node.end(run)
        two_gpu_node.run_for(1)
    ended = two_gpu_node.collector.second().ended
    durations_s = {
        run_id: [reading.value for reading in readings if reading.metric is RUN_DURATION]
        for run_id, readings in ended.items()
    }
    labels = {run_id: {reading.labels[0] for reading in ended[run_id]} for run_id in ended}

    assert durations_s == {"job-1": [10.0], "job-2": [20.0]}
    assert labels == {"job-1": {"job-1"}, "job-2": {"job-2"}}


def shares_j(readings):
    """Return the energies above 0 that are attributed to job-1 by policy idle_shared."""
    return [
        reading.value
        for reading in readings
        if reading.metric is RUN_ATTRIBUTED_ENERGY
        and (reading.labels[0], reading.labels[3]) == ("job-1", "idle_shared")
        and reading.value
    ]

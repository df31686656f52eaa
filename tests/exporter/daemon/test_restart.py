"""Restarts of exporter, driver and host: energy is neither lost nor counted twice."""

import json
import signal
import sqlite3
import time
from contextlib import closing

import pytest

from tests.daemon import begin, daemon, end, start
from tests.exporter.api import UUIDS
from tests.fakes.clock import Clock
from tests.polling import eventually
from wattline_exporter.simulation import Constant

OPTIONS = ("--simulate", "2xH200", "--no-collector.rapl", "--no-collector.host")
DOWN_S = 2.5
"""Time without an exporter, in seconds."""
RISING = ("wattline_gpu_energy_joules_total", "wattline_gpu_integrated_energy_joules_total")


@pytest.fixture
def clock(tmp_path):
    clock = Clock(tmp_path / "clock")
    yield clock
    clock.close()


def counters(exporter):
    return {
        (name, labels["uuid"]): value
        for name in RISING
        for labels, value in exporter.metrics().get(name, ())
    }


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_restart_continues_a_run(tmp_path, sign):
    with daemon(tmp_path, *OPTIONS) as first, first.simulation() as simulation:
        simulation.set_load(0, Constant(500.0))
        run_id = begin(first, labels={"a": "b"})["run_id"]
        time.sleep(6.5)  # until its start is final and its energy is exported
        before_restart = first.get(f"/api/v1/runs/{run_id}")[1]
        before = counters(first)
        assert first.stop(sign) == (0 if sign == signal.SIGTERM else -signal.SIGKILL)
    time.sleep(DOWN_S)
    with daemon(tmp_path, *OPTIONS) as second:
        after_restart = second.get(f"/api/v1/runs/{run_id}")[1]
        after = counters(second)
        time.sleep(1.5)
        run = end(second, run_id)

    assert after_restart["state"] == "running"
    assert after_restart["started_at"] == before_restart["started_at"]
    assert (
        after_restart["energy_joules"]["gpu"][UUIDS[0]]
        >= before_restart["energy_joules"]["gpu"][UUIDS[0]]
    )
    assert set(after) == set(before)
    assert all(after[series] >= value for series, value in before.items())
    assert any("was not running" in note for note in run["notes"])
    watched_s = run["duration_seconds"] - DOWN_S  # at most; starts of exporters are not watched
    assert 0.0 < run["covered_ratio"]["gpu"][UUIDS[0]] < watched_s / run["duration_seconds"]
    truth = 500.0 * run["duration_seconds"]
    assert (
        abs(run["energy_joules"]["gpu"][UUIDS[0]] - truth)
        <= run["energy_uncertainty_joules"]["gpu"][UUIDS[0]]
    )
    assert run["energy_uncertainty_joules"]["gpu"][UUIDS[0]] < 0.05 * truth
    assert run["integrated_energy_joules"][UUIDS[0]] < 500.0 * watched_s


def test_restart_then_immediate_end_has_all_energy(tmp_path):
    with daemon(tmp_path, *OPTIONS) as first, first.simulation() as simulation:
        simulation.set_load(0, Constant(500.0))
        run_id = begin(first)["run_id"]
        time.sleep(2.0)
        first.stop(signal.SIGKILL)
    time.sleep(2.0)
    with daemon(tmp_path, *OPTIONS, ready=False) as second:
        run = end(second, run_id)

    truth = 500.0 * run["duration_seconds"]
    assert truth > 2_000
    assert run["energy_joules"]["gpu"][UUIDS[0]] == pytest.approx(truth, rel=0.03)
    assert (
        abs(run["energy_joules"]["gpu"][UUIDS[0]] - truth)
        <= run["energy_uncertainty_joules"]["gpu"][UUIDS[0]]
    )
    assert not any("energy after that is missing" in note for note in run["notes"])


def test_restart_still_shows_an_ended_run(tmp_path):
    with daemon(tmp_path, *OPTIONS) as first:
        run = end(first, begin(first)["run_id"])
        before = first.value(
            "wattline_run_energy_joules_total", run_id=run["run_id"], device=UUIDS[0]
        )
    with daemon(tmp_path, *OPTIONS) as second:
        assert second.get(f"/api/v1/runs/{run['run_id']}") == (200, run)
        assert (
            second.value("wattline_run_energy_joules_total", run_id=run["run_id"], device=UUIDS[0])
            == before
        )


def test_restart_extends_the_lease_by_the_downtime(tmp_path, clock):
    with daemon(tmp_path, *OPTIONS, env=clock.environment()) as first:
        run_id = begin(first, lease_seconds=30)["run_id"]
    clock.suspend(60.0)
    with daemon(tmp_path, *OPTIONS, env=clock.environment()) as second:
        assert second.post(f"/api/v1/runs/{run_id}/work")[0] == 200
        assert end(second, run_id)["outcome"] == "ok"


@pytest.mark.parametrize(
    "before_w", [500.0, 80.0], ids=["counter below its old value", "counter above its old value"]
)
def test_driver_reload_during_a_run_detects_the_counter_reset(tmp_path, before_w):
    with daemon(tmp_path, *OPTIONS) as exporter, exporter.simulation() as simulation:
        simulation.set_load(0, Constant(before_w))
        time.sleep(1.0)
        run = begin(exporter)
        run_id = run["run_id"]
        time.sleep(1.0)
        before = counters(exporter)
        simulation.unload_driver()
        exporter.wait_for_metric(lambda up: up == 0, "wattline_gpu_up", gpu="0")
        assert exporter.value("wattline_gpu_power_watts", gpu="0") is None
        time.sleep(1.5)  # a gap of less than a second is bridged
        simulation.set_load(0, Constant(500.0))
        begun_s, anew_s = run["started_at"], time.time()
        simulation.load_driver()
        exporter.wait_for_metric(lambda up: up == 1, "wattline_gpu_up", gpu="0")
        time.sleep(1.0)
        after = counters(exporter)
        run = end(exporter, run_id)
        assert exporter.value("wattline_source_restarts_total", source="nvml") >= 1

    assert all(after[series] >= value for series, value in before.items())
    truth = before_w * (anew_s - begun_s) + 500.0 * (run["ended_at"] - anew_s)
    joules = run["energy_joules"]["gpu"][UUIDS[0]]
    assert 500.0 < joules < truth
    assert truth - joules <= run["energy_uncertainty_joules"]["gpu"][UUIDS[0]]
    assert any("was reset" in note for note in run["notes"])
    assert run["covered_ratio"]["gpu"][UUIDS[0]] < 1


def saved_silence_s(folder):
    """Return the time from the energy that the last poll of GPU 0 shows to the last save."""
    with closing(sqlite3.connect(folder / "state" / "state.sqlite")) as connection:
        ((saved_s, shown_s),) = connection.execute(
            "SELECT value, shown_s FROM meta, last_poll WHERE key = 'saved_s' AND id = ?",
            [UUIDS[0]],
        )
    return float(saved_s) - shown_s


def leave_on_another_boot(folder, run_id):
    """Change the boot of the saved state; return the Unix time of the save, and the half-width of
    the run's start in joules.
    """
    with sqlite3.connect(folder / "state" / "state.sqlite") as connection:
        connection.execute("UPDATE meta SET value = 'another' WHERE key = 'boot_id'")
        ((saved_at,),) = connection.execute("SELECT value FROM meta WHERE key = 'saved_at'")
        ((body,),) = connection.execute("SELECT body FROM run WHERE run_id = ?", [run_id])
    connection.close()
    begin_half_j = json.loads(body)["begin"][f"gpu:{UUIDS[0]}"]["half_width_j"]
    return float(saved_at), begin_half_j


@pytest.mark.parametrize(
    ("sign", "silent_s"),
    [(signal.SIGTERM, 0.0), (signal.SIGTERM, 1.0), (signal.SIGKILL, 1.0)],
    ids=["stopped", "stopped, polls late", "killed, polls late"],
)
def test_reboot_ends_the_run_when_last_recorded(tmp_path, sign, silent_s):
    """The energy is that of the last poll; the half-width includes the time from it to the end."""
    with daemon(tmp_path, *OPTIONS) as first:
        run_id = begin(first)["run_id"]
        time.sleep(1.5)
        before_s = time.monotonic()
        before = counters(first)
        (worker,) = first.children()
        if silent_s:
            worker.suspend()
            eventually(lambda: saved_silence_s(tmp_path) > silent_s, "a save without new polls")
        if sign == signal.SIGKILL:
            first.process.send_signal(signal.SIGSTOP)
            worker.kill()
        first.stop(sign)
    saved_at, begin_half_j = leave_on_another_boot(tmp_path, run_id)
    unseen_s = saved_silence_s(tmp_path)
    with daemon(tmp_path, *OPTIONS) as second:
        run = second.get(f"/api/v1/runs/{run_id}")[1]
        after = counters(second)
        watched_s = time.monotonic() - before_s

    assert (run["state"], run["outcome"]) == ("ended", "interrupted")
    assert run["ended_at"] == pytest.approx(saved_at, abs=0.01)
    assert any("machine was restarted" in note for note in run["notes"])
    half_width_j = run["energy_uncertainty_joules"]["gpu"][UUIDS[0]]
    error_j = 78 * run["duration_seconds"] - run["energy_joules"]["gpu"][UUIDS[0]]
    assert abs(error_j) <= half_width_j
    # the GPU may have drawn its limit of 700 W since the time that the last poll shows
    assert half_width_j == pytest.approx(begin_half_j + 700.0 * unseen_s, abs=1.0)
    # the mark of the start is taken again after 0.5 s: at most the energy that 78 W hide between
    # two polls, about 1 s apart and at most 1.5 s on a busy machine
    assert begin_half_j < 78 * (700 - 78) / 700 * 1.5
    assert unseen_s > silent_s
    # raw values of different boots cannot be compared: energy of the downtime is not added
    assert all(
        value <= after[series] <= value + 78 * (watched_s + 0.1)  # an update may be 0.1 s late
        for series, value in before.items()
    )


def test_second_exporter_on_a_state_folder_is_rejected_in_one_line(tmp_path):
    with daemon(tmp_path, *OPTIONS) as first:
        second = start(tmp_path, *OPTIONS)
        assert second.process.wait(30) == 1
        (line,) = second.log().splitlines()
        assert f"pid {first.process.pid}" in line
        assert "--state.path" in line
        assert first.get("/-/ready")[0] == 200


@pytest.mark.parametrize(
    ("edit", "code", "words"),
    [
        ("UPDATE meta SET value = '99' WHERE key = 'schema_version'", 78, ["schema 99"]),
        ("UPDATE run SET body = '{}', running = 1", 1, ["cannot read", "move it away"]),
        ("DROP TABLE device", 0, []),
    ],
)
def test_unreadable_state_is_one_line(tmp_path, edit, code, words):
    with daemon(tmp_path, *OPTIONS) as first:
        end(first, begin(first)["run_id"])
    with sqlite3.connect(tmp_path / "state" / "state.sqlite") as connection:
        connection.execute(edit)
    connection.close()
    second = start(tmp_path, *OPTIONS)
    if not words:  # a missing table is created again
        eventually(lambda: "serving on" in second.log(), "it serves", second.log)
        assert second.stop() == 0
        return
    assert second.process.wait(30) == code
    (line,) = second.log().splitlines()
    assert all(word in line for word in words)


def test_state_file_of_other_format_is_one_line(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "state.sqlite").write_text(
        "not a database, but longer than a database header " * 10
    )
    exporter = start(tmp_path, *OPTIONS)

    assert exporter.process.wait(30) == 1
    (line,) = exporter.log().splitlines()
    assert "state.sqlite" in line
    assert "move it away" in line


def test_restart_with_other_simulated_gpus_continues_without_a_warning(tmp_path):
    """The counters of the new GPUs start from 0: that of GPU 0 is below its last value."""
    with daemon(tmp_path, *OPTIONS) as first, first.simulation() as simulation:
        simulation.set_load(0, Constant(500.0))
        time.sleep(4)
        before = counters(first)
    with daemon(tmp_path, "--simulate", "3xH200", *OPTIONS[2:]) as second:
        begun_j = second.value(RISING[0], uuid=UUIDS[0])
        eventually(lambda: second.value(RISING[0], uuid=UUIDS[0]) > begun_j + 60)
        log = second.log()

    assert begun_j >= before[RISING[0], UUIDS[0]]
    assert (
        "the simulated GPUs are new: their energy counters start from 0, and the exported totals "
        "continue" in log
    )
    assert "unreliable energy" not in log

"""State file: last polls of the devices, and a disk without space."""

import sqlite3
from pathlib import Path

import pytest

from wattline.contract.history import STATE_FILE
from wattline_exporter.attribution.policy import AttributionChanges
from wattline_exporter.meter.totals import LastPoll
from wattline_exporter.sensors.readings import ClockReading, Device
from wattline_exporter.storage.saved_state import SavedState, StateChanges, StoredRun
from wattline_exporter.storage.state_file import StateFile

GPU, OTHER = Device("gpu", "GPU-0"), Device("gpu", "GPU-1")
LAST = LastPoll(99.95, 700.0, 99.8, 2.5)
NOW = ClockReading(100.0, 1_790_000_000.0, 90.0)


def test_failed_save_makes_room_by_a_checkpoint(tmp_path: Path) -> None:
    """A small disk is filled by the journal, which grows to 4 MB before SQLite starts it again."""
    file = StateFile(tmp_path)
    journal = tmp_path / f"{STATE_FILE}-wal"

    def save_run(body: str) -> None:
        runs = [StoredRun("run", 0.0, is_open=True, is_final=False, request="", body=body)]
        file.save(StateChanges({}, {}, runs, {}, AttributionChanges({}, set()), {}, NOW))

    for _ in range(20):
        save_run("short")
    file._connection.execute(
        f"PRAGMA max_page_count = {file._connection.execute('PRAGMA page_count').fetchone()[0]}"
    )
    grown_bytes = journal.stat().st_size
    with pytest.raises(sqlite3.OperationalError, match="full"):
        save_run("long" * 10_000)
    left_bytes = journal.stat().st_size
    file.close()

    assert grown_bytes > 20 * 4_096
    assert left_bytes == 0


def save(
    folder: Path, polls: dict[Device, LastPoll], short_windows: set[Device] | None = None
) -> None:
    file = StateFile(folder)
    attributed = AttributionChanges({}, set())
    file.save(StateChanges({}, {}, [], {}, attributed, {}, NOW, polls, short_windows or set()))
    file.close()


def load(folder: Path) -> SavedState:
    file = StateFile(folder)
    state = file.load()
    file.close()
    return state


def test_short_windows_are_those_of_the_last_save(tmp_path: Path) -> None:
    save(tmp_path, {}, {GPU, OTHER})
    save(tmp_path, {}, {OTHER})

    assert load(tmp_path).short_windows == {OTHER}


def test_last_polls_are_restored(tmp_path: Path) -> None:
    save(tmp_path, {GPU: LAST})

    assert load(tmp_path).polls == {GPU: LAST}


def test_last_poll_is_removed_with_the_device(tmp_path: Path) -> None:
    save(tmp_path, {GPU: LAST, OTHER: LAST})
    save(tmp_path, {OTHER: LAST})

    assert load(tmp_path).polls == {OTHER: LAST}


def test_save_time_is_the_instant_of_the_changes(tmp_path: Path) -> None:
    """A disk that is slow for a second must not look like a step of the wall clock."""
    save(tmp_path, {})
    state = load(tmp_path)

    assert (state.saved_s, state.saved_at) == (100.0, 1_790_000_000.0)

"""State file: last polls of the devices, and a disk without space."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from wattline.contract.history import STATE_FILE
from wattline_exporter.attribution.policy import AttributionChanges
from wattline_exporter.meter.totals import LastPoll
from wattline_exporter.sensors.readings import Device
from wattline_exporter.storage.saved_state import StateChanges, StoredRun
from wattline_exporter.storage.state_file import StateFile

GPU = Device("gpu", "GPU-0")


def test_failed_save_makes_room_by_a_checkpoint(tmp_path: Path) -> None:
    """A small disk is filled by the journal, which grows to 4 MB before SQLite starts it again."""
    file = StateFile(tmp_path)
    journal = tmp_path / f"{STATE_FILE}-wal"

    def save_run(body: str) -> None:
        runs = [StoredRun("run", 0.0, is_open=True, is_final=False, request="", body=body)]
        file.save(StateChanges({}, {}, runs, {}, AttributionChanges({}, set()), {}, 100.0))

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


def save(folder: Path) -> None:
    file = StateFile(folder)
    file.save(
        StateChanges(
            {}, {}, [], {}, AttributionChanges({}, set()), {}, 100.0, {GPU: LastPoll(99.95, 700.0)}
        )
    )
    file.close()


def load_polls(folder: Path) -> dict[Device, LastPoll]:
    file = StateFile(folder)
    polls = file.load().polls
    file.close()
    return polls


def test_last_polls_are_restored(tmp_path: Path) -> None:
    save(tmp_path)

    assert load_polls(tmp_path) == {GPU: LastPoll(99.95, 700.0)}


def test_last_polls_are_ignored_after_a_version_that_does_not_save_them(tmp_path: Path) -> None:
    save(tmp_path)
    with closing(sqlite3.connect(tmp_path / STATE_FILE)) as connection, connection:
        connection.execute("UPDATE meta SET value = '200.0' WHERE key = 'saved_s'")

    assert load_polls(tmp_path) == {}

"""Time of each device's last poll in the state file."""

import sqlite3
from contextlib import closing
from pathlib import Path

from exporter.attribution.policy import AttributionChanges
from exporter.contract.history import STATE_FILE
from exporter.energy.marks import LastPoll
from exporter.model import Device
from exporter.storage.state_file import StateChanges, StateFile

GPU = Device("gpu", "GPU-0")


def save(folder: Path) -> None:
    file = StateFile(folder)
    file.save(StateChanges({}, {}, [], {}, AttributionChanges({}, set()), {}, 100.0, {GPU: LastPoll(99.95, 700.0)}))
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

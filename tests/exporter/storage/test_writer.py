"""Separate threads of the two files: a busy history does not delay runs."""

import asyncio
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from wattline.contract.history import HISTORY_FILE, STATE_FILE
from wattline.contract.metrics import STATE_UP
from wattline_exporter.attribution.policy import Attribution
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.runs.admission import RunStart
from wattline_exporter.runs.holders import DeviceHolders
from wattline_exporter.runs.ledger import Ledger
from wattline_exporter.sensors.readings import Reading, read_clocks
from wattline_exporter.storage.history import History
from wattline_exporter.storage.state_file import StateFile
from wattline_exporter.storage.writer import (
    MAX_QUEUED_SECONDS,
    DiskHealth,
    HistorySecond,
    HistoryWriter,
    StateWriter,
    StorageFiles,
)


class BusyHistory(History):
    """History that is busy, as in the daily cleanup, until the test releases it."""

    def __init__(self, folder):
        super().__init__(folder)
        self.is_in_it, self.may_go_on = threading.Event(), threading.Event()

    def add(self, *arguments, **options):
        self.is_in_it.set()
        self.may_go_on.wait()
        super().add(*arguments, **options)


class Node:
    def __init__(self, folder):
        self.folder = folder
        self.state = StateFile(folder)
        health = DiskHealth(folder)
        self.history = BusyHistory(folder)
        self.writes = HistoryWriter(self.history, health)
        live = LiveState()
        self.ledger = Ledger(live, DeviceHolders(live, Attribution(), 0.0), self.state)
        self.writer = StateWriter(self.state, self.ledger, health, self.writes, self.second)

    def second(self):
        clocks = read_clocks()
        return HistorySecond(clocks.at, clocks.s, [Reading(STATE_UP, (), 1.0)], {}, run_open=True)

    def begin(self, run_id):
        run, _ = self.ledger.begin(RunStart(workload="test", run_id=run_id))
        self.ledger.confirm_begin(run)

    async def close(self):
        await self.writer.stop()
        await StorageFiles(self.writer, self.writes).stop()

    def stored(self):
        with closing(sqlite3.connect(self.folder / STATE_FILE)) as connection:
            return [
                run_id for (run_id,) in connection.execute("SELECT run_id FROM run ORDER BY run_id")
            ]

    def moments(self):
        with closing(sqlite3.connect(self.folder / HISTORY_FILE)) as connection:
            return connection.execute("SELECT count(DISTINCT t_ms) FROM samples").fetchone()[0]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_writer_saves_runs_while_the_history_is_busy(node):
    async def run_node():
        node.begin("run-0")
        await node.writer.save_each_second()
        await asyncio.to_thread(node.history.is_in_it.wait)
        for number in (1, 2, 3):
            node.begin(f"run-{number}")
            await node.writer.next_save()
            assert node.stored()[-1] == f"run-{number}"
            assert len(await asyncio.to_thread(node.state.runs, 10)) == number + 1
            await node.writer.save_each_second()
            await asyncio.sleep(0.002)  # another millisecond, the resolution of the history
        assert node.moments() == 0
        node.history.may_go_on.set()
        await node.close()

    asyncio.run(asyncio.wait_for(run_node(), 60))

    assert node.moments() == 5  # four seconds, and the final save


def test_writer_measures_the_space_of_the_state_folder(tmp_path):
    (tmp_path / "file").write_bytes(bytes(5_000))
    health = DiskHealth(tmp_path)
    assert [reading.metric.name for reading in health.readings()] == [
        "wattline_state_up"
    ]  # no file is read for a scrape
    with ThreadPoolExecutor(1) as thread:
        asyncio.run(health.write(thread, "file", lambda: None))
    space = {reading.metric.name: reading.value for reading in health.readings()}
    assert space["wattline_state_used_bytes"] == 5_000
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert space["wattline_state_free_bytes"] == pytest.approx(free, abs=1e9)


def test_writer_limits_seconds_queued_for_a_busy_history(node):
    async def run_node():
        node.begin("run-0")
        for _ in range(MAX_QUEUED_SECONDS + 20):
            await node.writer.save_each_second()
            await asyncio.sleep(0.002)
        node.history.may_go_on.set()
        await node.close()

    asyncio.run(asyncio.wait_for(run_node(), 60))

    assert (
        MAX_QUEUED_SECONDS <= node.moments() <= MAX_QUEUED_SECONDS + 2
    )  # and the one being written

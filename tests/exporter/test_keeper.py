"""The two files have a thread each: a history that is busy holds up no run."""

import asyncio
import sqlite3
import threading
from contextlib import closing

import pytest

from exporter.contract.history import HISTORY_FILE, STATE_FILE
from exporter.contract.metrics import STATE_UP
from exporter.contract.run import BeginRequest
from exporter.live_state import Past, Store
from exporter.model import Reading
from exporter.runs.ledger import Ledger
from exporter.storage.history import History
from exporter.storage.state_file import State
from exporter.storage.writer import KEEP_UNWRITTEN, Keeper


class BusyHistory(History):
    """Is in the midst of something, such as the daily sweep, until the test lets it go on."""

    def __init__(self, folder):
        super().__init__(folder)
        self.is_in_it, self.may_go_on = threading.Event(), threading.Event()

    def add(self, *arguments, **options):
        self.is_in_it.set()
        self.may_go_on.wait()
        super().add(*arguments, **options)


async def nothing_to_sense():
    pass


class Node:
    def __init__(self, folder):
        self.folder = folder
        self.state, self.history = State(folder), BusyHistory(folder)
        self.store = Store(Past(), version="test", slots_at=lambda _: ())
        self.ledger = Ledger(self.store, self.state, sense=nothing_to_sense)
        shown = [Reading(STATE_UP, (), 1.0)]
        self.keeper = Keeper(self.state, self.history, self.store, self.ledger, lambda: iter(shown))

    def stored(self):
        with closing(sqlite3.connect(self.folder / STATE_FILE)) as connection:
            return [run_id for (run_id,) in connection.execute("SELECT run_id FROM run ORDER BY run_id")]

    def moments(self):
        with closing(sqlite3.connect(self.folder / HISTORY_FILE)) as connection:
            return connection.execute("SELECT count(DISTINCT t_ms) FROM samples").fetchone()[0]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_runs_are_kept_and_listed_while_the_history_is_swept_and_its_seconds_come_after_it(node):
    async def lived():
        await node.ledger.begin(BeginRequest(workload="test", run_id="run-0"))
        await node.keeper.save_each_second()
        await asyncio.to_thread(node.history.is_in_it.wait)
        for number in (1, 2, 3):
            await node.ledger.begin(BeginRequest(workload="test", run_id=f"run-{number}"))
            await node.keeper.soon()
            assert node.stored()[-1] == f"run-{number}"
            assert len(await asyncio.to_thread(node.state.runs, 10)) == number + 1
            await node.keeper.save_each_second()
            await asyncio.sleep(0.002)  # another millisecond, by which the history tells moments apart
        assert node.moments() == 0
        node.history.may_go_on.set()
        await node.keeper.close()

    asyncio.run(asyncio.wait_for(lived(), 60))

    assert node.moments() == 5  # four seconds, and the last save of all


def test_seconds_that_the_history_never_takes_do_not_pile_up(node):
    async def lived():
        await node.ledger.begin(BeginRequest(workload="test", run_id="run-0"))
        for _ in range(KEEP_UNWRITTEN + 20):
            await node.keeper.save_each_second()
            await asyncio.sleep(0.002)
        node.history.may_go_on.set()
        await node.keeper.close()

    asyncio.run(asyncio.wait_for(lived(), 60))

    assert KEEP_UNWRITTEN <= node.moments() <= KEEP_UNWRITTEN + 2  # and the one that it was at

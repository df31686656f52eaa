"""The child process of a source: one that does not end as it should is ended, and never waited for in vain."""

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from exporter.nvml_worker.supervisor import Worker
from tests.daemon import eventually

SAYS_IT_IS_GONE_AND_STAYS = """
import pathlib, os, time
with pathlib.Path({pids!r}).open("a") as file:
    print(os.getpid(), file=file)
print('{{"gone": ["the driver"]}}', flush=True)
time.sleep(600)
"""
ENDS = """
import pathlib, os, signal, sys
with pathlib.Path({pids!r}).open("a") as file:
    print(os.getpid(), file=file)
END
"""
HEEDS_NOTHING = """
import pathlib, os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with pathlib.Path({pids!r}).open("a") as file:
    print(os.getpid(), file=file)
print('{{"count": [1]}}', flush=True)
time.sleep(600)
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Makes a module of this source code that the worker can run; gives its name, and the pids that have run it."""

    def made(source):
        pids = tmp_path / "pids"
        (tmp_path / "child_of_a_test.py").write_text(source.format(pids=str(pids)))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
        return "child_of_a_test", lambda: [int(line) for line in pids.read_text().split()] if pids.exists() else []

    return made


def keep(worker, until):
    """Runs the worker until that holds, then cancels it; returns how long its end took."""

    async def kept():
        task = asyncio.create_task(worker.run())
        await asyncio.to_thread(eventually, until, "what the test waits for")
        asked_s = time.monotonic()
        task.cancel()
        await asyncio.wait({task})
        return time.monotonic() - asked_s

    return asyncio.run(kept())


def test_a_child_that_says_it_is_gone_and_stays_is_ended_and_replaced(child, caplog):
    module, pids = child(SAYS_IT_IS_GONE_AND_STAYS)
    heard = []
    keep(Worker([module], heard.append), lambda: len(pids()) == 2)

    assert heard[0] == {"gone": ["the driver"]}
    assert not any(map(psutil.pid_exists, pids()))
    assert "replaced" not in caplog.text  # the source has said what it told


@pytest.mark.parametrize(
    ("end", "how"),
    [("sys.exit(3)", "ended with exit code 3"), ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL")],
)
def test_a_child_that_ends_without_a_word_is_named_and_how_it_ended(child, caplog, end, how):
    module, pids = child(ENDS.replace("END", end))
    keep(Worker([module], lambda _: None), lambda: "replaced" in caplog.text)
    (warning,) = [record.message for record in caplog.records]

    assert warning == f"worker {pids()[0]} ({module}) {how}; it is replaced in 2 s"


def test_an_interpreter_that_may_not_be_executed_is_told_and_tried_again(tmp_path, monkeypatch):
    interpreter = tmp_path / "python3"
    interpreter.write_text("not to be executed")
    monkeypatch.setattr(sys, "executable", str(interpreter))
    monkeypatch.setattr("exporter.nvml_worker.supervisor.FIRST_BACKOFF_S", 0.01)
    heard = []
    keep(Worker(["exporter.nvml_worker.main"], heard.append), lambda: len(heard) == 2)

    (reason,) = heard[0]["gone"]
    assert reason.startswith(f"cannot run {interpreter}: Permission denied; install Wattline where this user may")


def test_a_child_that_heeds_nothing_is_killed_before_the_exporters_three_seconds_are_over(child):
    module, pids = child(HEEDS_NOTHING)
    took_s = keep(Worker([module], lambda _: None), lambda: bool(pids()))
    print(f"ended in {took_s:.2f} s")

    assert took_s < 10
    assert not any(map(psutil.pid_exists, pids()))


def test_a_child_that_is_stopped_is_ended_too(child):
    module, pids = child(HEEDS_NOTHING)

    def stopped():
        if pids():
            psutil.Process(pids()[0]).suspend()
        return bool(pids())

    keep(Worker([module], lambda _: None), stopped)

    assert not Path(f"/proc/{pids()[0]}").exists()


WRITES_TOO_LONG_A_LINE = """
import pathlib, os, time
with pathlib.Path({pids!r}).open("a") as file:
    print(os.getpid(), file=file)
print("[" + " " * (5 << 20) + "]", flush=True)
time.sleep(600)
"""


def test_a_child_that_writes_a_line_without_end_is_replaced_with_one_line_in_the_log(child, caplog):
    module, pids = child(WRITES_TOO_LONG_A_LINE)
    keep(Worker([module], lambda _: None), lambda: len(pids()) == 2)

    assert len([record for record in caplog.records if "bytes in one line" in record.getMessage()]) == 1
    assert not any(map(psutil.pid_exists, pids()))

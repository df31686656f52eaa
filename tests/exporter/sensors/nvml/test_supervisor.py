"""Worker processes that do not end as they should."""

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.polling import eventually
from wattline_exporter.sensors.nvml.messages import MAX_BYTES, encode_items
from wattline_exporter.sensors.nvml.supervisor import WorkerSupervisor
from wattline_exporter.sensors.readings import DriverGone, GpuCount

REPORTS_AND_STAYS = """
import pathlib, os, time
with pathlib.Path({pids!r}).open("a") as file:
    print(os.getpid(), file=file)
os.write(1, {frame!r})
time.sleep(600)
"""
ENDS = """
import pathlib, os, signal, sys
with pathlib.Path({pids!r}).open("a") as file:
    print(os.getpid(), file=file)
os.write(1, {frame!r})
END
"""
IGNORES_SIGTERM = """
import pathlib, os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with pathlib.Path({pids!r}).open("a") as file:
    print(os.getpid(), file=file)
os.write(1, {frame!r})
time.sleep(600)
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Return a function that makes a module with this source, which writes this frame, and returns
    its name and the PIDs that ran it.
    """

    def make_module(source, frame=b""):
        pids = tmp_path / "pids"
        (tmp_path / "worker_of_a_test.py").write_text(source.format(pids=str(pids), frame=frame))
        monkeypatch.setenv(
            "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        )
        return (
            "worker_of_a_test",
            lambda: [int(line) for line in pids.read_text().split()] if pids.exists() else [],
        )

    return make_module


def supervise(supervisor, until):
    """Run the supervisor until the condition holds, then cancel it. Return how long it took to
    end.
    """

    async def supervised():
        task = asyncio.create_task(supervisor.run())
        await asyncio.to_thread(eventually, until, "the condition of the test")
        cancelled_s = time.monotonic()
        task.cancel()
        await asyncio.wait({task})
        return time.monotonic() - cancelled_s

    return asyncio.run(supervised())


def test_supervisor_worker_without_driver_is_replaced_silently(child, caplog):
    module, pids = child(REPORTS_AND_STAYS, encode_items([DriverGone("the driver")]))
    messages = []
    supervise(WorkerSupervisor([module], messages.append), lambda: len(pids()) == 2)

    assert messages[0] == [DriverGone("the driver")]
    assert not any(map(psutil.pid_exists, pids()))
    assert "replaced" not in caplog.text  # the message itself is logged


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("sys.exit(3)", "ended with exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
    ],
)
def test_supervisor_worker_that_ends_is_logged_with_the_reason(child, caplog, end, how):
    module, pids = child(ENDS.replace("END", end))
    supervise(WorkerSupervisor([module], lambda _: None), lambda: "replaced" in caplog.text)
    (warning,) = [record.message for record in caplog.records]

    assert warning == f"worker {pids()[0]} ({module}) {how}; it is replaced in 0.5 s"


def test_supervisor_worker_with_invalid_message_is_replaced_and_logged(child, caplog):
    module, pids = child(REPORTS_AND_STAYS, b"\x00\x00\x00\x01\xc1")
    supervise(WorkerSupervisor([module], lambda _: None), lambda: "replaced" in caplog.text)
    (warning,) = [record.message for record in caplog.records]

    assert warning.startswith(f"worker {pids()[0]} ({module}) sent an invalid message: ")
    assert warning.endswith("; it is replaced in 0.5 s")


def test_supervisor_interpreter_not_executable_is_reported_and_retried(tmp_path, monkeypatch):
    interpreter = tmp_path / "python3"
    interpreter.write_text("not to be executed")
    monkeypatch.setattr(sys, "executable", str(interpreter))
    monkeypatch.setattr("wattline_exporter.sensors.nvml.supervisor.FIRST_BACKOFF_S", 0.01)
    messages = []
    supervise(
        WorkerSupervisor(["wattline_exporter.sensors.nvml.worker"], messages.append),
        lambda: len(messages) == 2,
    )

    (gone,) = messages[0]
    assert gone.reason.startswith(
        f"cannot run {interpreter}: Permission denied; install Wattline where this user may"
    )


def test_supervisor_worker_that_ignores_sigterm_is_killed(child):
    module, pids = child(IGNORES_SIGTERM, encode_items([GpuCount(1)]))
    took_s = supervise(WorkerSupervisor([module], lambda _: None), lambda: bool(pids()))
    print(f"ended in {took_s:.2f} s")

    assert took_s < 10
    assert not any(map(psutil.pid_exists, pids()))


def test_supervisor_suspended_worker_is_killed(child):
    module, pids = child(IGNORES_SIGTERM, encode_items([GpuCount(1)]))

    def stopped():
        if pids():
            psutil.Process(pids()[0]).suspend()
        return bool(pids())

    supervise(WorkerSupervisor([module], lambda _: None), stopped)

    assert not Path(f"/proc/{pids()[0]}").exists()


def test_supervisor_worker_with_endless_frame_is_replaced_and_logged_once(child, caplog):
    module, pids = child(REPORTS_AND_STAYS, (MAX_BYTES + 1).to_bytes(4))
    supervise(WorkerSupervisor([module], lambda _: None), lambda: len(pids()) == 2)

    (warning,) = [record.getMessage() for record in caplog.records]
    how = "wrote a frame of more than 4194304 bytes"
    assert warning == f"worker {pids()[0]} ({module}) {how}; it is replaced in 0.5 s"
    assert not any(map(psutil.pid_exists, pids()))


def test_supervisor_worker_ended_amid_a_frame_keeps_the_whole_frames(child, caplog):
    frame = encode_items([GpuCount(2)])
    module, _ = child(ENDS.replace("END", "sys.exit(3)"), frame + frame[:-1])
    messages = []
    supervise(WorkerSupervisor([module], messages.append), lambda: "replaced" in caplog.text)

    assert messages == [[GpuCount(2)]]
    assert "ended with exit code 3" in caplog.text

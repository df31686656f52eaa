"""The job `llm-server` while it is at work: signals, other tenants, its progress."""

import os
import pty
import signal
import subprocess
import sys

import pytest

from tests.fakes import openai_server as says
from tests.fakes.openai_server import Script
from tests.waiting import eventually


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_llm_server_signal_reports_results_so_far(load, server, name):
    """Three answers come at once; the fourth and all after it never end."""
    server.script = lambda number: says.answer(2) if number < 3 else Script([says.text("a"), 600.0])
    arguments = ["-m", "workloads", "job", "llm-server", "--url", server.url, "--concurrency", "2"]
    with load.exporter.start(*arguments) as process:
        eventually(lambda: load.exporter.api.runs and load.run.work.get("requests") == 3)
        eventually(lambda: len(server.seen) == 5)
        process.send_signal(signal.Signals[name])
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 128 + signal.Signals[name]
    assert load.run.outcome == "interrupted"
    assert load.run.work["requests"] == 3
    assert load.run.results["requests_cancelled"] == 2
    assert load.run.results["requests_failed"] == 0
    assert load.run.results["e2e_seconds_p50"] > 0
    assert "2 requests in flight were cancelled" in errors
    assert "Traceback" not in errors
    assert "Unclosed" not in errors


def test_llm_server_missing_tenant_stops_before_measure(load, server, tmp_path):
    """The other one never comes, so nothing but the warm-up is sent."""
    done = load("--url", server.url, "--warmup", "1", "--requests", "5", WATTLINE_BARRIER=f"{tmp_path}:2:0.3")

    assert done.returncode == 1
    assert len(server.seen) == 1
    assert "tenants not started: 1 of 2 were ready" in done.stderr


def test_llm_server_progress_on_terminal_is_one_line(load, server):
    server.script = lambda _: says.answer(1, first_s=2.0)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "workloads", "job", "llm-server", "--url", server.url, "--requests", "1"]
    with subprocess.Popen(command, env=load.exporter.environment, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        shown = b"".join(iter(lambda: _read(ours), b"")).decode()
        process.wait(60)
    os.close(ours)

    measuring, _, summary = shown.rpartition("\r\x1b[K")
    assert "1 in flight, 0 tokens/s" in measuring
    assert "\n" not in measuring.partition("\r\x1b[Kmeasure: ")[2]
    assert summary.startswith("wattline: 1 requests answered")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says so when the other end is closed
        return b""

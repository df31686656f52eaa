"""Signals, other tenants and progress of the job `llm-server`."""

import os
import pty
import signal
import subprocess
import sys

import pytest

from tests.fakes import openai_server as sse
from tests.fakes.openai_server import Script
from tests.polling import eventually


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_llm_server_signal_reports_results_so_far(server_job, server, name):
    """Answer three requests at once; the fourth and all later ones never end."""
    server.script = lambda number: sse.answer(2) if number < 3 else Script([sse.text("a"), 600.0])
    arguments = [
        "-m",
        "wattline_workloads",
        "job",
        "llm-server",
        "--url",
        server.url,
        "--concurrency",
        "2",
    ]
    with server_job.exporter.start(*arguments) as process:
        eventually(
            lambda: server_job.exporter.api.runs and server_job.run.work.get("requests") == 3
        )
        eventually(lambda: len(server.requests) == 5)
        process.send_signal(signal.Signals[name])
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 128 + signal.Signals[name]
    assert server_job.run.outcome == "interrupted"
    assert server_job.run.work["requests"] == 3
    assert server_job.run.results["requests_cancelled"] == 2
    assert server_job.run.results["requests_failed"] == 0
    assert server_job.run.results["e2e_seconds_p50"] > 0
    assert "2 requests in flight were cancelled" in errors
    assert "Traceback" not in errors
    assert "Unclosed" not in errors


def test_llm_server_missing_tenant_stops_before_measure(server_job, server, tmp_path):
    """Start without the second tenant: only the warm-up is sent."""
    done = server_job(
        "--url",
        server.url,
        "--warmup",
        "1",
        "--requests",
        "5",
        WATTLINE_BARRIER=f"{tmp_path}:2:0.3",
    )

    assert done.returncode == 1
    assert len(server.requests) == 1
    assert "tenants not started: 1 of 2 were ready" in done.stderr


def test_llm_server_progress_on_terminal_is_one_line(server_job, server):
    server.script = lambda _: sse.answer(1, first_s=2.0)
    terminal, job_end = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "wattline_workloads",
        "job",
        "llm-server",
        "--url",
        server.url,
        "--requests",
        "1",
    ]
    with subprocess.Popen(
        command, env=server_job.exporter.environment, stderr=job_end, start_new_session=True
    ) as process:
        os.close(job_end)
        output = b"".join(iter(lambda: _read(terminal), b"")).decode()
        process.wait(60)
    os.close(terminal)

    measuring, _, summary = output.rpartition("\r\x1b[K")
    assert "1 in flight, 0 tokens/s" in measuring
    assert "\n" not in measuring.partition("\r\x1b[Kmeasure: ")[2]
    assert summary.startswith("wattline: 1 requests answered")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux raises it after the other end is closed
        return b""

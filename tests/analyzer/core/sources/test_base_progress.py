"""Progress bar on a terminal and in a pipe."""

import os
import pty
import select
import subprocess
import sys
import time

import pytest

from tests.analyzer.conftest import ROOT
from tests.analyzer.loopback import history_api, http_server
from wattline_analyzer.core.sources.base import SHOWN_AFTER_S, ProgressBar

PATIENCE_S = 60.0


@pytest.fixture
def slow_server(steady_history):
    """Each response takes 0.4 s: the chunks of ninety days take longer than a second, eight at a
    time.
    """
    answer = history_api(steady_history)

    def respond(path, parameters):
        time.sleep(0.4)
        return answer(path, parameters)

    with http_server(respond) as (address, _):
        yield f"http://{address}"


def listed(source, stderr):
    command = [
        sys.executable,
        "-c",
        "from wattline_analyzer.cli import main; main()",
        "report",
        "train-1",
        "--source",
        source,
        "--since",
        "90d",
    ]
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm",
    }
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environment)


def test_progress_bar_terminal_shows_name_and_ratio(slow_server):
    ours, theirs = pty.openpty()
    try:
        with listed(slow_server, theirs) as process:
            os.close(theirs)
            drawn_text, deadline = b"", time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                if not select.select([ours], [], [], 0.2)[0]:
                    continue
                try:
                    drawn_text += os.read(ours, 65_536)
                except OSError:  # the reader is closed
                    break
            table = process.stdout.read().decode()
    finally:
        os.close(ours)

    assert "fetching run_start_timestamp_seconds" in drawn_text.decode()
    assert "%" in drawn_text.decode()
    assert drawn_text.endswith(b"\x1b[2K")  # it erases itself
    assert "\x1b" not in table


def test_progress_bar_pipe_draws_nothing(slow_server):
    with listed(slow_server, subprocess.PIPE) as process:
        _, stderr = process.communicate(timeout=PATIENCE_S)

    assert stderr == b""
    assert process.returncode == 0


class Terminal:
    """Return the drawn text."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_progress_bar_short_fetch_draws_nothing():
    terminal, now_s = Terminal(), [0.0]
    bar = ProgressBar(terminal, lambda: now_s[0])

    for second in range(60):  # a live table, which fetches once a second
        now_s[0] = second
        bar("power", 0.0)
        now_s[0] += SHOWN_AFTER_S / 5
        bar("power", 0.5)
        bar("power", 1.0)

    assert terminal.text == ""


def test_progress_bar_sequence_of_fetches_is_drawn():
    terminal, now_s = Terminal(), [0.0]
    bar = ProgressBar(terminal, lambda: now_s[0])

    for step in range(8):
        now_s[0] = 0.2 * step
        bar("power", 0.0)
        bar("power", 1.0)

    assert "power" in terminal.text

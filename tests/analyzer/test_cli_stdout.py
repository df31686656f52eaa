"""Limits of stdout: missing letters, a full disk, a closed stream."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, series_of_scrapes, write_history

GPUS = [NodeGpu([(START_S - 100, 60), (START_S, 300), (START_S + 20, 60)])]
RUN = NodeRun(labels={"model": "größer"})
MAIN = "from wattline_analyzer.cli import main; main()"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    times = [START_S + 0.5 + t for t in range(-40, 40)]
    return write_history(
        tmp_path_factory.mktemp("stdout"),
        series_of_scrapes([(t, scrape(GPUS, RUN, t)) for t in times]),
    )


def run_command(command, history, stdout=subprocess.PIPE, **environment):
    return subprocess.run(
        [*command, "--source", str(history), "--since", "36500d"],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
        check=False,
        timeout=120,
    )


def test_stdout_ascii_locale_prints_report(history):
    completed = run_command(
        [sys.executable, "-c", MAIN, "report", "--run-id", "train-1"], history, **ASCII
    )

    assert (completed.returncode, completed.stderr) == (0, b"")
    assert "energy, GPU" in completed.stdout.decode()
    assert "±" in completed.stdout.decode()


def test_stdout_ascii_locale_keeps_letters_in_data(history):
    completed = run_command(
        [sys.executable, "-c", MAIN, "runs", "--format", "json"], history, **ASCII
    )

    assert json.loads(completed.stdout)[0]["labels"] == {"model": "größer"}


def test_stdout_missing_letter_does_not_stop_report(history):
    """Latin-1 has ± but no en dash."""
    command = [sys.executable, "-c", MAIN, "report", "--run-id", "train-1"]
    completed = run_command(command, history, PYTHONIOENCODING="latin-1")

    assert (completed.returncode, completed.stderr) == (0, b"")
    assert "±" in completed.stdout.decode("latin-1")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full exists on Linux only")
@pytest.mark.parametrize(
    "options", [["report", "--run-id", "train-1"], ["runs", "--format", "json"]]
)
def test_stdout_full_disk_is_one_line(history, options):
    with Path("/dev/full").open("wb") as full:
        completed = run_command([sys.executable, "-c", MAIN, *options], history, full)

    assert completed.returncode == 1
    assert completed.stderr.decode() == (
        "analyzer: cannot write the output: No space left on device; free disk space, or write it "
        "elsewhere\n"
    )


def test_stdout_closed_is_no_error(history):
    shell = ["sh", "-c", 'exec "$0" "$@" >&-', sys.executable, "-c", MAIN, "runs"]

    completed = run_command(shell, history)

    assert (completed.returncode, completed.stderr) == (0, b"")

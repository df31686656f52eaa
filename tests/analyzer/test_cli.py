"""Start of the analyzer's command line."""

import subprocess
import sys

import pytest


def test_importing_cli_loads_no_heavy_package():
    heavy = {"matplotlib", "numpy", "requests", "jinja2", "pydantic"}
    code = f"import sys, wattline_analyzer.cli; print(sorted({heavy} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_help_loads_no_heavy_package():
    heavy = {"matplotlib", "numpy", "requests", "jinja2", "pydantic"}
    loaded = f"atexit.register(lambda: print(sorted({heavy} & set(sys.modules))))"
    code = (
        f"import atexit, sys; {loaded}; sys.argv[1:] = ['--help']; from wattline_analyzer.cli "
        "import main; main()"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert completed.stdout.endswith("\n[]\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "nowhere"],
        ["export", "nowhere", "--out", "samples.csv"],
        ["requests", "nowhere"],
        ["compare", "nowhere", "train-1"],
        ["gate", "--baseline", "nowhere", "--candidate", "train-1"],
        ["recommend", "--run-id", "nowhere"],
        ["watch", "nowhere"],
    ],
)
def test_unknown_run_has_the_same_message_in_each_command(analyzer, steady_history, arguments):
    """The run of the history is of long ago."""
    since = [] if arguments[0] == "watch" else ["--since", "10000d"]

    completed = analyzer(*arguments, "--source", steady_history, *since)

    assert completed.returncode == 1
    (line,) = completed.stderr.splitlines()
    known = "10000 days; known runs: train-1; see: analyzer runs"
    none = "30 days, nor any other run; check that its exporter is scraped, --source and --since"
    rest = none if arguments[0] == "watch" else known
    assert line == f"analyzer: no run 'nowhere' at {steady_history} in the last {rest}"

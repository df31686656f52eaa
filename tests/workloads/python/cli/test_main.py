"""Console command `wattline`."""

import re
import subprocess
import sys

import pytest

from tests.workloads.programs import plain_environment
from wattline.cli.commands import COMMANDS, GROUPS


def wattline(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "wattline", *arguments],
        capture_output=True,
        text=True,
        env=plain_environment() | environment,
        check=False,
        timeout=60,
    )


def test_help_has_all_groups_and_commands():
    done = wattline()

    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^(\w.*):$", done.stdout, re.MULTILINE) == [*GROUPS, "Options"]
    assert re.findall(r"^  ([a-z-]+?) +[A-Z]", done.stdout, re.MULTILINE)[: len(COMMANDS)] == list(COMMANDS)


def test_help_loads_no_program():
    code = "import sys; sys.argv = ['wattline']; from wattline.cli.main import main; main(); "
    code += "print([name for name in ('typer', 'exporter', 'workloads', 'analyzer') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("command", ["regions", "list", "runs"])
def test_command_has_the_usage_of_wattline(command):
    done = wattline(command, "--help")

    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"Usage: wattline {command} [OPTIONS]")


def test_usage_error_names_wattline():
    done = wattline("report", "--colour")

    assert done.returncode == 2
    assert done.stderr.startswith("wattline report: No such option: --colour")
    assert done.stderr.endswith(" (see wattline report --help)\n")


def test_unknown_command_names_the_similar_one():
    done = wattline("repot")

    assert (done.returncode, done.stderr) == (2, "wattline: unknown command 'repot'; did you mean report?\n")


def test_run_measures_a_command(exporter):
    done = wattline("run", "--", "true", WATTLINE_EXPORTER=exporter.address)

    assert (done.returncode, exporter.api.only_run.outcome) == (0, "ok")

"""Version output of each program."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest


@pytest.mark.parametrize("program", ["analyzer", "exporter", "wattline", "workloads"])
def test_program_prints_its_version(program):
    command = [str(Path(sys.executable).with_name(program)), "--version"]

    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (completed.returncode, completed.stdout, completed.stderr) == (
        0,
        f"{program} {version('wattline')}\n",
        "",
    )

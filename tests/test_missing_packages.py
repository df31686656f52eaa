"""Programs and Python module where only the wheel is installed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run_without_packages(*arguments):
    """Run the checkout's Python code with the standard library alone."""
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        capture_output=True,
        text=True,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": "/nonexistent",
            "PYTHONPATH": f"{ROOT}/exporter:{ROOT}/workloads:{ROOT}/analyzer",
        },
        cwd="/",
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("program", ["analyzer", "exporter", "workloads"])
def test_program_without_its_extra_names_it(program):
    done = run_without_packages("-m", f"wattline_{program}", "--help")

    remedy = f"in the clone of Wattline, run: pip install '.[{program}]'"
    message = f"{program}: the Python package typer is not installed; {remedy}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)


@pytest.mark.parametrize(
    ("arguments", "extra"), [(["run", "true"], "workloads"), (["completion", "bash"], "all")]
)
def test_wattline_without_extra_names_it(arguments, extra):
    done = run_without_packages("-m", "wattline", *arguments)

    remedy = f"in the clone of Wattline, run: pip install '.[{extra}]'"
    message = f"wattline: the Python package typer is not installed; {remedy}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)


def test_wattline_help_needs_no_package():
    done = run_without_packages("-m", "wattline", "--help")

    assert (done.returncode, done.stderr) == (0, "")


def test_python_module_needs_only_the_standard_library(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import wattline\nwith wattline.run('train', exporter='127.0.0.1:1') as run:\n    "
        "run.work(steps=1)\n"
    )
    done = run_without_packages(str(script))

    assert done.returncode == 0
    assert done.stderr.startswith(
        "wattline: this run is not measured: cannot reach an exporter at http://127.0.0.1:1"
    )

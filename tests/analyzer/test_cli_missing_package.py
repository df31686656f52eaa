"""Message for a missing optional package of the analyzer."""

import subprocess
import sys

import pytest

WITHOUT_PACKAGE = (
    "import sys; sys.modules['{}'] = None; from wattline_analyzer.cli import main; main()"
)


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("requests", ["runs"]),
        ("numpy", ["report", "--run-id", "x"]),
        ("requests", ["report", "--run-id", "x"]),
        (
            "requests",
            ["usage", "--source", "http://127.0.0.1:9"],
        ),  # it connects before it needs numpy
    ],
)
def test_missing_package_is_one_line_with_install_command(package, command, tmp_path):
    check_message(package, command, tmp_path)


def test_missing_package_for_reading_is_one_line_with_install_command(steady_history, tmp_path):
    """The command opens the source before it needs numpy."""
    check_message("numpy", ["runs", "--source", steady_history, "--since", "36500d"], tmp_path)


def check_message(package, command, home):
    completed = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGE.format(package), *command],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home)},
        check=False,
        timeout=60,
    )

    expected = (
        f"the Python package {package} is not installed; in the clone of Wattline, run: "
        "pip install '.[analyzer]'"
    )
    assert (completed.returncode, completed.stdout, completed.stderr) == (
        1,
        "",
        f"analyzer: {expected}\n",
    )

"""Message for a missing optional package of the analyzer."""

import subprocess
import sys

import pytest

WITHOUT_PACKAGE = "import sys; sys.modules['{}'] = None; from analyzer.cli import main; main()"


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("pandas", ["runs"]),
        ("requests", ["runs"]),
        ("pandas", ["report", "--run-id", "x"]),
        ("requests", ["report", "--run-id", "x"]),
        ("requests", ["fleet", "--source", "http://127.0.0.1:9"]),  # it connects before it needs pandas
    ],
)
def test_missing_package_is_one_line_with_install_command(package, command, tmp_path):
    completed = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGE.format(package), *command],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        check=False,
        timeout=60,
    )

    expected = f"{package} is not installed; in the clone of Wattline, run: pip install '.[analyzer]'"
    assert (completed.returncode, completed.stdout, completed.stderr) == (1, "", f"analyzer: {expected}\n")

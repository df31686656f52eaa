"""Start of servers by `python -m wattline.integrations.serve`."""

import subprocess
import sys

import pytest

pytest.importorskip("uvicorn", reason="needs uvicorn")


def serve(*arguments, folder):
    return subprocess.run(
        [sys.executable, "-m", "wattline.integrations.serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
    )


@pytest.mark.parametrize(
    ("arguments", "failure"),
    [
        (["nosuchprog"], "nosuchprog: no such program or file"),
        (["./nosuch.py"], "./nosuch.py: no such program or file"),
        (["-m", "nosuchmod"], "nosuchmod: no such module"),
        (["-m", "nosuch.module"], "nosuch.module: no such module"),
        (["-m", "json.nosuch"], "json.nosuch: no such module"),
        (["-m", "json"], "json: no such module"),
    ],
)
def test_program_that_is_not_found_is_a_one_line_error(tmp_path, arguments, failure):
    found = serve(*arguments, folder=tmp_path)

    assert (
        found.stderr
        == f"wattline: cannot start {failure}; check its name, PATH and the Python in use\n"
    )
    assert found.returncode == 2


@pytest.mark.parametrize(
    "arguments", [["program.py"], ["-m", "program"], ["-m", "package"], ["-m", "package.program"]]
)
def test_program_runs_with_its_arguments(tmp_path, arguments):
    (tmp_path / "package").mkdir()
    for name in ("program", "package/program", "package/__main__"):
        (tmp_path / f"{name}.py").write_text("import sys; print(__name__, sys.argv[1:])")

    assert serve(*arguments, "--port", "1", folder=tmp_path).stdout == "__main__ ['--port', '1']\n"


def test_failing_import_of_a_program_keeps_its_cause(tmp_path):
    (tmp_path / "program.py").write_text("import nosuch")

    assert "No module named 'nosuch'" in serve("-m", "program", folder=tmp_path).stderr

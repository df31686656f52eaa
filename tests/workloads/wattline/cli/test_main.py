"""Console command `wattline`."""

import re
import subprocess
import sys

import pytest

from tests.workloads.programs import plain_environment
from wattline.commands import all_commands, command_groups


def wattline(*arguments, folder=None, **environment):
    return subprocess.run(
        [sys.executable, "-m", "wattline", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env=plain_environment() | environment,
        check=False,
        timeout=60,
    )


def test_help_has_all_groups_and_commands():
    done = wattline()

    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^(\w.*):$", done.stdout, re.MULTILINE) == [*command_groups(), "Options"]
    assert re.findall(r"^  ([a-z-]+?) +[A-Z]", done.stdout, re.MULTILINE)[
        : len(all_commands())
    ] == list(all_commands())


def test_help_loads_no_program():
    code = "import sys; sys.argv = ['wattline']; from wattline.cli.main import main; main(); "
    code += (
        "print([name for name in ('typer', 'exporter', 'workloads', 'analyzer') if name in "
        "sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("command", ["regions", "list", "runs"])
def test_command_has_the_usage_of_wattline(command):
    done = wattline(command, "--help")

    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        f"Usage: wattline {command} [OPTIONS]",
    )


def test_usage_error_names_wattline():
    done = wattline("report", "--colour")

    assert done.returncode == 2
    assert done.stderr == "wattline: unknown option --colour; see wattline report --help\n"


def test_message_and_hint_name_wattline(tmp_path):
    (tmp_path / "wattline.sqlite").write_bytes(b"")
    environment = {
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
        "WATTLINE_EXPORTER": "http://127.0.0.1:1",
    }
    missing = wattline("runs", **environment)
    usage = wattline("compare", "model=", "x", **environment)
    served = wattline("serve", "--simulate", "1xNONE", **environment)

    assert missing.stderr.startswith("wattline: no source found: ")
    assert (
        "start one with wattline serve, measure a command with wattline run, or" in missing.stderr
    )
    assert usage.stderr.startswith("wattline: ")
    assert usage.stderr.endswith("; see wattline compare --help\n")
    assert served.stderr.startswith("wattline: ")


def test_unknown_command_names_the_similar_one():
    done = wattline("repot")

    assert (done.returncode, done.stderr) == (
        2,
        "wattline: unknown command 'repot'; did you mean report?\n",
    )


def test_run_measures_a_command(exporter):
    done = wattline("run", "--", "true", WATTLINE_EXPORTER=exporter.address)

    assert (done.returncode, exporter.api.only_run.outcome) == (0, "ok")


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("folder", "--help")])
@pytest.mark.parametrize("command", ["man", "completion"])
def test_help_of_own_command_writes_no_file(tmp_path, command, arguments):
    done = wattline(command, *arguments, folder=tmp_path)

    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (0, "", [])
    assert done.stdout.startswith(f"Usage: wattline {command} ")


@pytest.mark.parametrize("arguments", [("--out",), ("-f",), ("man1", "man2"), ()])
def test_man_unknown_option_writes_no_file(tmp_path, arguments):
    done = wattline("man", *arguments, folder=tmp_path)

    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert done.stderr == (
        "wattline: man: expected one argument; use the form wattline man FOLDER\n"
    )


def test_man_name_of_a_command_is_no_folder(tmp_path):
    done = wattline("man", "report", folder=tmp_path)

    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert done.stderr == (
        "wattline: man: report is a command, not a folder; for its options: wattline report --help\n"
    )


def test_man_says_where_its_pages_are(tmp_path):
    done = wattline("man", "man1", folder=tmp_path)

    count = len(list((tmp_path / "man1").iterdir()))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"wrote {count} manual pages to man1; read one with: man -l man1/wattline.1\n"
    )


def test_man_unwritable_folder_names_cause_and_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    done = wattline("man", "file/man1", folder=tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "wattline: cannot write to file/man1: Not a directory; give a folder with write "
        "permission\n"
    )


@pytest.mark.parametrize("module", ["serve", "codecarbon"])
def test_help_of_module_is_its_usage_on_stdout(module):
    command = [sys.executable, "-m", f"wattline.integrations.{module}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: python -m wattline.integrations.{module} ")

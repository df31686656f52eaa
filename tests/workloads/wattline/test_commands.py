"""List of all commands, compared with the programs, and a command that is added."""

import subprocess
import sys

import pytest
from typer.main import get_command

from wattline.commands import CommandDeclarationError, all_commands, read_declaration
from wattline_analyzer.cli import command_line
from wattline_exporter.cli.main import cli as exporter_app
from wattline_workloads.cli import app as workloads_app

APPS = {"exporter": exporter_app, "workloads": workloads_app, "analyzer": command_line()}


@pytest.mark.parametrize("program", APPS)
def test_list_has_all_commands_of_a_program_with_their_help(program):
    commands = get_command(APPS[program]).commands  # type: ignore[attr-defined]  # a group
    texts = {
        name: command.get_short_help_str(limit=200)
        for name, command in commands.items()
        if not command.hidden
    }

    assert {
        one.name: one.help for one in all_commands().values() if one.program == program
    } == texts


ADDED = '''"""`analyzer day-total`: a command of a test."""

from typing import Annotated

import typer

COMMAND = {
    "name": "day-total",
    "help": "Sum the energy of a day.",
    "group": "Cluster",
}


def day_total_command(*, day: Annotated[str, typer.Option(help="Day to sum.")]) -> None:
    """Sum the energy of a day, in kWh."""
    print(f"total of {day}")
'''
WITH_FOLDER = """
import sys, wattline_analyzer
wattline_analyzer.__path__.append(sys.argv.pop(1))
from {module} import main
main()
"""


@pytest.fixture
def run_with_added(tmp_path):
    """Return a function that runs a program with one more command folder, and returns stdout."""
    folder = tmp_path / "day_total"
    folder.mkdir()
    (folder / "command.py").write_text(ADDED)

    def run(module, *arguments):
        code = WITH_FOLDER.format(module=module)
        return subprocess.check_output(
            [sys.executable, "-P", "-c", code, str(tmp_path), *arguments], text=True
        )

    return run


def test_command_folder_added_is_listed_run_and_completed(run_with_added):
    assert run_with_added("wattline_analyzer.cli", "--help").splitlines()[-1].split(None, 1) == [
        "day-total",
        "Sum the energy of a day.",
    ]
    assert (
        run_with_added("wattline_analyzer.cli", "day-total", "--day", "2026-11-28")
        == "total of 2026-11-28\n"
    )
    lines = run_with_added("wattline.cli.main", "--help").splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("  day-total  ")]
    assert lines[at - 1].split()[0] == "waste"
    assert "--day" in run_with_added("wattline.cli.main", "completion", "bash")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no command"),
        ('COMMAND = {\n    "name": "x",\n    "help": "X.",\n}\n', "no command"),
        ('COMMAND = {\n    "name": "x",\n    "help": "X.",\n    "group": "New",\n}\n', "Cluster"),
        ('COMMAND = {\n    "name": NAME,\n}\n', "COMMAND is no literal"),
    ],
    ids=["none", "without a group", "unknown group", "no literal"],
)
def test_command_file_with_wrong_declaration_is_named(tmp_path, text, problem):
    path = tmp_path / "command.py"
    path.write_text(f'"""A command."""\n\n{text}')

    with pytest.raises(CommandDeclarationError, match=f"{path}: .*{problem}"):
        read_declaration(path)

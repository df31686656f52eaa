"""List of all commands, compared with the programs."""

import pytest
from typer.main import get_command

from wattline import command_line as shared
from wattline.cli.commands import COMMANDS
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

    assert {one.name: one.help for one in COMMANDS.values() if one.program == program} == texts


def test_messages_know_the_commands_of_each_program():
    for program, names in shared.COMMANDS.items():
        assert sorted(names) == sorted(
            one.name for one in COMMANDS.values() if one.program == program
        )

"""Options and arguments of all commands, read from the programs' own definitions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from wattline.commands import all_commands


@dataclass(frozen=True, slots=True)
class Option:
    """Option or argument; `names` are empty for an argument."""

    names: tuple[str, ...]
    value: str
    """Name of its value, empty for a switch."""
    help: str

    @property
    def choices(self) -> tuple[str, ...]:
        """Values of an option that takes one of several words."""
        parts = self.value.split("|")
        return (
            tuple(parts)
            if len(parts) > 1 and all(re.fullmatch(r"[a-z][a-z0-9.-]*", part) for part in parts)
            else ()
        )


@dataclass(frozen=True, slots=True)
class CommandDefinition:
    """Command, or command of a group as `caps show`, with its text and options."""

    name: str
    text: str
    usage: str
    options: tuple[Option, ...]


def read_definitions() -> list[CommandDefinition]:
    """Return the commands in the order of `wattline --help`. It loads all three programs."""
    from typer.main import get_command

    programs: dict[str, Any] = {
        "exporter": get_command(import_module("wattline_exporter.cli.main").cli),
        "workloads": get_command(import_module("wattline_workloads.cli").app),
        "analyzer": get_command(import_module("wattline_analyzer.cli").command_line()),
    }
    found: list[CommandDefinition] = []
    for listed in all_commands().values():
        if listed.program != "wattline":
            found += _definitions(programs[listed.program].commands[listed.name], listed.name)
    return found


def _definitions(command: Any, name: str) -> Iterator[CommandDefinition]:
    if hasattr(command, "commands"):
        for inner, one in sorted(command.commands.items()):
            yield from _definitions(one, f"{name} {inner}")
        return
    from wattline.command_line import help_record

    context = command.make_context(f"wattline {name}", [], resilient_parsing=True)
    options = []
    for parameter in command.get_params(context):
        record = help_record(parameter, context)
        if record is not None and parameter.name not in getattr(command, "unlisted", ()):
            is_argument = parameter.param_type_name == "argument"
            names = () if is_argument else (*parameter.opts, *parameter.secondary_opts)
            value = record[0] if is_argument else _value(record[0])
            options.append(Option(names, value, " ".join(record[1].split())))
    text = " ".join((command.help or command.short_help or "").split())
    yield CommandDefinition(
        name, text, " ".join(command.collect_usage_pieces(context)), tuple(options)
    )


def _value(names: str) -> str:
    """Return the name of an option's value from its help: `0,1|UUID` of `--gpus 0,1|UUID`."""
    last = names.rpartition(", -")[2].rpartition(" / -")[2]
    return last.partition(" ")[2]

"""Commands of the three programs by group, with the lines of their help.

Those of the analyzer are found: a file `FOLDER/command.py` or `FOLDER/NAME_command.py` of it
declares one command, as

    COMMAND = {
        "name": "best-start",
        "help": "Find the start time with the lowest emissions.",
        "group": "Compare and decide",
    }

and has the function of that name, `best_start_command`. The declaration is a literal, which is read
without an import.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_DECLARATION = "\nCOMMAND = {"
_KEYS = {"name", "help", "group"}


class CommandDeclarationError(Exception):
    """A file declares no command, or one that is incomplete."""


class ListedCommand(NamedTuple):
    """Command of a program, with the first line of its help, which is too slow to load for a list.

    `group` is its heading in the help of `wattline`, `module` the analyzer's module that runs it.
    """

    program: str
    name: str
    help: str
    group: str
    module: str = ""

    @property
    def function(self) -> str:
        """Name of the function in `module`."""
        return f"{self.name.replace('-', '_')}_command"


_OTHERS = (
    ListedCommand("workloads", "run", "Measure a command as a run.", "Measure"),
    ListedCommand("workloads", "job", "Measure a built-in job as a run.", "Measure"),
    ListedCommand("workloads", "list", "List the built-in jobs.", "Measure"),
    ListedCommand("workloads", "plan", "Run the jobs of a plan file.", "Measure"),
    ListedCommand(
        "workloads",
        "sweep",
        "Run a job at each power limit, then restore the limits.",
        "Measure",
    ),
    ListedCommand(
        "workloads",
        "caps",
        "Show or restore the power limits and clocks that sweeps set.",
        "Measure",
    ),
    ListedCommand(
        "exporter",
        "serve",
        "Run the exporter: sample sensors, record runs, serve /metrics.",
        "Exporter",
    ),
    ListedCommand("exporter", "check", "Read each source once, and print its state.", "Exporter"),
    ListedCommand(
        "exporter", "regions", "List the values of --carbon.region, one per line.", "Exporter"
    ),
    ListedCommand(
        "wattline",
        "completion",
        "Print the completion script of a shell: bash, zsh or fish.",
        "Shell",
    ),
    ListedCommand("wattline", "man", "Write the manual pages to a folder.", "Shell"),
)
_GROUPS = ("Measure", "Report", "Compare and decide", "Cluster", "Exporter", "Shell")
_ORDER = (
    "runs",
    "report",
    "watch",
    "requests",
    "mcp",
    "export",
    "import",
    "compare",
    "gate",
    "recommend",
    "variability",
    "tenants",
    "best-start",
    "usage",
    "waste",
)
"""Order of the analyzer's commands within their groups. All others follow by name."""


@cache
def command_groups() -> dict[str, tuple[ListedCommand, ...]]:
    """Return the commands of all programs by group, in the order of `wattline --help`."""
    commands = [*_OTHERS, *commands_in_order(analyzer_commands(), _ORDER)]
    return {
        group: tuple(command for command in commands if command.group == group) for group in _GROUPS
    }


@cache
def all_commands() -> dict[str, ListedCommand]:
    """Return the commands of all programs by name, in the order of `wattline --help`."""
    return {command.name: command for group in command_groups().values() for command in group}


@cache
def analyzer_commands() -> tuple[ListedCommand, ...]:
    """Return the commands of the analyzer; none where it is not installed."""
    package = find_spec("wattline_analyzer")
    folders = package.submodule_search_locations if package else None
    return tuple(
        read_declaration(path)
        for folder in folders or ()
        for path in sorted(Path(folder).glob("*/*command.py"))
    )


def commands_in_order(
    commands: Iterable[ListedCommand], names: Sequence[str]
) -> list[ListedCommand]:
    """Return the commands in the order of these names, then those without one by name."""
    places = {name: place for place, name in enumerate(names)}
    return sorted(commands, key=lambda one: (places.get(one.name, len(names)), one.name))


def read_declaration(path: Path) -> ListedCommand:
    """Return the command that a file declares. Raises CommandDeclarationError."""
    _, found, after = path.read_text(encoding="utf-8").partition(_DECLARATION)
    try:
        declared = ast.literal_eval("{" + after.partition("\n}")[0] + "}")
    except (SyntaxError, ValueError) as error:
        raise CommandDeclarationError(f"{path}: COMMAND is no literal: {error}") from error
    if not found or set(declared) != _KEYS or declared["group"] not in _GROUPS:
        raise CommandDeclarationError(
            f"{path}: no command; declare COMMAND with name, help and group, one of "
            f"{', '.join(_GROUPS)}"
        )
    return ListedCommand(
        "analyzer", **declared, module=f"wattline_analyzer.{path.parent.name}.{path.stem}"
    )

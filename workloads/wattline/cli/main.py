"""`wattline COMMAND`: the commands of `exporter`, `workloads` and `analyzer` under one name."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from wattline.client.messages import log_message
from wattline.command_line import suggestion
from wattline.commands import all_commands, command_groups

_USAGE = "Usage: wattline COMMAND [OPTIONS]"
_OPTIONS = {"--version": "Print the version and exit.", "--help": "Show this message and exit."}


def help_text() -> str:
    width = max(map(len, all_commands()))
    lines = [
        _USAGE,
        "",
        "  Measure and report the energy, energy per unit of work and emissions of GPU runs.",
        "",
    ]
    for title, group in command_groups().items():
        lines += [
            f"{title}:",
            *(f"  {command.name:<{width}}  {command.help}" for command in group),
            "",
        ]
    lines += ["Options:", *(f"  {name:<{width}}  {text}" for name, text in _OPTIONS.items()), ""]
    return "\n".join([*lines, "`wattline COMMAND --help` lists the options of a command."])


def main() -> None:
    """Run a command and exit with the code of its program, or with 2 for an unknown command."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    commands = all_commands()
    if name in {"--help", "-h"}:
        print(help_text())
    elif name == "--version":
        from importlib.metadata import version

        print(f"wattline {version('wattline')}")
    elif name not in commands:
        hint = suggestion(name, commands) or "; see wattline --help"
        log_message(f"unknown command {name!r}{hint}")
        sys.exit(2)
    elif commands[name].program == "wattline":
        sys.exit(_run_own(name, sys.argv[2:]))
    else:
        import_module(f"wattline_{commands[name].program}.__main__").main("wattline")


def _run_own(name: str, arguments: Sequence[str]) -> int:
    """Return the exit code of a command of this program."""
    if importlib.util.find_spec("typer") is None:
        remedy = "in the clone of Wattline, run: pip install '.[all]'"
        log_message(f"the Python package typer is not installed; {remedy}")
        return 1
    from wattline.cli import completion

    usage = {
        "completion": f"wattline completion {'|'.join(completion.SHELLS)}",
        "man": "wattline man FOLDER",
    }[name]
    if {"--help", "-h"} & set(arguments):
        print(f"Usage: {usage}\n\n  {all_commands()[name].help}")
        return 0
    if not _is_valid(name, arguments):
        log_message(f"{name}: expected one argument; use the form {usage}")
        return 2
    if name == "completion":
        print(completion.script(arguments[0]), end="")
        return 0
    return _write_manual(arguments[0])


def _write_manual(folder: str) -> int:
    """Write the manual pages; return the exit code."""
    from wattline.cli import manual

    if folder in all_commands() and not Path(folder).exists():
        log_message(
            f"man: {folder} is a command, not a folder; for its options: wattline {folder} --help"
        )
        return 2
    try:
        count = manual.write_pages(folder)
    except OSError as error:
        log_message(
            f"cannot write to {folder}: {error.strerror}; give a folder with write permission"
        )
        return 1
    print(f"wrote {count} manual pages to {folder}; read one with: man -l {folder}/wattline.1")
    return 0


def _is_valid(name: str, arguments: Sequence[str]) -> bool:
    """Return True for one argument that is a shell, or a folder and no option."""
    from wattline.cli import completion

    if len(arguments) != 1:
        return False
    return (
        arguments[0] in completion.SHELLS
        if name == "completion"
        else not arguments[0].startswith("-")
    )

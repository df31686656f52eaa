"""Markdown tables of the options of the three programs."""

from __future__ import annotations

import re
from argparse import SUPPRESS, Action
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from typer.main import get_command

from wattline.command_line import help_record
from wattline_analyzer.cli import command_line
from wattline_exporter.cli.main import cli as exporter_app
from wattline_workloads.cli import app as workloads_app
from wattline_workloads.jobs import base as jobs

PROGRAMS = {"exporter": exporter_app, "workloads": workloads_app, "analyzer": command_line()}
_EXTRAS = re.compile(r"\s*\[((?:default|env var|required|\d|x[<>])[^\]]*)\]$")
_TYPES = {
    "str": "TEXT",
    "path": "PATH",
    "int range": "INTEGER",
    "float range": "NUMBER",
    "float": "NUMBER",
}
STUDY_COMMANDS = ("recommend", "compare", "gate", "variability", "tenants", "best-start")
"""Commands of the analyzer that compare runs, settings or times; they have a separate page."""
SUM_COMMANDS = ("usage", "waste", "requests")
"""Commands of the analyzer that sum over many runs or requests; they have a separate page."""
_INHERITED = 10
"""Identical options from which on a command refers to another command's table."""
_SHARED = 3
"""Commands from which on an identical option moves to the table of shared options."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Option or argument as `--help` shows it."""

    names: str
    help: str
    default: str
    is_option: bool

    @property
    def row(self) -> str:
        return f"| {_code(self.names)} | {_cell(self.help)} | {_cell(self.default)} |"


@dataclass(frozen=True, slots=True)
class Command:
    """Command of a program, without its hidden options."""

    name: str
    help: str
    parameters: tuple[Parameter, ...]


def commands(program: str) -> list[Command]:
    return list(_commands(get_command(PROGRAMS[program]), []))


@cache
def option_names(program: str) -> dict[str, set[str]]:
    """Return each command's options by its name, hidden ones included; "" is the program itself."""
    return {
        " ".join(path): _all_names(command)
        for path, command in _walk(get_command(PROGRAMS[program]), [])
    }


@cache
def job_option_names(job: str) -> set[str]:
    return set(chain.from_iterable(action.option_strings for action in _actions(job)))


def program_options(program: str, *, without: Collection[str] = ()) -> str:
    """Return the sections of all commands but `without`, and one of the options that several
    commands share.
    """
    known = commands(program)
    shared = _shared_by_commands(known)
    parts = _sections(program, {command.name for command in known} - set(without), "")
    if shared:
        parts += ["## Options of several commands", *_table(shared)]
    return "\n\n".join(parts)


def command_options(program: str, names: Collection[str], shared_page: str) -> str:
    """Return the sections of some commands; `shared_page` has the options that several commands
    share.
    """
    return "\n\n".join(_sections(program, names, shared_page))


def _sections(program: str, names: Collection[str], shared_page: str) -> list[str]:
    known = commands(program)
    shared = _shared_by_commands(known)
    parts: list[str] = []
    for number, command in enumerate(known):
        if command.name not in names:
            continue
        parts += [f"## `{program} {command.name}`", command.help]
        base, own = _own_parameters(command, known[:number])
        if base:
            missing = ", ".join(
                _code(p.names.split()[0]) for p in base.parameters if p not in command.parameters
            )
            without = f", except {missing}" if missing else ""
            parts.append(f"It takes the options of `{program} {base.name}`{without}.")
        common = [p for p in own if p in shared]
        parts += _table([p for p in own if p not in shared])
        if common:
            listed = ", ".join(_code(p.names.split()[0].strip(",")) for p in common)
            parts.append(f"[Shared options]({shared_page}#options-of-several-commands): {listed}.")
    return parts


def job_options() -> str:
    """Return a section for each built-in job."""
    parts = []
    for job in jobs.job_names():
        parser = jobs.load_job(job).parser()
        rows = [_job_row(action) for action in _actions(job)]
        parts += [f"## `workloads job {job}`", str(parser.description), "\n".join([*_HEAD, *rows])]
    return "\n\n".join(parts)


_HEAD = ("| option | meaning | default |", "|---|---|---|")


def _table(parameters: Sequence[Parameter]) -> list[str]:
    return ["\n".join([*_HEAD, *(one.row for one in parameters)])] if parameters else []


def _own_parameters(
    command: Command, earlier: Iterable[Command]
) -> tuple[Command | None, list[Parameter]]:
    for base in earlier:
        if (
            len(set(base.parameters) & set(command.parameters)) >= _INHERITED
            and len(base.parameters) > 2 * _INHERITED
        ):
            return base, [one for one in command.parameters if one not in base.parameters]
    return None, list(command.parameters)


def _shared_by_commands(known: Sequence[Command]) -> list[Parameter]:
    every = list(
        chain.from_iterable(
            _own_parameters(command, known[:n])[1] for n, command in enumerate(known)
        )
    )
    return [one for one in dict.fromkeys(every) if one.is_option and every.count(one) >= _SHARED]


def _walk(command: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _walk(child, [*path, name])


def _commands(command: Any, path: list[str]) -> Iterator[Command]:
    for names, child in _walk(command, path):
        if names and not child.hidden and not getattr(child, "commands", None):
            context = child.context_class(child, info_name=" ".join(names))
            shown = (one for one in child.params if not getattr(one, "hidden", False))
            parameters = tuple(_parameter(one, context) for one in shown)
            yield Command(" ".join(names), " ".join(str(child.help).split()), parameters)


def _parameter(parameter: Any, context: Any) -> Parameter:
    record = help_record(parameter, context)
    assert record
    names, text = record
    found = _EXTRAS.search(text)
    extras = [part.strip() for part in found[1].split(";")] if found else []
    default = "; ".join(re.sub(r"^default: \(?([^)]*)\)?$", r"`\1`", extra) for extra in extras)
    default = default.replace("env var: ", "environment variable ")
    is_option = parameter.param_type_name == "option"
    text = text[: found.start()] if found else text
    return Parameter(re.sub(r"<(?:list\[)?(.*?)\]?>", _type_name, names), text, default, is_option)


def _type_name(shown: re.Match[str]) -> str:
    return _TYPES.get(shown[1].lower(), shown[1])


def _all_names(command: Any) -> set[str]:
    options = (one for one in command.params if one.param_type_name == "option")
    return {"--help", *chain.from_iterable((*one.opts, *one.secondary_opts) for one in options)}


def _actions(job: str) -> list[Action]:
    parser = jobs.load_job(job).parser()
    return [
        action for action in parser._actions if action.help != SUPPRESS and action.dest != "help"
    ]


def _job_row(action: Action) -> str:
    metavar = (
        action.metavar
        if isinstance(action.metavar, str)
        else "|".join(map(str, action.choices or ()))
    )
    text, has_default, default = str(action.help or "").partition("default: ")
    names = f"{', '.join(action.option_strings)} {metavar}".strip()
    return (
        f"| {_code(names)} | {_cell(text.rstrip('; '))} | "
        f"{_cell(f'`{default}`' if has_default else '')} |"
    )


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

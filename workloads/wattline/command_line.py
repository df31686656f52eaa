"""Groups of command-line options, and the defaults and texts that all command lines share."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Any, get_type_hints

from wattline.commands import all_commands

_ROOT = Path(__file__).parents[1]
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_IN_ARCHIVE = (
    "import runpy, site, sys; site.addsitedir({root!r}); "
    "runpy.run_module(sys.argv.pop(1), None, '__main__', True)"
)


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a dataclass by one option per field of that
    dataclass.

    A field is annotated as an option is: `pue: Annotated[float | None, typer.Option(help="…")] =
    None`. The command gets the dataclass filled with the values; `--help` lists the options where
    the parameter stands.
    """
    groups: dict[str, type[Any]] = {}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation) and isinstance(parameter.annotation, type):
            groups[parameter.name] = parameter.annotation
            options += field_options(parameter.annotation)
        else:
            options.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def command_of_options(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    command_of_options.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # functions take any attribute
    command_of_options.__annotations__ = {option.name: option.annotation for option in options}
    return command_of_options


def field_options(group: type[Any]) -> list[inspect.Parameter]:
    """Return one option per field of a dataclass, in the order of the fields."""
    annotations = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=annotations[field.name],
        )
        for field in fields(group)
    ]


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return inspect.Parameter.empty if field.default_factory is MISSING else field.default_factory()


class PlainHelp:
    """Mixin of a command whose help names arguments without types and braces."""

    job_usage = ""
    """Text after the usage line for options that follow those of the command."""
    job_help = ""
    """Text of --help where the command reads this option itself."""
    unlisted: tuple[str, ...] = ()
    """Names of parameters that the help leaves out."""

    def collect_usage_pieces(self, context: Any) -> list[str]:
        pieces = super().collect_usage_pieces(context)  # type: ignore[misc]  # of the command class
        plain = [re.sub(r"^\{(.+)\}(\.\.\.)?$", r"\1\2", piece) for piece in pieces]
        return [*plain, self.job_usage] if self.job_usage else plain

    def format_options(self, context: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(context):  # type: ignore[attr-defined]  # of the command class
            record = help_record(parameter, context)
            if record is not None and parameter.name not in self.unlisted:
                is_argument = parameter.param_type_name == "argument"
                sections["Arguments" if is_argument else "Options"].append(record)
        if self.job_help:
            sections["Options"].append(("--help", self.job_help))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def help_record(parameter: Any, context: Any) -> tuple[str, str] | None:
    """Return names and text of a parameter for the help, None if it is hidden."""
    record = parameter.get_help_record(context)
    if record is None:
        return None
    names, text = record
    text = re.sub(r"default: \(([^)]*)\)", r"default: \1", text)
    if parameter.param_type_name == "argument":
        names = parameter.metavar or parameter.name
    elif parameter.secondary_opts:
        text = re.sub(r"default: [^\];]+", f"default: {'on' if parameter.default else 'off'}", text)
    return names, text


def called_program(program: str) -> str:
    """Return `wattline` if the user called that command, else the program."""
    path = Path(sys.argv[0])
    is_wattline = path.stem == "wattline" or path.parts[-2:] == ("wattline", "__main__.py")
    return "wattline" if is_wattline else program


def as_called(text: str) -> str:
    """Return a message with the commands that it names as commands of the program that the user
    called.
    """
    if called_program("") != "wattline":
        return text
    names = [
        f"{command.program} (?={command.name}\\b)"
        for command in all_commands().values()
        if command.program != "wattline"
    ]
    return re.sub(rf"\b(?:{'|'.join(names)})", "wattline ", text)


def escaped_line(text: str) -> str:
    r"""Return a text of another party, such as a label, on one line: control characters are escapes
    such as `\n` and `\x1b`, also those that change the direction of text.
    """
    return _CONTROL.sub(lambda one: one[0].encode("unicode_escape").decode(), text)


def escaped_lines(text: str) -> str:
    """Return a text of several lines, each as `escaped_line` does."""
    return "\n".join(map(escaped_line, text.split("\n")))


def print_usage_error(program: str, error: Any, print_error: Callable[[str], None]) -> None:
    """Print a usage error of typer with `print_error`, or the help text on stderr if the program
    was called without arguments.
    """
    if len(sys.argv) > 1:
        print_error(usage_error_text(program, error))
    else:
        print(error.format_message(), file=sys.stderr, flush=True)


def usage_error_text(program: str, error: Any) -> str:
    """Return the cause and the remedy of a usage error of typer, in one line."""
    context = getattr(error, "ctx", None)
    named = [name for name in sys.argv[1:2] if name in all_commands()]
    command = (
        context.command_path if context else " ".join([program, *named])
    )  # an option without its value has none
    return with_help(" ".join(_usage_cause(error, context).split()), command)


def with_help(cause: str, command: str) -> str:
    """Return a usage error with the command that shows more, unless the cause suggests a name."""
    return cause if cause.endswith("?") else as_called(f"{cause}; see {command} --help")


def _usage_cause(error: Any, context: Any) -> str:
    """Return the cause of a usage error by its attributes, since typer's classes differ from
    version to version.
    """
    message = str(error.message).replace("Value error, ", "").rstrip(".")  # prefix of pydantic
    parameter = getattr(error, "param", None)
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        return f"unknown option {option}{suggestion(option, error.possibilities or ())}"
    if option is not None:
        return message.replace(f"Option {option!r}", str(option))
    if parameter is not None:
        name = _parameter_name(parameter)
        if "valid integer" in message:  # of typer or of pydantic, by version
            message = "expected a whole number"
        return f"{name} is missing" if hasattr(error, "param_type") else f"{name}: {message}"
    return _message_cause(message, context)


def _message_cause(message: str, context: Any) -> str:
    """Return the cause of a usage error of which there is only the message."""
    if unknown := re.match(r"No such command '(.*?)'", message):
        names = context.command.list_commands(context)
        return f"unknown command {unknown[1]!r}{suggestion(unknown[1], names)}"
    if extra := re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message):
        return f"unexpected arguments: {extra[1]}"
    return message


def _parameter_name(parameter: Any) -> str:
    """Return an option, or the name of an argument, as the user types it."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(max(parameter.opts, key=len))


def suggestion(given: str, known: Iterable[str]) -> str:
    """Return `; did you mean x?`, empty without a similar name."""
    by_word = {name.lstrip("-"): name for name in known}
    matches = difflib.get_close_matches(given.lstrip("-"), by_word, 1)
    return f"; did you mean {by_word[matches[0]]}?" if matches else ""


def version_line(program: str) -> str:
    """Return what `--version` prints."""
    from importlib.metadata import version

    return f"{program} {version('wattline')}"


def missing_package(package: str, extra: str) -> str:
    """Return the message for a Python package that is not installed; its name may be that of a
    command, too.
    """
    return f"the Python package {package} is not installed; {install(extra)}"


def install(extra: str) -> str:
    """Return the command that installs an optional part from a clone of the repository."""
    return f"in the clone of Wattline, run: pip install '.[{extra}]'"


def exit_if_not_installed(program: str) -> None:
    """Exit with one line if the packages of all command lines are missing; call it before typer is
    imported.
    """
    for package in ("typer", "pydantic"):
        if importlib.util.find_spec(package) is None:
            sys.exit(f"{called_program(program)}: {missing_package(package, program)}")


def user_state_folder(environ: Mapping[str, str]) -> Path:
    """Return `wattline` in the user's state folder; a relative XDG_STATE_HOME is ignored, as the
    specification demands.

    The environment is an argument, unlike in platformdirs, since a runner looks it up for the
    exporter that it starts.
    """
    base = environ.get("XDG_STATE_HOME", "")
    if base.startswith("/"):
        return Path(base) / "wattline"
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".local" / "state" / "wattline"


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `module` in this interpreter, also for modules of a zipapp.

    `-P` keeps a user's file from shadowing a module. The files that a zipapp unpacked are added by
    the command and not by PYTHONPATH, which the user's programs would inherit.
    """
    if "_bootstrap" in sys.modules:  # of the zipapp's runtime, shiv
        return [sys.executable, "-P", "-c", _IN_ARCHIVE.format(root=str(_ROOT)), module, *arguments]
    return [sys.executable, "-P", "-m", module, *arguments]

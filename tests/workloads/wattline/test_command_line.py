"""Option groups of command lines, and the texts that all command lines share."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from wattline.command_line import (
    as_called,
    called_program,
    escaped_line,
    escaped_lines,
    print_usage_error,
    usage_error_text,
    version_line,
    with_option_groups,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Option group with a required and two optional options."""

    host: Annotated[str, typer.Option(help="Host of the place.")]
    port: Annotated[int, typer.Option(min=1)] = 80
    paths: Annotated[list[str] | None, typer.Option("--path")] = None

    def __post_init__(self) -> None:
        if self.host == "nowhere":
            raise typer.BadParameter("--host: expected a host, not 'nowhere'")


@with_option_groups
def visit(name: Annotated[str, typer.Argument()], *, loud: bool = False, place: Place) -> None:
    """Visit a place."""
    print(name, loud, place)


APP = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
APP.command()(visit)
USAGE_ERROR = typer.BadParameter.__mro__[1]
"""Base class of typer's usage errors."""


def visited(*arguments: str) -> str:
    done = CliRunner().invoke(APP, arguments)
    assert done.exit_code == 0, done.output
    return done.output.strip()


def test_option_group_values_fill_the_dataclass():
    assert visited("ann", "--host", "h", "--port", "8", "--path", "a", "--path", "b", "--loud") == (
        "ann True Place(host='h', port=8, paths=['a', 'b'])"
    )


def test_option_group_defaults_are_those_of_the_fields():
    assert visited("ann", "--host", "h") == "ann False Place(host='h', port=80, paths=None)"


def test_option_group_field_without_default_is_required():
    done = CliRunner().invoke(APP, ["ann"])

    assert done.exit_code == 2
    assert "--host" in done.output


def test_option_group_help_lists_options_at_the_parameter():
    text = visited("--help")

    assert "Host of the place." in text
    assert text.index("--loud") < text.index("--host") < text.index("--port") < text.index("--path")


def test_option_group_check_is_usage_error():
    done = CliRunner().invoke(APP, ["ann", "--host", "nowhere"])

    assert done.exit_code == 2
    assert "expected a host, not 'nowhere'" in done.output


def test_usage_error_is_one_line_with_the_help_of_its_command(monkeypatch):
    monkeypatch.setattr("sys.argv", ["visit", "ann"])

    text = usage_error_text("visit", typer.BadParameter("no\nsuch place."))

    assert text == "no such place; see visit --help"


@pytest.mark.parametrize(
    ("first", "command"), [("requests", "analyzer requests"), ("--by", "analyzer")]
)
def test_usage_error_without_context_names_the_command(monkeypatch, first, command):
    monkeypatch.setattr("sys.argv", ["analyzer", first, "--by"])

    text = usage_error_text("analyzer", typer.BadParameter("no value"))

    assert text == f"no value; see {command} --help"


def test_usage_error_without_arguments_is_the_help_text(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["visit"])

    print_usage_error("visit", typer.BadParameter("Usage:\nvisit NAME"), print)

    assert capsys.readouterr() == ("", "Invalid value: Usage:\nvisit NAME\n")


def _two_commands() -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)

    @app.command()
    def greet(name: str, times: int = 1, loud: bool = False) -> None: ...

    @app.command()
    def part(out: Annotated[str, typer.Option()]) -> None: ...

    return app


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["greet", "ann", "--tims", "2"], "unknown option --tims; did you mean --times?"),
        (["greet", "ann", "--xyz"], "unknown option --xyz; see hello greet --help"),
        (["greet", "ann", "bob", "eve"], "unexpected arguments: bob eve; see hello greet --help"),
        (["greet"], "NAME is missing; see hello greet --help"),
        (["part"], "--out is missing; see hello part --help"),
        (
            ["greet", "ann", "--times", "x"],
            "--times: expected a whole number; see hello greet --help",
        ),
        (["greet", "ann", "--times"], "--times requires an argument; see hello --help"),
        (["gret"], "unknown command 'gret'; did you mean greet?"),
        (["xyz"], "unknown command 'xyz'; see hello --help"),
    ],
)
def test_usage_error_of_each_kind_has_cause_and_remedy(monkeypatch, arguments, expected):
    monkeypatch.setattr("sys.argv", ["hello", *arguments])
    printed = []
    try:
        _two_commands()(arguments, prog_name="hello", standalone_mode=False)
    except USAGE_ERROR as error:
        print_usage_error("hello", error, printed.append)

    assert printed == [expected]


def test_version_line_names_program():
    assert version_line("visit").startswith("visit ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llama 3 – 70 B", "llama 3 – 70 B"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("a\x85b\u2028c\u202ed", "a\\x85b\\u2028c\\u202ed"),
    ],
)
def test_escaped_line_has_escapes_for_control_characters(text, expected):
    assert escaped_line(text) == expected


def test_escaped_lines_stay_lines():
    assert escaped_lines("a\nb\rc") == "a\nb\\rc"


@pytest.mark.parametrize(
    "called", ["/opt/bin/wattline", "/site-packages/wattline/__main__.py", "wattline.pyz"]
)
def test_message_of_wattline_names_its_commands(monkeypatch, called):
    monkeypatch.setattr("sys.argv", [called])
    text = (
        "see analyzer runs, analyzer best-start, workloads caps restore and exporter check; "
        "the exporter runs"
    )

    assert called_program("analyzer") == "wattline"
    assert as_called(text) == (
        "see wattline runs, wattline best-start, wattline caps restore and wattline check; the "
        "exporter runs"
    )


def test_message_of_another_program_is_unchanged(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/opt/bin/analyzer"])

    assert (called_program("analyzer"), as_called("see: analyzer runs")) == (
        "analyzer",
        "see: analyzer runs",
    )

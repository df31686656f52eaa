"""Option groups of command lines, and the texts that all command lines share."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from wattline.command_line import (
    as_called,
    called_program,
    usage_message,
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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (True, "visit: Invalid value: no such place (see visit --help)"),
        (False, "Invalid value: no\nsuch place"),
    ],
)
def test_usage_message_is_one_line_with_arguments(arguments, expected):
    assert (
        usage_message("visit", typer.BadParameter("no\nsuch place"), arguments=arguments)
        == expected
    )


@pytest.mark.parametrize(
    ("first", "command"), [("requests", "analyzer requests"), ("--by", "analyzer")]
)
def test_usage_message_without_context_names_the_command(monkeypatch, first, command):
    monkeypatch.setattr("sys.argv", ["analyzer", first, "--by"])

    text = usage_message("analyzer", typer.BadParameter("no value"), arguments=True)

    assert text == f"{command}: Invalid value: no value (see {command} --help)"


def test_version_line_names_program():
    assert version_line("visit").startswith("visit ")


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

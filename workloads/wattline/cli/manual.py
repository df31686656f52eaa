"""Manual pages in roff, generated from the commands' definitions."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from wattline.cli.definitions import CommandDefinition, read_definitions
from wattline.commands import command_groups


def pages() -> dict[str, str]:
    """Return the pages by file name. They contain no date, so the same version has the same
    pages.
    """
    known = read_definitions()
    found = {"wattline.1": _index(known)}
    found |= {f"{_page_name(command)}.1": _page(command) for command in known}
    return found


def write_pages(folder: str) -> int:
    """Write the pages to a folder, new or existing, and return their number. Raises OSError."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    found = pages()
    for name, text in found.items():
        (path / name).write_text(text)
    return len(found)


def _page_name(command: CommandDefinition) -> str:
    return f"wattline-{command.name.replace(' ', '-')}"


def _head(name: str, summary: str) -> list[str]:
    return [
        f'.TH {name.upper()} 1 "" "wattline {version("wattline")}" "Wattline"',
        ".ad l",
        ".SH NAME",
        f"{_roff(name)} \\- {_roff(summary)}",
    ]


def _index(known: list[CommandDefinition]) -> str:
    lines = _head("wattline", "measure the energy of GPU runs")
    lines += [".SH SYNOPSIS", ".B wattline", "COMMAND [OPTIONS]"]
    for title, group in command_groups().items():
        lines.append(f".SH {title.upper()}")
        for listed in group:
            lines += [".TP", f".B {_roff(listed.name)}", _roff(listed.help)]
    lines += [
        ".SH SEE ALSO",
        ", ".join(f"\\fB{_roff(_page_name(command))}\\fR(1)" for command in known),
    ]
    return "\n".join(lines) + "\n"


def _page(command: CommandDefinition) -> str:
    lines = _head(_page_name(command), command.text.partition(". ")[0].rstrip(".:"))
    lines += [".SH SYNOPSIS", f".B wattline {_roff(command.name)}", _roff(command.usage)]
    lines += [".SH DESCRIPTION", _roff(command.text)]
    if command.options:
        lines.append(".SH OPTIONS")
    for option in command.options:
        names = ", ".join(f"\\fB{_roff(name)}\\fR" for name in option.names)
        value = f"\\fI{_roff(option.value)}\\fR" if option.value else ""
        lines += [".TP", f"{names} {value}".strip(), _roff(option.help)]
    return "\n".join([*lines, ".SH SEE ALSO", "\\fBwattline\\fR(1)"]) + "\n"


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped

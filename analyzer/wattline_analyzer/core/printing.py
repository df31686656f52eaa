"""Output of the commands: messages on stderr, results on stdout, files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, NoReturn

from wattline.command_line import as_called, called_program, escaped_lines

if TYPE_CHECKING:
    from wattline_analyzer.core.tables import CommandOutput


class OutputFormat(StrEnum):
    """Format of a result on stdout."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


_TABLE_ROWS = 50
"""Number of rows of a table on a terminal, if the user gives none."""


def table_limit(form: OutputFormat) -> int | None:
    """Return the default number of rows; formats for machines have all rows."""
    return _TABLE_ROWS if form is OutputFormat.TABLE else None


def print_message(text: str) -> None:
    line = f"{called_program('analyzer')}: {as_called(escaped_lines(text))}"
    print(line, file=sys.stderr, flush=True)


def exit_with_error(text: str) -> NoReturn:
    print_message(text)
    raise SystemExit(1)


def exists(path: Path) -> bool:
    """Return False also for a path in a folder without permission; writing it then reports the
    cause.
    """
    try:
        return path.exists()
    except OSError:
        return False


def require_folder(folder: Path) -> None:
    """Exit with an error unless files can be written to the folder, which may be missing; leave it
    as it was.
    """
    created = [path for path in (folder, *folder.parents) if not exists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
        for path in created:
            path.rmdir()
    except OSError as error:
        _exit_unwritable(folder, error)


def _exit_unwritable(folder: Path, error: OSError) -> NoReturn:
    exit_with_error(
        f"cannot write to {folder}: {error.strerror}; give --out a folder with write permission"
    )


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files by their names, create missing folders, and print the paths, with the files that
    were replaced.
    """
    replaced = [name for name in contents if exists(folder / name)]
    try:
        for name, content in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        _exit_unwritable(folder, error)
    earlier = f"; replaced the earlier {', '.join(replaced)}" if replaced else ""
    print_message(f"wrote {', '.join(str(folder / name) for name in contents)}{earlier}")


def print_output(output: CommandOutput, form: OutputFormat) -> None:
    """Print a command's result on stdout."""
    from rich.console import Group
    from rich.text import Text

    from wattline_analyzer.core.documents import as_csv, as_json, as_yaml, null_if_not_finite
    from wattline_analyzer.core.tables import Table
    from wattline_analyzer.core.terminal import (
        UNLIMITED_COLUMNS,
        WithoutTrailingSpaces,
        console,
        titled_table,
    )

    if form is OutputFormat.TABLE:
        parts = (titled_table(part) if isinstance(part, Table) else part for part in output.parts)
        texts = (Text(escaped_lines(part)) if isinstance(part, str) else part for part in parts)
        spaced = [line for part in texts for line in (Text(""), part)]
        content = WithoutTrailingSpaces(Group(*spaced[1:]))
        console(plain_columns=UNLIMITED_COLUMNS).print(content, end="")
    elif form is OutputFormat.CSV:
        print(as_csv(output.rows, output.header))
    else:
        write = as_json if form is OutputFormat.JSON else as_yaml
        print(write(null_if_not_finite(output.document)))

"""Format of files, and what a file shows of its format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from wattline_analyzer.importers.content import FileContent, ReadOptions
from wattline_analyzer.importers.text import first_line, parse_json_object, read_columns, read_text


class FileHead:
    """Name of a file, and its first line or its document, read when they are asked for.

    Each property raises UnreadableError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def first_line(self) -> str:
        """First line with text, empty if there is none."""
        return first_line(self.path)

    @cached_property
    def first_object(self) -> dict[str, Any]:
        """Object of the first line, empty if it is not one."""
        return _object(self.first_line)

    @cached_property
    def event(self) -> dict[str, Any]:
        """First object of JSON lines, empty for other files."""
        return self.first_object if self.path.suffix == ".jsonl" else {}

    @cached_property
    def document(self) -> dict[str, Any]:
        """Object of a JSON file, or its first one; empty for other files."""
        if self.path.suffix != ".json":
            return {}
        return _object(read_text(self.path)) or self.first_object

    @cached_property
    def columns(self) -> frozenset[str]:
        """Names of the columns of a table, empty for JSON."""
        if self.path.suffix in (".json", ".jsonl"):
            return frozenset()
        return frozenset(read_columns(self.path))


@dataclass(frozen=True, slots=True)
class FileFormat:
    """Format of files: how it is recognized and read. `read` raises UnreadableError."""

    name: str
    recognize: Callable[[FileHead], bool]
    read: Callable[[Path, ReadOptions], FileContent]
    file_names: tuple[str, ...] = ()
    """Names of its files that end neither in .csv nor in .json or .jsonl."""
    companions: tuple[str, ...] = ()
    """Names of files that are read together with one of its files."""
    is_general: bool = False
    """True if it also recognizes files of others: it comes last."""


def _object(text: str) -> dict[str, Any]:
    """Return a JSON object, empty if the text is not one."""
    try:
        return parse_json_object(text)
    except ValueError:
        return {}

"""Lines, tables and JSON of files as other tools write them."""

from __future__ import annotations

import codecs
import csv
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

from wattline_analyzer.core.sources.base import Progress, no_progress
from wattline_analyzer.importers.content import FileContent, UnreadableError

_UNIT_IN_COLUMN = re.compile(r"^(.*?)\s*[\[(]\s*([^\])]*?)\s*[\])]\s*$")
_LINES_A_STEP = 10_000

Cells = dict[str, str]
"""Texts of one row by the names of the columns."""


def read_text(path: Path) -> str:
    """Return the text of a file. Raises UnreadableError."""
    return "".join(line for _, line in read_lines(path))


def read_lines(path: Path, progress: Progress = no_progress) -> Iterator[tuple[int, str]]:
    """Yield the lines and their numbers, counted from 1. Raises UnreadableError."""
    try:
        with path.open("rb") as file, TextIOWrapper(file, _encoding(file.peek(2))) as text:
            size = os.fstat(file.fileno()).st_size
            for number, line in enumerate(text, 1):
                if number % _LINES_A_STEP == 0:
                    progress(f"reading {path.name}", file.tell() / size)
                yield number, line
    except UnicodeError as error:
        raise UnreadableError(
            f"cannot read {path}: neither UTF-8 nor UTF-16 text; see --format-of for the known "
            "formats"
        ) from error
    except OSError as error:
        raise UnreadableError(
            f"cannot read {path}: {error.strerror}; check the path and its permissions"
        ) from error
    progress(f"reading {path.name}", 1.0)


def _encoding(start: bytes) -> str:
    """Return the encoding by the first bytes: PowerShell writes UTF-16."""
    return "utf-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def first_line(path: Path) -> str:
    """Return the first line with text, empty if there is none. Raises UnreadableError."""
    return next((line.strip() for _, line in read_lines(path) if line.strip()), "")


def split_column(column: str) -> tuple[str, str]:
    """Return a column's name in lower case and its unit, which may be empty: `power.draw [W]`,
    `Power (mW)`.
    """
    match = _UNIT_IN_COLUMN.match(column)
    return (match[1].strip().lower(), match[2]) if match else (column.strip().lower(), "")


def read_columns(path: Path) -> dict[str, str]:
    """Return the units of the columns in the first line with text, by name. Raises
    UnreadableError.
    """
    try:
        line = first_line(path)
        return dict(map(split_column, _split(line, delimiter(line))))
    except ValueError as error:
        raise UnreadableError(
            f"cannot read {path}, first line: {error}; check that it is CSV"
        ) from error


def delimiter(header: str) -> str:
    """Return the separator of cells by the line of the columns: a semicolon or a comma."""
    return ";" if header.count(";") > header.count(",") else ","


def _split(line: str, separator: str) -> list[str]:
    """Return the cells of a line. Raises ValueError."""
    if '"' not in line:
        return [cell.strip() for cell in line.split(separator)]
    try:
        return [
            cell.strip()
            for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
        ]
    except csv.Error as error:
        raise ValueError(str(error)) from error


def take_lines(content: FileContent, take: Callable[[str], None], most: int | None = None) -> None:
    """Pass the lines with text to `take`, all or those among the first `most`. Raises
    UnreadableError.
    """
    lines = islice(read_lines(content.path, content.options.progress), most)
    content.take_each(((number, line) for number, line in lines if not line.isspace()), take)


def take_rows(content: FileContent, take: Callable[[Cells], None], most: int | None = None) -> None:
    """Pass the rows of a table to `take`, by the names in its first line. Raises UnreadableError.

    The first line may occur again, since logs are appended to each other. A row with more cells
    than columns is a bad line: a comma inside a number shifts all cells after it.
    """
    header: list[str] = []
    names: list[str] = []
    separator = delimiter(first_line(content.path))

    def take_row(line: str) -> None:
        cells = _split(line, separator)
        if not header:
            header.extend(cells)
            names.extend(split_column(cell)[0] for cell in cells)
        elif cells[0] == header[0]:
            if cells != header:
                raise ValueError(
                    "other columns than in the first line; import the parts of the file separately"
                )
        elif len(cells) > len(names) and (surplus := ",".join(cells[len(names) :]).strip(",")):
            raise ValueError(
                f"more cells than columns ({surplus[:40]!r}); write numbers without a comma"
            )
        else:
            take(dict(zip(names, cells, strict=False)))

    take_lines(content, take_row, most)


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file. Raises UnreadableError."""
    try:
        return parse_json_object(read_text(path))
    except ValueError as error:
        raise UnreadableError(
            f"cannot read {path}: {error}; check that the file is complete"
        ) from error


def parse_json_object(text: str) -> dict[str, Any]:
    """Return the JSON object of a text. Raises ValueError."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"line {error.lineno} is not JSON: {error.msg}"
            if error.lineno > 1
            else f"not JSON: {error.msg}"
        ) from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004  # a fault of the file
    return value


def parse_json_objects(text: str) -> list[dict[str, Any]]:
    """Return the one JSON object of a text, or those of its lines. Raises ValueError."""
    try:
        return [parse_json_object(text)]
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [parse_json_object(line) for line in lines]


def read_yaml_object(path: Path) -> dict[str, Any]:
    """Return the mapping of a YAML file, empty if the file does not exist or holds none. Raises
    UnreadableError.
    """
    if not path.exists():
        return {}
    import yaml

    try:
        document = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise UnreadableError(
            f"cannot read {path}: not YAML: {' '.join(str(error).split())[:200]}"
        ) from error
    return document if isinstance(document, dict) else {}


def finite_numbers(values: Mapping[str, object]) -> dict[str, float]:
    """Return the finite numbers among the values."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }

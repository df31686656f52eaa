"""Numbers, CSV rows and JSON of files as other tools write them."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analyzer.importers.content import BadLine, UnreadableError

_NUMBER = re.compile(r"^\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\d\s].*)?$")
_ABSENT = (
    "n/a",
    "[n/a]",
    "not supported",
    "unknown error",
    "not active",
    "insufficient permissions",
    "nan",
    "none",
    "",
)


def is_absent(text: str) -> bool:
    """Return whether a cell has a tool's mark of an absent value."""
    return text.strip().lower().strip("[]") in _ABSENT


def parse_number(text: str) -> float | None:
    """Return the number of a text such as `46.19 W`, None for a tool's mark of an absent value. Raises ValueError."""
    if is_absent(text):
        return None
    match = _NUMBER.match(text)
    if not match or not math.isfinite(float(match[1])):
        raise ValueError(f"{text.strip()[:60]!r} is not a number")
    return float(match[1])


SURPLUS = "cells without a column"
"""Name of the cells for which there is no column, separated by commas."""


def read_text(path: Path) -> str:
    """Return the text of a file. Raises UnreadableError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"cannot read {path}: not UTF-8 text; see --format-of for the known formats") from error
    except OSError as error:
        raise UnreadableError(f"cannot read {path}: {error.strerror}; check the path and its permissions") from error


def csv_rows(path: Path, header_line: int = 1) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and cells by column, without surrounding blanks; `SURPLUS` has the cells without a column."""
    lines = read_text(path).splitlines()
    header = [
        name.strip() for name in next(csv.reader(lines[header_line - 1 : header_line], skipinitialspace=True), [])
    ]
    for position, line in enumerate(lines[header_line:], header_line + 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True))]
        surplus = ",".join(cells[len(header) :]).strip(",")
        yield position, dict(zip(header, cells, strict=False)) | ({SURPLUS: surplus} if surplus else {})


def refuse_surplus(cells: Mapping[str, str]) -> None:
    """Raise ValueError for more cells than columns: a comma inside a number shifts all cells after it."""
    if SURPLUS in cells:
        raise ValueError(f"more cells than columns ({cells[SURPLUS][:40]!r}); write numbers without a comma")


def csv_header(path: Path) -> list[str]:
    """Return the columns of the first line."""
    return [name.strip() for name in next(csv.reader(read_text(path).splitlines()[:1], skipinitialspace=True), [])]


def read_json_lines(path: Path, bad: list[BadLine]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object; other lines are added to `bad`."""
    for position, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            bad.append(BadLine(position, f"not JSON: {error.msg}"))
            continue
        if isinstance(value, dict):
            yield position, value
        else:
            bad.append(BadLine(position, "not a JSON object"))


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file. Raises UnreadableError."""
    try:
        document = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UnreadableError(f"cannot read {path}, line {error.lineno}: not JSON: {error.msg}") from error
    if not isinstance(document, dict):
        raise UnreadableError(f"cannot read {path}: not a JSON object")
    return document


@contextmanager
def collect_bad_line(bad: list[BadLine], line: int) -> Iterator[None]:
    """Record a line as bad if its values cannot be read."""
    try:
        yield
    except KeyError as error:
        bad.append(BadLine(line, f"no {error.args[0]}"))
    except (TypeError, ValueError, AttributeError) as error:
        bad.append(BadLine(line, str(error)))


def finite_numbers(values: Mapping[str, object]) -> dict[str, float]:
    """Return the finite numbers among the values."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }

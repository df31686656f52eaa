"""Moments, numbers, lines and rows, as tools write them into files."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, tzinfo
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
_SCALES = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""From which size on a Unix time is in ns, µs or ms: in seconds it would lie thousands of years ahead."""


def moment_s(text: str, zone: tzinfo) -> float:
    """Unix seconds of a Unix time or a date of ISO's or nvidia-smi's kind. Raises ValueError."""
    text = text.strip()
    if re.fullmatch(r"\d{9,}(\.\d+)?", text):
        value = float(text)
        return value / next((scale for limit, scale in _SCALES if value >= limit), 1.0)
    try:
        found = datetime.fromisoformat(text.replace("/", "-"))
    except ValueError as error:
        raise ValueError(f"{text[:60]!r} is no time") from error
    return (found if found.tzinfo else found.replace(tzinfo=zone)).timestamp()


def number(text: str) -> float | None:
    """Of `46.19 W` the number; None where a tool writes that it has none. Raises ValueError for other text."""
    if text.strip().lower().strip("[]") in _ABSENT:
        return None
    found = _NUMBER.match(text)
    if not found or not math.isfinite(float(found[1])):
        raise ValueError(f"{text.strip()[:60]!r} is no number")
    return float(found[1])


def content_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{path} is no text; which format is it? see --format-of") from error
    except OSError as error:
        raise UnreadableError(f"cannot read {path}: {error.strerror}") from error


def rows(path: Path, header_line: int = 1) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells by column, which have no blanks around; cells without a column are left out."""
    lines = content_of(path).splitlines()
    header = [name.strip() for name in next(csv.reader(lines[header_line - 1 : header_line]), [])]
    for position, line in enumerate(lines[header_line:], header_line + 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in next(csv.reader([line]))]
        yield position, dict(zip(header, cells, strict=False))


def header(path: Path) -> list[str]:
    """The columns of the first line."""
    return [name.strip() for name in next(csv.reader(content_of(path).splitlines()[:1]), [])]


def json_lines(path: Path, bad: list[BadLine]) -> Iterator[tuple[int, dict[str, Any]]]:
    for position, line in enumerate(content_of(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except json.JSONDecodeError as error:
            bad.append(BadLine(position, f"no JSON: {error.msg}"))
            continue
        if isinstance(found, dict):
            yield position, found
        else:
            bad.append(BadLine(position, "no JSON object"))


def json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(content_of(path))
    except json.JSONDecodeError as error:
        raise UnreadableError(f"{path}:{error.lineno}: no JSON: {error.msg}") from error
    if not isinstance(found, dict):
        raise UnreadableError(f"{path}: no JSON object")
    return found


def guarded(bad: list[BadLine], line: int, read: Callable[[], None]) -> None:
    """What cannot be read in a line makes it a bad one, and nothing of it is kept."""
    try:
        read()
    except KeyError as error:
        bad.append(BadLine(line, f"no {error.args[0]}"))
    except (TypeError, ValueError, AttributeError) as error:
        bad.append(BadLine(line, str(error)))


def finite(values: Mapping[str, object]) -> dict[str, float]:
    """The numbers among them."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }

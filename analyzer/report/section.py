"""A part of the report as a table in words: the same on the console and on the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from analyzer.measured import Report


@dataclass(frozen=True, slots=True)
class Section:
    """`note` is a sentence below the table; figures stand in the columns from `words` on."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    words: int = 1


_PARTS: tuple[Callable[[Report], Section | None], ...] = ()


def sections(report: Report) -> tuple[Section, ...]:
    """In the order in which they are shown; a part of which nothing is known is left out."""
    return tuple(found for part in _PARTS if (found := part(report)))

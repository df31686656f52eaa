"""Terminal rendering of tables and reports."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from wattline.command_line import escaped_line
from wattline_analyzer.core.tables import Cell, Column, Table

PLAIN_COLUMNS = 100
UNLIMITED_COLUMNS = 100_000
_GAP = 2
_LONGEST_WORD = 24
"""Longer words, such as paths, may be broken."""


def console(file: TextIO | None = None, plain_columns: int = PLAIN_COLUMNS) -> Console:
    """Return a console; a file that is no terminal gets plain text of `plain_columns` columns."""
    file = file or sys.stdout
    if file.isatty():
        return Console(file=file, highlight=False)
    return Console(
        file=file, highlight=False, width=plain_columns, force_terminal=False, no_color=True
    )


class WithoutTrailingSpaces:
    """Content whose lines end with their last character: rich pads cells to the column's width."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self._content, options, pad=False):
            while line and not line[-1].text.rstrip():
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(), line[-1].style, line[-1].control)
            yield from line
            yield Segment.line()


class TerminalTable:
    """A table that never truncates a figure: text wraps, then brackets fold below figures, then
    rows become blocks.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._rows = [*table.rows, *table.totals]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for folded in (False, True):
            widths = self._widths(options.max_width, folded=folded)
            if widths:
                yield self._columns(widths, folded=folded)
                return
        yield from self._blocks(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the width of the table, so that lines are not padded to the console's width."""
        room = options.max_width
        widths = self._widths(room, folded=False) or self._widths(room, folded=True)
        width = sum(widths) + _GAP * (len(widths) - 1) if widths else room
        return Measurement(width, width)

    def _widths(self, room: int, *, folded: bool) -> list[int] | None:
        """Return the width of each column; None if they do not fit. Figures get their full width
        first, then text.
        """
        columns = self._table.columns
        least = []
        most = []
        for position, column in enumerate(columns):
            cells = [_text(row[position], column, folded=folded) for row in self._rows]
            narrow = _longest_word if _wraps(column) else _width
            least.append(max([_longest_word(column.title), *map(narrow, cells)]))
            most.append(max([_width(column.title), *map(_width, cells)]))
        spare = room - _GAP * (len(columns) - 1) - sum(least)
        if spare < 0:
            return None
        for at in sorted(
            range(len(columns)), key=lambda at: (_wraps(columns[at]), most[at] - least[at])
        ):
            more = min(most[at] - least[at], spare)
            least[at] += more
            spare -= more
        return least

    def _columns(self, widths: list[int], *, folded: bool) -> RichTable:
        grid = RichTable(
            box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_edge=False, header_style="dim"
        )
        for column, width in zip(self._table.columns, widths, strict=True):
            justify: JustifyMethod = "left" if column.text else "right"
            grid.add_column(Text(column.title), justify=justify, width=width, overflow="fold")
        for row in self._rows:
            columns = zip(row, self._table.columns, strict=True)
            grid.add_row(*(Text(_text(cell, column, folded=folded)) for cell, column in columns))
        return grid

    def _blocks(self, room: int) -> RenderResult:
        """Yield each row as its first cell and an indented line per other cell."""
        titles = [column.title for column in self._table.columns]
        widest = max((_width(title) for title in titles[1:]), default=0)
        figures = [
            _width(_text(cell, column, folded=True))
            for row in self._rows
            for cell, column in zip(row, self._table.columns, strict=True)
            if not _wraps(column)
        ]
        left = min(
            widest,
            max(
                room - 2 * _GAP - max(figures, default=0),
                max(map(_longest_word, titles[1:]), default=0),
            ),
        )
        right = max(room - 2 * _GAP - left, 1)
        for row in self._rows:
            grid = RichTable.grid(padding=(0, _GAP, 0, 0))
            grid.add_column(width=left, overflow="fold")
            grid.add_column(max_width=right, overflow="fold")
            for cell, column in list(zip(row, self._table.columns, strict=True))[1:]:
                if not cell.absent:
                    text = _text(cell, column)
                    grid.add_row(
                        column.title,
                        Text(text if _width(text) <= right else _text(cell, column, folded=True)),
                    )
            yield Text(_text(row[0], self._table.columns[0]))
            yield Padding(grid, (0, 0, 0, _GAP), expand=False)


def _wraps(column: Column) -> bool:
    return column.text and not column.whole


def _text(cell: Cell, column: Column, *, folded: bool = False) -> str:
    """Return the cell's text with its note; folded, `3,480 J` stands above `(3,010 to 3,950)`."""
    text = escaped_line(f"{cell.text} ({cell.note})" if cell.note else cell.text)
    return text.replace(" (", "\n(") if folded and not _wraps(column) else text


def _width(text: str) -> int:
    return max((cell_len(line) for line in text.splitlines()), default=0)


def _longest_word(text: str) -> int:
    return max((min(cell_len(word), _LONGEST_WORD) for word in text.split()), default=0)


def titled_table(table: Table) -> RenderableType:
    title = [Text(escaped_line(table.title), "bold")] if table.title else []
    notes = (Text(escaped_line(note), "dim") for note in table.notes)
    return Group(*title, TerminalTable(table), *notes)

"""A table that cuts no figure, however narrow the terminal: text is wrapped first, then rows become blocks of lines."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_APART = 2
_LONGEST_WORD = 24
"""A longer one, as a path, may be folded."""
_FIGURE = re.compile(r"[<>≤≥~≈±+\-−]?\s?\d")
Cell = str | Text


class Sheet:
    """`left` are the positions of columns that stand left, `whole` of those that are never wrapped, as ids are not."""

    def __init__(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Cell]],
        left: Collection[int] = (0,),
        whole: Collection[int] = (0,),
    ) -> None:
        self._heads = [Text(column, "dim") for column in columns]
        self._rows = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
        self._left = left
        figures = {at for at in range(len(columns)) if _is_of_figures([row[at].plain for row in self._rows])}
        self._words = set(range(len(columns))) - figures - set(whole)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for folds in (False, True):
            widths = self._widths(options.max_width, folds=folds)
            if widths:
                yield self._table(widths, folds=folds)
                return
        yield from self._blocks(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """No wider than it is, so that nothing is filled up to the end of a line that has none."""
        widths = self._widths(options.max_width, folds=False) or self._widths(options.max_width, folds=True)
        wide = sum(widths) + _APART * (len(widths) - 1) if widths else options.max_width
        return Measurement(wide, wide)

    def _widths(self, room: int, *, folds: bool) -> list[int] | None:
        """Of each column; None where they do not fit. `folds`: what stands in brackets goes below its figure."""
        room -= _APART * (len(self._heads) - 1)
        least, most = [], []
        for at, head in enumerate(self._heads):
            cells = [row[at] for row in self._rows]
            own = [_width(_folded(cell) if folds and at not in self._words else cell) for cell in cells]
            narrow = [_longest_word(cell) for cell in cells] if at in self._words else own
            least.append(max([_longest_word(head), *narrow]))
            most.append(max([_width(head), *own]))
        spare = room - sum(least)
        if spare < 0:
            return None
        for at in sorted(range(len(least)), key=lambda at: (at in self._words, most[at] - least[at])):
            more = min(most[at] - least[at], spare)
            least[at] += more
            spare -= more
        return least

    def _table(self, widths: Sequence[int], *, folds: bool) -> Table:
        table = Table(box=None, padding=(0, _APART, 0, 0), pad_edge=False, show_edge=False)
        for at, (head, width) in enumerate(zip(self._heads, widths, strict=True)):
            table.add_column(head, justify="left" if at in self._left else "right", width=width, overflow="fold")
        for row in self._rows:
            shown = (_folded(cell) if folds and at not in self._words else cell for at, cell in enumerate(row))
            table.add_row(*shown)
        return table

    def _blocks(self, room: int) -> RenderResult:
        """A row as its first cell, and below it a line for each other one."""
        room -= 2 * _APART
        heads = self._heads[1:]
        figures = [_width(_folded(cell)) for row in self._rows for at, cell in enumerate(row) if at not in self._words]
        most = max(map(_width, heads), default=0)
        named = min(most, max(room - max(figures, default=0), max(map(_longest_word, heads), default=0)))
        for row in self._rows:
            grid = Table.grid(padding=(0, _APART, 0, 0))
            grid.add_column(width=named, overflow="fold")
            grid.add_column(max_width=max(room - named, 1), overflow="fold")
            for head, text in zip(heads, row[1:], strict=True):
                if text.plain not in ("", "–"):
                    grid.add_row(head, text if _width(text) <= room - named else _folded(text))
            yield row[0]
            yield Padding(grid, (0, 0, 0, _APART), expand=False)


def _is_of_figures(cells: Sequence[str]) -> bool:
    known = [cell for cell in cells if cell not in ("", "–")]
    return bool(known) and all(_FIGURE.match(cell) for cell in known)


def _width(cell: Text) -> int:
    return max((cell_len(line) for line in cell.plain.splitlines()), default=0)


def _longest_word(cell: Text) -> int:
    return max((min(cell_len(word), _LONGEST_WORD) for word in cell.plain.split()), default=0)


def _folded(cell: Text) -> Text:
    """`3,480 J` above `(3,010 to 3,950)`."""
    return Text(cell.plain.replace(" (", "\n("), cell.style)

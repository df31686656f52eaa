"""Output of a command: tables of cells that carry value, unit and text, for every format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from wattline.figures import (
    Figure,
    bounded_energy_text,
    energy_of_one_text,
    energy_text,
    mass_text,
    money_text,
    power_text,
    short_text,
    significant_text,
)
from wattline_analyzer.core import units
from wattline_analyzer.core.devices import SIMULATED

if TYPE_CHECKING:
    from rich.text import Text

ABSENT = "–"
Value = float | int | str | bool | Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure or text. `value` is in the base unit `unit`; `half` is the half-width of its 95 %
    CI, `low` and `high` are its limits. `note` is secondary text below the figure.
    """

    text: str = ABSENT
    value: Value = None
    unit: str = ""
    half: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def absent(self) -> bool:
        return self.text in (ABSENT, "")

    @property
    def sort_value(self) -> float | None:
        """The number by which rows are sorted; None for text."""
        number = isinstance(self.value, float | int) and not isinstance(self.value, bool)
        return float(self.value) if number else None  # type: ignore[arg-type]  # a number, as checked above


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `key` is its name in JSON and CSV, empty where these leave it out; `interval`
    says which other keys hold its interval. Columns of `text` are left-aligned and may wrap, unless
    they are `whole`.
    """

    title: str
    key: str = ""
    interval: Literal["none", "uncertainty", "bounds", "limits"] = "none"
    text: bool = False
    whole: bool = False

    def record(self, cell: Cell) -> dict[str, Value]:
        name, _, unit = self.key.rpartition("_")
        match self.interval:
            case "uncertainty":
                return {self.key: cell.value, f"{name}_uncertainty_{unit}": cell.half}
            case "bounds":
                return {
                    self.key: cell.value,
                    f"{name}_low_{unit}": cell.low,
                    f"{name}_high_{unit}": cell.high,
                }
            case "limits":
                return {
                    self.key: cell.value,
                    f"{self.key}_low": cell.low,
                    f"{self.key}_high": cell.high,
                }
        return {self.key: cell.value}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells below titled columns; `totals` stay last when rows are sorted."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    totals: Sequence[Sequence[Cell]] = ()
    notes: Sequence[str] = ()

    def records(self) -> list[dict[str, Value]]:
        """Return one mapping of keys to values per row."""
        keyed = [position for position, column in enumerate(self.columns) if column.key]
        return [
            {
                name: value
                for at in keyed
                for name, value in self.columns[at].record(row[at]).items()
            }
            for row in self.rows
        ]

    def keys(self) -> list[str]:
        """Return the keys of a record, also of a table without rows."""
        return [name for column in self.columns if column.key for name in column.record(Cell())]

    def select(self, title: str, keys: Sequence[str], notes: Sequence[str] = ()) -> Table:
        """Return the columns with these keys, in this order, as a table with a new title."""
        positions = [
            next(at for at, column in enumerate(self.columns) if column.key == key) for key in keys
        ]
        rows, totals = (
            [[row[at] for at in positions] for row in every] for every in (self.rows, self.totals)
        )
        return Table(title, [self.columns[at] for at in positions], rows, totals, notes)

    def without_empty_columns(self) -> Table:
        """Return the table without the columns in which every cell is absent."""
        every = [*self.rows, *self.totals]
        kept = [at for at in range(len(self.columns)) if any(not row[at].absent for row in every)]
        return Table(
            self.title,
            [self.columns[at] for at in kept],
            [[row[at] for at in kept] for row in self.rows],
            [[row[at] for at in kept] for row in self.totals],
            self.notes,
        )


def text_columns(*titles: str) -> list[Column]:
    return [Column(title, text=True) for title in titles]


def figure_columns(*titles: str) -> list[Column]:
    return [Column(title) for title in titles]


def text_cells(texts: Iterable[str]) -> list[Cell]:
    return [text_cell(text) for text in texts]


def text_cell(text: str, note: str = "") -> Cell:
    return Cell(text or ABSENT, text, note=note)


def energy_cell(
    energy: Figure | None,
    largest: float | None = None,
    *,
    estimated: bool = False,
    least_digits: bool = True,
) -> Cell:
    """Return the energy in the unit that fits the `largest` of its column; without `least_digits`
    if it may be 0 or less.
    """
    if energy is None:
        return Cell()
    text = energy_text(energy, largest, least_digits=least_digits)
    return Cell(units.marked(text, estimated), energy.value, "J", energy.half_width)


def joules_cell(
    value_j: float | None, largest: float | None = None, *, estimated: bool = False
) -> Cell:
    return energy_cell(None if value_j is None else Figure(value_j), largest, estimated=estimated)


def bound_cell(bound: Figure | None, largest: float | None = None) -> Cell:
    if bound is None:
        return Cell()
    return Cell(
        bounded_energy_text(bound, largest), bound.value, "J", low=bound.low, high=bound.high
    )


def power_cell(power: Figure | None, *, estimated: bool = False, shows_half: bool = True) -> Cell:
    if power is None:
        return Cell()
    text = units.marked(power_text(power, half=shows_half), estimated)
    return Cell(text, power.value, "W", power.half_width)


def watts_cell(value_w: float | None) -> Cell:
    return power_cell(None if value_w is None else Figure(value_w))


def mass_cell(
    mass: Figure | None, largest: float | None = None, *, estimated: bool = False
) -> Cell:
    """Return emissions in g CO2eq, in the unit that fits the `largest` of their column."""
    if mass is None:
        return Cell()
    return Cell(units.marked(mass_text(mass, largest), estimated), mass.value, "g", mass.half_width)


def grams_cell(value_g: float | None, largest: float | None = None) -> Cell:
    return mass_cell(None if value_g is None else Figure(value_g), largest)


def energy_per_unit_cell(energy: Figure | None, largest: float | None = None) -> Cell:
    """Return joules per unit of work; the unit of work is part of the row or the title."""
    if energy is None:
        return Cell()
    return Cell(energy_of_one_text(energy, largest), energy.value, "J", energy.half_width)


def duration_cell(seconds: float | None) -> Cell:
    return Cell() if seconds is None else Cell(units.duration(seconds), seconds, "s")


def time_cell(unix_s: float) -> Cell:
    """Return a local time, sorted by its Unix time."""
    return Cell(units.moment(unix_s), unix_s, "s")


def number_cell(value: float | None, unit: str = "") -> Cell:
    """Return a number of four digits with its unit."""
    if value is None:
        return Cell()
    return Cell(f"{significant_text(value)} {unit}".rstrip(), value, unit)


def money_cell(amount: Figure) -> Cell:
    return Cell(money_text(amount), amount.value)


def ratio_cell(ratio: float | None) -> Cell:
    return Cell() if ratio is None else Cell(units.percent(ratio), ratio)


def count_cell(count: int | None) -> Cell:
    return Cell() if count is None else Cell(f"{count:,}", count)


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """`parts` are paragraphs and tables for the terminal, `document` is for JSON and YAML, `rows`
    for CSV.

    `header` are the first columns of the CSV, which it has even without rows.
    """

    parts: Sequence[str | Text | Table]
    document: Mapping[str, Any] | Sequence[Any]
    rows: Sequence[Mapping[str, Any]]
    header: Sequence[str] = ()

    def marked(self, *, simulated: bool) -> CommandOutput:
        """Return the output with the key `simulated` in document and rows, and a first line if it
        is True.
        """
        parts = (
            [f"{SIMULATED} hardware: figures of simulated GPUs do not describe a real GPU"]
            if simulated
            else []
        )
        document = (
            {**self.document, "simulated": simulated}
            if isinstance(self.document, Mapping)
            else self.document
        )
        rows = [{**row, "simulated": simulated} for row in self.rows]
        header = [*self.header, "simulated"] if self.header else []
        return CommandOutput([*parts, *self.parts], document, rows, header)


def estimate_record(estimate: Figure | None, name: str) -> dict[str, float | None]:
    """Return an estimate and the limits of its 95 % CI as entries of a document; null where
    unknown.
    """
    return {
        name: estimate.value if estimate else None,
        f"{name}_low": estimate.low if estimate else None,
        f"{name}_high": estimate.high if estimate else None,
    }


def estimate_cell(estimate: Figure | None, scale: float = 1.0, unit: str = "") -> Cell:
    """Return `8.74 % (7.6 to 9.7)`, the 95 % CI in brackets, or why it has none; `scale` converts
    the value to `unit`.
    """
    if estimate is None or not math.isfinite(estimate.number):
        return Cell()
    text = f"{short_text(scale * estimate.number)}{unit}"
    if estimate.low is not None and estimate.high is not None:
        text += f" ({scale * estimate.low:.3g} to {scale * estimate.high:.3g})"
    elif estimate.reason:
        text += f" ({estimate.reason})"
    return Cell(text, estimate.value, low=estimate.low, high=estimate.high)

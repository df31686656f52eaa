"""Output of a command in every format: text and tables, one document, rows of CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from analyzer.model.interval import Interval
from analyzer.output.documents import as_csv, as_json, as_yaml, null_if_not_finite
from analyzer.output.format import OutputFormat
from analyzer.output.table import Cell, Table
from analyzer.output.terminal import UNLIMITED_COLUMNS, console, titled_table


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """`parts` are paragraphs and tables for the terminal, `document` is for JSON and YAML, `rows` for CSV."""

    parts: Sequence[str | Text | Table]
    document: Mapping[str, Any] | Sequence[Any]
    rows: Sequence[Mapping[str, Any]]


def print_output(output: CommandOutput, form: OutputFormat) -> None:
    if form is OutputFormat.TABLE:
        parts = (titled_table(part) if isinstance(part, Table) else part for part in output.parts)
        texts = (Text(part) if isinstance(part, str) else part for part in parts)
        spaced = (Padding(part, (1 if number else 0, 0, 0, 0), expand=False) for number, part in enumerate(texts))
        console(plain_columns=UNLIMITED_COLUMNS).print(Group(*spaced))
    elif form is OutputFormat.CSV:
        print(as_csv(output.rows))
    else:
        write = as_json if form is OutputFormat.JSON else as_yaml
        print(write(null_if_not_finite(output.document)))


def estimate_record(found: Interval | None, name: str) -> dict[str, float | None]:
    """Return an estimate and the limits of its 95 % CI as entries of a document; null where unknown."""
    return {
        name: found.value if found else None,
        f"{name}_low": found.low if found else None,
        f"{name}_high": found.high if found else None,
    }


def estimate_cell(found: Interval | None, scale: float = 1.0, unit: str = "") -> Cell:
    """Return `8.74 % (7.6 to 9.7)`, the 95 % CI in brackets; `scale` converts the value to `unit`."""
    if found is None or not math.isfinite(found.value):
        return Cell()
    text = f"{scale * found.value:.4g}{unit}"
    if found.low is not None and found.high is not None:
        text += f" ({scale * found.low:.3g} to {scale * found.high:.3g})"
    return Cell(text, found.value, low=found.low, high=found.high)
